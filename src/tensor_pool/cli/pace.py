"""Doing something at a fixed rate without drifting, and without a burst after a pause."""

from __future__ import annotations

import threading

from tensor_pool.clock import Clock


class Pace:
    """A grid of ticks. Ticks that were missed are left out."""

    def __init__(self, rate_hz: float, clock: Clock, stop: threading.Event) -> None:
        self._period_ns = round(1e9 / rate_hz)
        self._clock = clock
        self._stop = stop
        self._next_ns = clock.monotonic_ns()

    def wait(self) -> bool:
        """Until the next tick. False when told to stop."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_ns:
            if self._stop.wait((self._next_ns - now_ns) / 1e9):
                return False
        elif now_ns - self._next_ns > 5 * self._period_ns:
            self._next_ns = now_ns
        self._next_ns += self._period_ns
        return not self._stop.is_set()
