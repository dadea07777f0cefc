"""A frame that says which frame it is: its seq at the start of every row, so that a torn or mixed-up frame shows.

The synthetic camera stamps, and whoever reads its frames can compare. A row is the last axis; it needs eight bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

STAMP_BYTES = 8
_Array = np.ndarray[Any, np.dtype[Any]]


def _has_room(array: _Array) -> bool:
    itemsize = array.dtype.itemsize
    return array.ndim > 0 and itemsize <= STAMP_BYTES <= array.shape[-1] * itemsize


def _stamps(array: _Array) -> _Array:
    return array.reshape(-1, array.shape[-1])[:, : STAMP_BYTES // array.dtype.itemsize]


def stamp_seq(array: _Array, seq: int) -> None:
    """Write `seq` at the start of every row of a contiguous array."""
    if not _has_room(array):
        raise ValueError(f"rows of {array.shape[-1:]} {array.dtype} pixels have no room for a stamp of {STAMP_BYTES} bytes")
    _stamps(array)[:] = np.frombuffer(seq.to_bytes(STAMP_BYTES, "little"), dtype=array.dtype)


def carries_seq(array: _Array, seq: int) -> bool:
    """Whether every row says `seq`. Rows without room for it do not."""
    return _has_room(array) and bool((_stamps(array) == np.frombuffer(seq.to_bytes(STAMP_BYTES, "little"), dtype=array.dtype)).all())
