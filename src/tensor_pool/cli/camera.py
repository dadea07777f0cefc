"""The synthetic camera of `tensor-pool publish`: a star field that drifts, with the seq of the frame at the start of every row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensor_pool.stamp import STAMP_BYTES, stamp_seq

Array = np.ndarray[Any, np.dtype[Any]]
STARS = 40
TURN_FRAMES = 512
# a star with its glow is this many pixels wide
STAR_PIXELS = 17


def narrowest_row(dtype: str) -> int:
    """How many pixels a row has to have for the seq at its start."""
    return STAMP_BYTES // np.dtype(dtype).itemsize


def sky_bytes(shape: tuple[int, int]) -> int:
    """Memory that a camera takes while it is made: two numbers and one pixel, each of up to four bytes, at each point of its sky."""
    height, width = (2 * max(pixels, STAR_PIXELS) for pixels in shape)
    return 12 * height * width


class SyntheticCamera:
    """Fills frames as fast as one copy: the sky is made once, twice as large as a frame, and each frame is a window of it."""

    def __init__(self, shape: tuple[int, int], dtype: str, *, seed: int = 7) -> None:
        self._shape = shape
        height, width = (max(pixels, STAR_PIXELS) for pixels in shape)
        random = np.random.default_rng(seed)
        top = min(float(np.iinfo(dtype).max) if np.issubdtype(dtype, np.integer) else 1.0, 60_000.0)
        sky = random.random((2 * height, 2 * width), dtype=np.float32) * np.float32(0.04 * top)
        rows, columns = np.mgrid[-8:9, -8:9]
        for _ in range(STARS):
            row, column = int(random.integers(8, 2 * height - 9)), int(random.integers(8, 2 * width - 9))
            sigma, peak = random.uniform(1.2, 2.8), random.uniform(0.3, 0.95) * top
            star = peak * np.exp(-(rows**2 + columns**2) / (2 * sigma**2))
            sky[row - 8 : row + 9, column - 8 : column + 9] += star.astype(np.float32)
        self._sky = np.clip(sky, 0, top).astype(dtype)

    def expose(self, out: Array, seq: int) -> None:
        """Fill `out` with the picture of frame `seq`."""
        height, width = self._shape
        angle = 2 * math.pi * (seq % TURN_FRAMES) / TURN_FRAMES
        row = int((1 + math.sin(angle)) / 2 * height)
        column = int((1 + math.cos(angle)) / 2 * width)
        np.copyto(out, self._sky[row : row + height, column : column + width])
        stamp_seq(out, seq)
