"""Time, passed in. Nothing in this package reads a clock that it was not given."""

from __future__ import annotations

import time
from typing import Final, Protocol

# more nanoseconds than this are for ever: 146 years
_LONGEST_WAIT_NS: Final = 1 << 62


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


def wait_ns(seconds: float | None, name: str = "timeout") -> int | None:
    """How long to wait, in nanoseconds; None is for ever. What is no time at all is an error that names the argument."""
    if seconds is None:
        return None
    try:
        nanoseconds = seconds * 1e9
    except (TypeError, OverflowError):
        raise TypeError(f"{name} is {seconds!r}, not a number of seconds or None") from None
    if not nanoseconds >= 0:
        raise ValueError(f"{name} is {seconds!r}, not 0 or more seconds\n\nhint: None waits for ever, 0 not at all")
    return int(nanoseconds) if nanoseconds < _LONGEST_WAIT_NS else None
