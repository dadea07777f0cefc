"""Frames that tell which publish wrote them: every 64-byte line, and every word of it, follows from the seq.

A frame that is a mixture of two (a torn read) has lines of two seqs, or words that belong to no seq at all. Stamping and checking are a few
numpy calls a frame, so a million small frames are cheap.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

LINE_BYTES = 64
_WORDS = LINE_BYTES // 8
_SPREAD = 0x9E3779B97F4A7C15  # odd, so that multiplying by it maps each seq to another word
_MASK = 0xFFFF_FFFF_FFFF_FFFF

try:
    from crc32c import crc32c as _crc32c
except ImportError:  # the extra `record` is not installed
    _checksum: Callable[[memoryview], int] = zlib.crc32
else:
    _checksum = _crc32c


def checksum(buffer: Any) -> int:
    """CRC32C of the bytes (CRC32 where crc32c is not installed)."""
    return int(_checksum(memoryview(buffer).cast("B")))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A cheap hash (splitmix64) of each word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=32)
def _pattern(nbytes: int) -> npt.NDArray[np.uint64]:
    """What a frame of this size would hold for seq 0: 0 in the first word of each line, the hash of its place in the others."""
    count = -(-nbytes // 8)
    pattern = _mixed(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_SPREAD))
    pattern[::_WORDS] = 0
    pattern.setflags(write=False)
    return pattern


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if not array.flags.c_contiguous:
        raise ValueError("only contiguous frames can be stamped and checked")
    return array.reshape(-1).view(np.uint8)


def _seq_word(seq: int) -> np.uint64:
    return np.uint64((seq * _SPREAD) & _MASK)


def stamp_frame(array: npt.NDArray[Any], seq: int) -> None:
    """Fill a contiguous array (of any dtype) so that each 64-byte line carries `seq`."""
    raw = _as_bytes(array)
    whole = raw.nbytes // 8 * 8
    pattern = _pattern(raw.nbytes)
    if whole:
        np.bitwise_xor(pattern[: whole // 8], _seq_word(seq), out=_unaligned(raw[:whole]))
    if whole < raw.nbytes:
        last = np.array([pattern[-1] ^ _seq_word(seq)], dtype=np.uint64).view(np.uint8)
        raw[whole:] = last[: raw.nbytes - whole]


def check_frame(array: npt.NDArray[Any], seq: int) -> bool:
    """Whether every byte is what `stamp_frame(array, seq)` writes."""
    raw = _as_bytes(array)
    whole = raw.nbytes // 8 * 8
    pattern = _pattern(raw.nbytes)
    if whole and not ((_unaligned(raw[:whole]) ^ pattern[: whole // 8]) == _seq_word(seq)).all():
        return False
    if whole < raw.nbytes:
        last = np.array([pattern[-1] ^ _seq_word(seq)], dtype=np.uint64).view(np.uint8)
        return bool((raw[whole:] == last[: raw.nbytes - whole]).all())
    return True


def stamped_seq(array: npt.NDArray[Any], line: int = 0) -> int:
    """The seq that a 64-byte line claims to carry; nonsense for a line that `stamp_frame` did not write."""
    word = int.from_bytes(_as_bytes(array)[line * LINE_BYTES : line * LINE_BYTES + 8].tobytes(), "little")
    return (word * pow(_SPREAD, -1, 1 << 64)) & _MASK


def _unaligned(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """The same memory as little-endian words."""
    return raw.view(np.uint64)
