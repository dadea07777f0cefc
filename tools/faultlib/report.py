"""What a run of experiments leaves: build/faults.json, a table, and a bar while it works."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from faultlib.experiment import Outcome

_BAR = 30
_REPORT_EVERY_S = 20.0


class Bar:
    """A line on stderr that is written over on a terminal; elsewhere a line every twenty seconds."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._terminal = stream.isatty()
        self._began_s = time.monotonic()
        self._said_s = self._began_s

    def show(self, fraction: float, words: str) -> None:
        now_s = time.monotonic()
        if not self._terminal:
            if now_s - self._said_s >= _REPORT_EVERY_S:
                self._said_s = now_s
                self._stream.write(f"{self._name:<4} {fraction:>4.0%} {words}\n")
                self._stream.flush()
            return
        filled = round(_BAR * min(max(fraction, 0.0), 1.0))
        text = f"{self._name:<4} [{'#' * filled}{'.' * (_BAR - filled)}] {now_s - self._began_s:>4.0f} s  {words}"
        self._stream.write(f"\r{text[:110]:<110}")
        self._stream.flush()

    def clear(self) -> None:
        if self._terminal:
            self._stream.write("\r" + " " * 110 + "\r")


def row(outcome: Outcome, *, what: str, command: str, elapsed_s: float, scale: float, seed: int) -> dict[str, Any]:
    """One experiment in build/faults.json."""
    return {
        "what": what,
        "passed": outcome.passed,
        "void": bool(outcome.void),
        "void_reasons": list(outcome.void),
        "problems": list(outcome.problems)[:20],
        "figures": dict(outcome.figures),
        "elapsed_s": round(elapsed_s, 1),
        "scale": scale,
        "seed": seed,
        "command": command,
        "machine": machine(),
    }


def machine() -> str:
    """Enough to compare two runs, and no name of a host."""
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    system = f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}"
    return f"{cores} cores, {memory_gib:.0f} GiB, {system}, Python {platform.python_version()}"


def write(path: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(rows, indent=1) + "\n")
    scratch.replace(path)


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One line an experiment: verdict, time, the figures that are plain numbers; then what was wrong."""
    lines = []
    for name, result in rows.items():
        verdict = "passed" if result["passed"] else "FAILED" if result["problems"] else "VOID"
        lines.append(f"{name:<4} {verdict:<7} {result['elapsed_s']:>7.1f} s  {result['what']}")
        lines += [f"     {text}" for text in _wrapped(_numbers(result["figures"]), 110)]
        lines += [f"     problem: {problem}" for problem in result["problems"]]
        lines += [f"     void: {reason}" for reason in result["void_reasons"]]
    return "\n".join(lines)


def _numbers(figures: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            if not prefix:
                found += _numbers(value, f"{name}.")
        elif isinstance(value, int | float):
            found.append(f"{prefix}{name} {value}")
    return found


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
