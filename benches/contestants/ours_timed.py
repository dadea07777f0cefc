"""A producer that times every second `publish`, and in between a memcpy of the frame into a ring of the same size."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from benches import native
from benches.agreement import Setup
from benches.contestants import ours
from benches.figures import percentile, quartiles
from benches.native import Source

PREFAULT: Final = 1


class Writer(ours.Writer):
    """What `publish` takes beyond the median of the plain memcpies around it. The noise of its own memcpy is charged to `publish`."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._slots = setup.slots
        # ones, not zeros: the pages have to be there
        self._ring = np.full((setup.slots, setup.nbytes // 8), PREFAULT, dtype=np.uint64)

    def write(self, source: Source) -> Mapping[str, Any]:
        following, publish, now_ns, nbytes = source.next, self._producer.publish, time.perf_counter_ns, self._nbytes
        copy_ns = native.module().copy_ns
        addresses = [slot.ctypes.data for slot in self._ring]
        published_ns: list[int] = []
        copied_ns: list[int] = []
        while (frame := following()) is not None:
            # in turns, and each the first to touch the frame after the pause: the second would find everything in the cache
            if len(published_ns) <= len(copied_ns):
                began_ns = now_ns()
                publish(frame)
                published_ns.append(now_ns() - began_ns)
            else:
                copied_ns.append(copy_ns(addresses[len(copied_ns) % self._slots], frame.ctypes.data, nbytes))
                publish(frame)
        memcpy_ns = quartiles(copied_ns)[1]
        return {
            "beyond_memcpy_ns": memcpy_ns,
            "beyond_p50_ns": percentile(published_ns, 50) - memcpy_ns,
            "beyond_p99_ns": percentile(published_ns, 99) - memcpy_ns,
        }
