"""F2: a model checker runs every execution of the commit protocol that the release compiles, and the broken variants must fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from faultlib.experiment import ROOT, Context, Outcome

LIMIT_S = 1200
PROTOCOL = "BothFences"
CONTROLS = ("NoWriterFence", "NoReaderFence", "NoFences")
_VARIANT = re.compile(r"^variant (?P<name>\w+) executions (?P<executions>\d+) accepted (?P<accepted>\d+) torn (?P<torn>\d+)$", re.MULTILINE)


class MemoryModel:
    """Loom over the functions that move frames. Each variant that lacks a fence must be caught accepting a torn frame."""

    name = "F2"
    what = "memory model of the commit protocol"

    def run(self, context: Context) -> Outcome:
        began_s = time.monotonic()
        context.progress(0.0, "building with loom, then every execution")
        target = str(ROOT / "native" / "target-loom")
        environment = {**native_environment(), "RUSTFLAGS": "--cfg loom", "CARGO_TARGET_DIR": target}
        command = ["cargo", "test", "--release", "-p", "tensor-pool-core", "--test", "commit_model", "--", "--nocapture"]
        done = subprocess.run(  # noqa: S603 - our own tests
            command, cwd=ROOT / "native", env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        outcome = judge(done.stdout, done.returncode)
        if not outcome.passed:
            (context.evidence_dir / "F2.txt").write_text(done.stdout + done.stderr)
        return Outcome({**outcome.figures, "elapsed_s": round(time.monotonic() - began_s, 1)}, outcome.problems, outcome.void)


def judge(output: str, returncode: int) -> Outcome:
    """The protocol never accepted a torn frame; each variant without a fence did."""
    variants = {match["name"]: {key: int(match[key]) for key in ("executions", "accepted", "torn")} for match in _VARIANT.finditer(output)}
    problems = []
    protocol = variants.get(PROTOCOL)
    if protocol is None:
        problems.append("the protocol was not checked")
    elif protocol["torn"] or not protocol["accepted"]:
        problems.append(f"the protocol accepted {protocol['torn']} torn frames of {protocol['accepted']}")
    void = [f"the control {name} was not caught" for name in CONTROLS if not variants.get(name, {}).get("torn")]
    if returncode != 0 and not problems and not void:
        problems.append(f"cargo ended with {returncode}")
    return Outcome(variants, problems, void)


def native_environment() -> dict[str, str]:
    """What the native build needs, as its own script says it."""
    command = [sys.executable, str(ROOT / "native" / "build_backend.py"), "--print-env"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own script
    shell = subprocess.run(  # noqa: S603 - what our own script printed
        ["/bin/bash", "-c", f"{printed}\nenv -0"], capture_output=True, text=True, check=True, env=dict(os.environ)
    ).stdout
    return dict(entry.partition("=")[::2] for entry in shell.split("\0") if entry)
