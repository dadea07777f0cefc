"""Runs the bench and writes build/bench.json, bench.md, bench.png and bench-path.png there, and prints a table.

Ends with 1 when a run's figures mean nothing; an unmet target is a result, not a failure.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
# started as a file, as `benches/run.py`
sys.path.insert(0, str(ROOT)) if str(ROOT) not in sys.path else None

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn  # noqa: E402

from benches import native, report, tables  # noqa: E402
from benches.figures import Row  # noqa: E402
from benches.measures.attach import Attach  # noqa: E402
from benches.measures.idle import Idle  # noqa: E402
from benches.measures.latency import Latency  # noqa: E402
from benches.measures.limit import Limit  # noqa: E402
from benches.measures.path import Path as FramePath  # noqa: E402
from benches.measures.publish_cost import PublishCost  # noqa: E402
from benches.measures.throughput import Throughput  # noqa: E402
from benches.plan import Measure, Peers, Plan  # noqa: E402
from benches.stage import BenchError  # noqa: E402

MEASURES: tuple[Measure, ...] = (Limit(), Throughput(), Latency(), PublishCost(), FramePath(), Attach(), Idle())
FULL: Final = (9, 0.5, 1.0)
QUICK: Final = (3, 0.1, 0.25)


def chosen(names: str) -> list[Measure]:
    """The measures of a comma-separated list, all of them for an empty one. An unknown name is a ValueError."""
    by_name = {measure.name: measure for measure in MEASURES}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        raise ValueError(f"no measure is called {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [by_name[name] for name in wanted] if wanted else list(MEASURES)


def measure_all(
    measures: Sequence[Measure], make_plan: Callable[[Callable[[str], None], Callable[[], None]], Plan], console: Console
) -> list[Row]:
    """Run them under a progress bar."""
    columns = (BarColumn(30), TextColumn("{task.completed:.0f} of {task.total:.0f}"), TimeElapsedColumn(), TimeRemainingColumn())
    # drawn seldom: two cores are being measured
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True, refresh_per_second=2) as progress:
        task = progress.add_task("", total=0)

        def say(words: str) -> None:
            progress.update(task, description=words)

        def advance() -> None:
            progress.advance(task)

        plan = make_plan(say, advance)
        progress.update(task, total=sum(measure.steps(plan) for measure in measures))
        rows: list[Row] = []
        for measure in measures:
            rows += measure.run(plan)
        return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benches/run.py", description=__doc__)
    names = ", ".join(measure.name for measure in MEASURES)
    parser.add_argument("--only", default="", metavar="NAMES", help=f"measure these parts: {names}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, under two minutes in all; the figures are rough")
    parser.add_argument("--rounds", type=int, default=None, help="rounds of everybody (default: 9, or 3 with --quick)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench.json", help="the picture goes beside it")
    options = parser.parse_args(arguments)
    try:
        measures = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    rounds, seconds, latency_seconds = QUICK if options.quick else FULL
    rounds = options.rounds or rounds
    peers = Peers.find()
    load_before = os.getloadavg()[0]
    console = Console(stderr=True)
    try:
        native.build()
        rows = measure_all(
            measures, lambda say, advance: Plan(rounds, seconds, latency_seconds, peers, options.quick, say, advance), console
        )
    except (BenchError, RuntimeError) as error:
        console.print(f"[bold red]The bench failed:[/] {error}", highlight=False)
        return 1
    notes = list(peers.notes)
    if load_before > 0.5:
        notes.append(f"The machine was busy (load {load_before:.1f}) before the bench began: the figures are noisy.")
    content = report.document(
        rows,
        command=" ".join(["benches/run.py", *(sys.argv[1:] if arguments is None else arguments)]),
        rounds=rounds,
        peers=peers.versions,
        notes=notes,
        load=(load_before, os.getloadavg()[0]),
    )
    report.write_json(options.output, content)
    tables.write(rows, options.output.with_suffix(".md"))
    report.plot(rows, options.output.with_suffix(".png"))
    if any(row.unit == report.STEP_UNIT for row in rows):
        report.plot_steps(rows, options.output.with_name(f"{options.output.stem}-path.png"))
    report.print_table(rows, notes, Console(width=None if sys.stdout.isatty() else 260))
    return 0


if __name__ == "__main__":
    sys.exit(main())
