"""What may be published: the shape and type a producer declared, and the bytes of an array in an order the wire knows."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensor_pool.sbe.control import MajorOrder
from tensor_pool.tensors import wire_dtype

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class DeclaredFrame:
    """Shape and dtype that every frame of a producer has."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int

    @classmethod
    def of(cls, shape: tuple[int, ...] | int, dtype: npt.DTypeLike) -> DeclaredFrame:
        sizes = (int(shape),) if isinstance(shape, int | np.integer) else tuple(map(operator.index, shape))
        if not 1 <= len(sizes) <= 8 or min(sizes) < 0:
            raise ValueError(f"shape {sizes}: a frame has 1 to 8 dimensions, none negative")
        element = np.dtype(dtype)
        wire_dtype(element)
        return cls(sizes, element, math.prod(sizes) * element.itemsize)

    def check(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Refuse what was not declared, before a byte is written."""
        if dtype != self.dtype:
            raise TypeError(f"dtype is {dtype}, this producer declared {self.dtype}")
        if shape != self.shape:
            raise ValueError(f"shape is {shape}, this producer declared {self.shape}")


def publishable_bytes(array: Array) -> tuple[Array, MajorOrder]:
    """The array whose bytes go into the slot, and their order. Copies only what is neither row- nor column-major."""
    if array.flags.c_contiguous:
        return array, MajorOrder.ROW
    if array.flags.f_contiguous:
        return array.T, MajorOrder.COLUMN
    return np.ascontiguousarray(array), MajorOrder.ROW
