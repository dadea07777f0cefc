"""A clock that stands still until a test moves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ManualClock:
    """Both clocks of the protocol, settable. `advance` is time going by; `step_realtime` is an operator who sets the wall clock."""

    monotonic: int = 1_000_000_000_000
    realtime: int = 1_700_000_000_000_000_000

    def monotonic_ns(self) -> int:
        return self.monotonic

    def realtime_ns(self) -> int:
        return self.realtime

    def advance(self, duration_ns: int) -> int:
        """Let time go by on both clocks. Returns the new monotonic time."""
        if duration_ns < 0:
            raise ValueError(f"time does not go backwards: advance({duration_ns})")
        self.monotonic += duration_ns
        self.realtime += duration_ns
        return self.monotonic

    def step_realtime(self, difference_ns: int) -> None:
        """Set the wall clock forward or back; CLOCK_MONOTONIC does not notice."""
        self.realtime += difference_ns
