"""Latencies in bounded memory: percentiles to within three per cent, however long a command runs."""

from __future__ import annotations

# 32 buckets an octave
_PRECISION_BITS = 5
_BUCKETS = 64 << _PRECISION_BITS


class LatencyHistogram:
    """Counts nanoseconds in logarithmic buckets."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._total = 0

    def record(self, latency_ns: int) -> None:
        value = max(latency_ns, 1)
        shift = max(value.bit_length() - 1 - _PRECISION_BITS, 0)
        self._counts[(shift << _PRECISION_BITS) + (value >> shift)] += 1
        self._total += 1

    def percentile_ns(self, percent: float) -> int | None:
        """The upper edge of the bucket in which the percentile lies, None without any value."""
        if self._total == 0:
            return None
        wanted = max(1, round(self._total * percent / 100))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                shift = max((index >> _PRECISION_BITS) - 1, 0)
                return ((index - (shift << _PRECISION_BITS) + 1) << shift) - 1
        return None

    def summary_us(self) -> dict[str, float | None]:
        """p50, p99 and p99.9 in microseconds."""

        def microseconds(percent: float) -> float | None:
            value = self.percentile_ns(percent)
            return None if value is None else round(value / 1000, 1)

        return {"p50_us": microseconds(50), "p99_us": microseconds(99), "p999_us": microseconds(99.9)}
