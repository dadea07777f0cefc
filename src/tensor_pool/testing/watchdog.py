"""A limit for whatever waits: past it every thread's stack is written and the process ends."""

from __future__ import annotations

import faulthandler
import sys
import time
from types import TracebackType
from typing import ClassVar, TextIO


class Watchdog:
    """Ends this process, with all stacks on `output`, when the block takes longer than `limit_s`.

    It works in C, so a call that hangs with the GIL held is caught too. Blocks nest: leaving an inner one arms what is left
    of the outer one.
    """

    _active: ClassVar[list[Watchdog]] = []  # one timer a process is all that faulthandler has

    def __init__(self, limit_s: float, output: TextIO | int | None = None) -> None:
        self._limit_s = limit_s
        self._output = sys.__stderr__ if output is None else output
        self._deadline_s = 0.0

    def __enter__(self) -> Watchdog:
        self._deadline_s = time.monotonic() + self._limit_s
        self._active.append(self)
        self._arm_nearest()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._active.remove(self)
        self._arm_nearest()

    @classmethod
    def _arm_nearest(cls) -> None:
        faulthandler.cancel_dump_traceback_later()
        if cls._active:
            nearest = min(cls._active, key=lambda watchdog: watchdog._deadline_s)
            left_s = max(nearest._deadline_s - time.monotonic(), 0.001)
            faulthandler.dump_traceback_later(left_s, exit=True, file=nearest._output or 2)
