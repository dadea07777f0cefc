"""A producer that times every second `publish`, and in between the memcpy of the frame alone, into the slot where `publish` puts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benches import native
from benches.contestants import ours
from benches.figures import percentile, quartiles
from benches.native import Source


class Writer(ours.Writer):
    """What `publish` takes beyond the median of the plain memcpies around it. The noise of its own memcpy is charged to `publish`.

    The memcpies go to the slots of this very ring, in their turn, and their frames are read as all others: the pages are the same, and the
    reader has had the lines of one as of the other.
    """

    def write(self, source: Source) -> Mapping[str, Any]:
        self._publish_all(source.lead)
        before = self._refused()
        published_ns, copied_ns = self._time_all(source)
        memcpy_ns = quartiles(copied_ns)[1]
        return {
            "refused": self._refused() - before,
            "beyond_memcpy_ns": memcpy_ns,
            "beyond_memcpy_p99_ns": percentile(copied_ns, 99),
            "beyond_p50_ns": percentile(published_ns, 50) - memcpy_ns,
            "beyond_p99_ns": percentile(published_ns, 99) - memcpy_ns,
        }

    def _time_all(self, source: Source) -> tuple[list[int], list[int]]:
        """(publish, memcpy) in nanoseconds, by the same clock, looked at in the same place."""
        following, publish, claim, bench = source.next, self._producer.publish, self._producer.claim, native.module()
        call_ns, copy_ns = bench.call_ns, bench.copy_ns
        published_ns: list[int] = []
        copied_ns: list[int] = []
        # in turns, and each the first thing that is done after the pause: the second would find everything in the cache
        while (frame := following()) is not None:
            published_ns.append(call_ns(publish, frame))
            slot = claim()
            frame = following()
            if frame is None:
                slot.abort()
                break
            copied_ns.append(copy_ns(slot.array, frame))
            slot.commit()
        return published_ns, copied_ns
