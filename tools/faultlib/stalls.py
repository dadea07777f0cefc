"""Whether the machine itself stood still: a bound of milliseconds says nothing about us while other work keeps every core."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Final

STALL_NS: Final = 40_000_000
_NAP_S: Final = 0.005


class StallWatch:
    """One thread a core that does nothing but sleep. Where it wakes up late, nobody else on that core was served in time either."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._stalls: list[tuple[int, int]] = []
        self._threads = [threading.Thread(target=self._watch, args=(core,), daemon=True) for core in os.sched_getaffinity(0)]

    def _watch(self, core: int) -> None:
        os.sched_setaffinity(0, {core})  # of this thread
        while not self._ended.is_set():
            before_ns = time.monotonic_ns()
            time.sleep(_NAP_S)
            now_ns = time.monotonic_ns()
            if now_ns - before_ns > STALL_NS:
                self._stalls.append((before_ns, now_ns))

    def stalled_between(self, begin_ns: int, end_ns: int) -> bool:
        """Whether a core was late at any time in between."""
        return any(begin < end_ns and end > begin_ns for begin, end in list(self._stalls))

    @property
    def count(self) -> int:
        return len(self._stalls)

    def __enter__(self) -> StallWatch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
