"""The native decoders of every frame (descriptor, slot) under damaged known answers, built with AddressSanitizer."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from faultlib.experiment import ROOT, Bench, Context
from faultlib.f02_memory_model import native_environment

LIMIT_S = 600
TARGETS = ("descriptor", "slot")
_TARGET = re.compile(r"hostile (?P<name>\w+) inputs (?P<inputs>\d+) accepted (?P<accepted>\d+) refused (?P<refused>\d+)")


def fuzz_native(bench: Bench, context: Context, inputs: int) -> tuple[list[str], list[str], dict[str, Any]]:
    """Problems, reasons to be void, figures."""
    answers = bench.directories.root / "known-answers"
    answers.write_text(_known_answers())
    environment = {"HOSTILE_INPUTS": str(inputs), "HOSTILE_SEED": str(context.seed), "HOSTILE_ANSWERS": str(answers)}
    control = _run(environment, "--ignored")
    if "AddressSanitizer" not in control.stdout + control.stderr:
        why = (control.stderr.strip().splitlines() or ["it read behind the end of its memory, and nothing happened"])[-1]
        return [], [f"no AddressSanitizer in this toolchain: {why}"], {}
    done = _run(environment)
    found = {match["name"]: match for match in _TARGET.finditer(done.stdout)}
    problems = [f"the native {name} was not fuzzed to its end" for name in TARGETS if name not in found]
    if done.returncode != 0:
        (context.evidence_dir / "F14-native.txt").write_text(done.stdout + done.stderr)
        problems.append(f"the native decoders ended with {done.returncode}: see F14-native.txt")
    figures = {f"native_{key}": sum(int(match[key]) for match in found.values()) for key in ("inputs", "accepted", "refused")}
    return problems, [], {"native_targets": len(found), **figures}


def _known_answers() -> str:
    sys.path.insert(0, str(ROOT))
    from tests.vectors.known_answers import load_known_answers

    names = {"FrameDescriptor": "descriptor", "SlotHeader": "slot"}
    return "\n".join(f"{names[answer.message]} {answer.data.hex()}" for answer in load_known_answers() if answer.message in names)


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    # the sanitizers' runtime comes with the stable toolchain; only the flag that asks for it counts as unstable
    build = {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": "-Zsanitizer=address", "CARGO_TARGET_DIR": str(ROOT / "native" / "target-asan")}
    native = {**native_environment(), **build, **environment}
    host = re.search(r"^host: (.+)$", subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout, re.MULTILINE)  # noqa: S607
    assert host is not None, "rustc names its host"
    command = ["cargo", "test", "--quiet", "--release", "--target", host[1], "-p", "tensor-pool-core", "--test", "hostile", "--"]
    return subprocess.run(  # noqa: S603 - our own tests
        [*command, "--nocapture", *arguments], cwd=ROOT / "native", env=native, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
