"""Memory that writers take their frames from: three payloads, windows into one piece, so that all three fit the cache where one does."""

from __future__ import annotations

from typing import Any

import numpy as np

from benches import native

Words = np.ndarray[Any, np.dtype[np.uint64]]


def windows(nbytes: int) -> list[Words]:
    """Three overlapping arrays of `nbytes`, each on a cache line."""
    bench = native.module()
    shift = bench.SHIFT_BYTES // 8
    memory = np.zeros(nbytes // 8 + shift * bench.PATTERNS, dtype=np.uint64)
    ahead = -memory.ctypes.data % bench.SHIFT_BYTES // 8
    return [memory[ahead + shift * pattern :][: nbytes // 8] for pattern in range(bench.PATTERNS)]


def array_source(nbytes: int) -> native.Source:
    """Hands out arrays."""
    payloads = windows(nbytes)
    return native.module().Source(payloads, payloads, nbytes)


def address_source(nbytes: int) -> native.Source:
    """Hands out addresses."""
    payloads = windows(nbytes)
    return native.module().Source(payloads, [payload.ctypes.data for payload in payloads], nbytes)


def bytearray_source(nbytes: int) -> native.Source:
    """Hands out bytearrays, which cannot overlap."""
    payloads = [bytearray(nbytes) for _ in range(native.module().PATTERNS)]
    return native.module().Source(payloads, payloads, nbytes)
