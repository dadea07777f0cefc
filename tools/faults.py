"""Runs the fault experiments of docs/reliability.md and writes build/faults.json (with --long build/soak.json).

Some of them alone, or scaled down, are written to build/faults-part.json. Ends with 1 when one failed or could not have failed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from faultlib import report
from faultlib.experiment import ROOT, Context, Experiment, Outcome
from faultlib.f01_torn_reads import TornReads
from faultlib.f02_memory_model import MemoryModel
from faultlib.f04_killed_producer import KilledProducer
from faultlib.f07_killed_media_driver import KilledMediaDriver
from faultlib.f08_isolation import Isolation
from faultlib.f09_accounting import AccountingIdentity
from faultlib.f10_path_races import PathRaces
from faultlib.f12_full_memory import FullMemory
from faultlib.f14_codec_fuzz import CodecFuzz
from faultlib.f16_interop import Interop
from faultlib.f23_lifetimes import Lifetimes

EXPERIMENTS: tuple[Experiment, ...] = (
    TornReads(),
    MemoryModel(),
    KilledProducer(),
    KilledMediaDriver(),
    Isolation(),
    AccountingIdentity(),
    PathRaces(),
    FullMemory(),
    CodecFuzz(),
    Interop(),
    Lifetimes(),
)
# those that have counts of their own for a soak
LONG = ("F1",)


def chosen(names: str) -> list[Experiment]:
    """The experiments of a comma-separated list, all of them for an empty one. An unknown name is a ValueError."""
    by_name = {experiment.name: experiment for experiment in EXPERIMENTS}
    wanted = [name.strip().upper() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        raise ValueError(f"no experiment is called {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [by_name[name] for name in wanted] if wanted else list(EXPERIMENTS)


def run_one(experiment: Experiment, *, scale: float, is_long: bool, seed: int, evidence_dir: Path, command: str) -> dict[str, Any]:
    """Run one experiment; an exception of its own is a failure with its traceback beside the evidence."""
    bar = report.Bar(experiment.name, sys.stderr)
    evidence_dir.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    try:
        outcome = experiment.run(Context(seed, evidence_dir, scale, is_long, bar.show))
    except Exception as error:  # noqa: BLE001 - one broken experiment must not hide what the others find
        notes = " ".join(getattr(error, "__notes__", []))
        (evidence_dir / f"{experiment.name}.traceback").write_text(traceback.format_exc())
        outcome = Outcome({}, [f"{type(error).__name__}: {error} {notes}".strip()])
    bar.clear()
    return report.row(outcome, what=experiment.what, command=command, elapsed_s=time.monotonic() - began_s, scale=scale, seed=seed)


def exit_code(rows: Mapping[str, Mapping[str, Any]]) -> int:
    return 0 if rows and all(result["passed"] for result in rows.values()) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="F1,F4", help="run these experiments")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the repetitions; only 1 counts as a check")
    parser.add_argument(
        "--long",
        action="store_true",
        help=f"the counts of a soak: a quarter of an hour or more; only {', '.join(LONG)} when nothing is named",
    )
    parser.add_argument("--seed", type=int, default=None, help="repeat a run with the seed that it wrote down")
    parser.add_argument("--json", action="store_true", help="the rows as JSON on standard output instead of a table")
    parser.add_argument("--output", type=Path, default=None, help="default: build/faults.json, or build/soak.json with --long")
    options = parser.parse_args(arguments)
    try:
        experiments = chosen(options.only or (",".join(LONG) if options.long else ""))
    except ValueError as error:
        parser.error(str(error))
    if options.scale <= 0:
        parser.error("--scale is more than 0")
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    command = " ".join(["tools/faults.py", *(sys.argv[1:] if arguments is None else arguments)])
    output: Path = options.output or ROOT / "build" / ("soak.json" if options.long else "faults.json")
    is_whole = not options.only and options.scale == 1
    # what is not the whole, or not yet, must not pass for it
    part = output.with_stem(f"{output.stem}-part")
    if is_whole:
        output.unlink(missing_ok=True)
    evidence_dir = ROOT / "build" / "evidence"
    rows: dict[str, dict[str, Any]] = {}
    for experiment in experiments:
        result = run_one(experiment, scale=options.scale, is_long=options.long, seed=seed, evidence_dir=evidence_dir, command=command)
        rows[experiment.name] = result
        report.write(part, rows)
        report.say(report.table({experiment.name: result}))
    written = part.replace(output) if is_whole else part
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        passed = sum(result["passed"] for result in rows.values())
        sys.stdout.write(f"{passed} of {len(rows)} experiments passed; figures in {written}\n")
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
