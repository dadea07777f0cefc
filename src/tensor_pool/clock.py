"""Time, passed in. Nothing in this package reads a clock that it was not given."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The two clocks of the protocol: CLOCK_MONOTONIC orders, CLOCK_REALTIME only names."""

    def monotonic_ns(self) -> int: ...

    def realtime_ns(self) -> int: ...


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def realtime_ns(self) -> int:
        return time.time_ns()
