"""Things that happen every so often, by a clock that the caller reads."""

from __future__ import annotations


class PeriodicTimer:
    """Due once a period, first one period after `now_ns`. Keeps to its grid; periods that were missed in a pause are left out."""

    __slots__ = ("_next_ns", "_period_ns")

    def __init__(self, period_ns: int, now_ns: int) -> None:
        if period_ns <= 0:
            raise ValueError(f"a period is at least 1 ns, not {period_ns}")
        self._period_ns = period_ns
        self._next_ns = now_ns + period_ns

    @property
    def period_ns(self) -> int:
        return self._period_ns

    def due(self, now_ns: int) -> bool:
        """Whether it is time; True once for each period, however often one asks."""
        if now_ns < self._next_ns:
            return False
        self._next_ns += self._period_ns
        if self._next_ns <= now_ns:
            self._next_ns = now_ns + self._period_ns
        return True

    def remaining_ns(self, now_ns: int) -> int:
        """How long until it is due, 0 where it is."""
        return max(0, self._next_ns - now_ns)

    def restart(self, now_ns: int) -> None:
        """Due one period from now."""
        self._next_ns = now_ns + self._period_ns
