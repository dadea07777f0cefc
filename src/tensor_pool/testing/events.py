"""Histories that workload processes write, one JSON line an event, and that the checker reads.

The file outlives the process at any moment: each line is one write to the kernel, so `kill -9` costs at most a torn last line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

ATTEMPT = "attempt"
"""Before a publish: which bytes (crc) are about to get which seq."""
PUBLISH = "publish"
"""A publish that came back with its seq."""
ABORT = "abort"
"""A claim that was given back."""
ACCEPT = "accept"
"""A frame that the library said is whole."""
WITHDRAW = "withdraw"
"""A borrowed frame that the library took back on release."""
TOTALS = "totals"
"""A consumer's own counts for one epoch, to be compared with what it logged."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line. `crc` is None where there is none to compare; `more` holds every other field."""

    event: str
    epoch: int
    seq: int
    crc: int | None
    time_ns: int
    more: dict[str, Any] = field(default_factory=dict)


class EventLog:
    """Appends events to a file. Closing is not needed for the lines to be there."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: str, epoch: int, seq: int, crc: int | None = None, **more: Any) -> None:
        crc_text = "null" if crc is None else str(crc)
        rest = "," + json.dumps(more)[1:-1] if more else ""
        line = f'{{"event":"{event}","epoch":{epoch},"seq":{seq},"crc":{crc_text},"time_ns":{time.monotonic_ns()}{rest}}}\n'
        os.write(self._file, line.encode())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_events(path: str | Path) -> Iterator[Event]:
    """The events of a log, oldest first. A torn last line is left out; anything else that is not an event is a ValueError."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return  # the process was killed in the middle of it
            try:
                fields = json.loads(line)
                event, epoch, seq, crc, time_ns = (fields.pop(key) for key in ("event", "epoch", "seq", "crc", "time_ns"))
            except (ValueError, KeyError) as error:
                raise ValueError(f"{path}:{number}: not an event: {line!r}") from error
            yield Event(event, epoch, seq, crc, time_ns, fields)
