"""Tensors on the wire and in numpy: element types, layouts, and the limits of both (wire 8.2, 15.8).

The wire's numbers are those of `tensor_pool.sbe.control.Dtype` and `MajorOrder`, spelled out here because every frame passes through these
tables; a conformance test holds the two together. Number 12 was never assigned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tensor_pool.errors import ProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

ROW_MAJOR: Final = 1
COLUMN_MAJOR: Final = 2

BYTES: Final = 13
BIT: Final = 14

MAX_DIMS: Final = 8
MAX_TENSOR_BYTES: Final = 2**31 - 1  # strides are i32
SMALLEST_STRIDE_BYTES: Final = 64
LARGEST_STRIDE_BYTES: Final = 2**31  # the largest power of two in a u32

_NUMPY_DTYPES: Final[dict[int, np.dtype[Any] | None]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int8),
    3: np.dtype(np.uint16),
    4: np.dtype(np.int16),
    5: np.dtype(np.uint32),
    6: np.dtype(np.int32),
    7: np.dtype(np.uint64),
    8: np.dtype(np.int64),
    9: np.dtype(np.float32),
    10: np.dtype(np.float64),
    11: np.dtype(np.bool_),
    BYTES: None,
    BIT: None,
}
# By kind and size: `long` and `longlong` are both int64 here.
_WIRE_DTYPES: Final = {(dtype.kind, dtype.itemsize): code for code, dtype in _NUMPY_DTYPES.items() if dtype is not None}
_WIRE_NAMES: Final = {code: "BYTES" if code == BYTES else "BIT" if code == BIT else str(dtype) for code, dtype in _NUMPY_DTYPES.items()}


class TensorLayout(NamedTuple):
    """How an array goes onto the wire."""

    dtype: int
    major_order: int
    shape: tuple[int, ...]


def wire_dtype(dtype: npt.DTypeLike) -> int:
    """The wire's number for a numpy dtype. A `TypeError` says what to do about a dtype that the wire does not have."""
    found = _as_dtype(dtype)
    code = _WIRE_DTYPES.get((found.kind, found.itemsize))
    if code is None:
        raise _no_wire_dtype(str(found))
    if not found.isnative:
        raise _refused_dtype(f"dtype {found.str!r} is byte-swapped", "array.astype(array.dtype.newbyteorder('='))")
    return code


def numpy_dtype(code: int) -> np.dtype[Any] | None:
    """The numpy dtype of a wire number, None for BYTES and BIT, which numpy does not have."""
    try:
        return _NUMPY_DTYPES[code]
    except KeyError:
        raise ProtocolError(f"{code} is not a dtype", name="TensorHeader", field="dtype", rule="W-15.8-1") from None


def dtype_name(code: int) -> str:
    """`uint16`, `bool`, `BYTES`: for people."""
    numpy_dtype(code)
    return _WIRE_NAMES[code]


def element_size(code: int) -> int:
    """Bytes of one element; 1 for BOOLEAN, BYTES and BIT."""
    dtype = numpy_dtype(code)
    return 1 if dtype is None else dtype.itemsize


def validate_publishable(array: npt.NDArray[Any]) -> TensorLayout:
    """How to publish `array`, or a `TypeError` or `ValueError` that says why it cannot be.

    COLUMN order is for arrays that are contiguous in Fortran's order only. A strided array gets the layout of its contiguous copy, which is
    the caller's to make (`numpy.ascontiguousarray`).
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"a tensor is a numpy array, not {type(array).__name__}\n\nhint: numpy.asarray(…) makes one of most things")
    code = wire_dtype(array.dtype)
    validate_shape(array.shape, array.itemsize)
    flags = array.flags
    return TensorLayout(code, COLUMN_MAJOR if flags.f_contiguous and not flags.c_contiguous else ROW_MAJOR, array.shape)


def validate_shape(shape: Sequence[int], element_bytes: int) -> int:
    """The bytes of a tensor of this shape; `ValueError` when the wire cannot carry it."""
    if not 1 <= len(shape) <= MAX_DIMS:
        hint = "array.reshape(1)" if not shape else "join dimensions with array.reshape(…)"
        raise ValueError(f"a tensor has 1 to {MAX_DIMS} dimensions, this one has {len(shape)}\n\nhint: {hint}")
    if any(extent < 0 for extent in shape):
        raise ValueError(f"shape {tuple(shape)} has a negative dimension")
    nbytes = math.prod(shape) * element_bytes
    if nbytes > MAX_TENSOR_BYTES or max(shape) > MAX_TENSOR_BYTES:
        raise ValueError(f"shape {tuple(shape)} needs {nbytes} bytes, a tensor has at most {MAX_TENSOR_BYTES}\n\nhint: publish it in parts")
    return nbytes


def next_stride_bytes(nbytes: int) -> int:
    """The smallest pool stride (64·2^k) that holds `nbytes`."""
    if not 0 <= nbytes <= MAX_TENSOR_BYTES:
        raise ValueError(f"a slot holds 0 to {MAX_TENSOR_BYTES} bytes, not {nbytes}")
    return max(SMALLEST_STRIDE_BYTES, 1 << (nbytes - 1).bit_length()) if nbytes else SMALLEST_STRIDE_BYTES


def is_stride_bytes(stride_bytes: int) -> bool:
    """Whether a pool may have this stride: a power of two from 64 to 2^31."""
    return SMALLEST_STRIDE_BYTES <= stride_bytes <= LARGEST_STRIDE_BYTES and stride_bytes.bit_count() == 1


def resolve_strides(element_bytes: int, major_order: int, shape: Sequence[int], strides: Sequence[int] | None) -> tuple[int, ...]:
    """The bytes between neighbours in each dimension; a stride of 0, and None, mean contiguous.

    `ProtocolError` for layouts that overlap, run backwards or contradict the major order. A dimension of 0 counts as 1.
    """
    if major_order not in (ROW_MAJOR, COLUMN_MAJOR):
        raise ProtocolError(f"{major_order} is not a major order", name="TensorHeader", field="major_order", rule="W-15.8-1")
    if not 1 <= len(shape) <= MAX_DIMS:
        raise ProtocolError(f"{len(shape)} dimensions, 1 to {MAX_DIMS} are allowed", name="TensorHeader", field="ndims", rule="W-8.2-13")
    if any(extent < 0 for extent in shape):
        raise ProtocolError(f"negative dimension in {tuple(shape)}", name="TensorHeader", field="dims", rule="W-8.2-21")
    if strides is not None and len(strides) != len(shape):
        raise ProtocolError(f"{len(strides)} strides for {len(shape)} dimensions", name="TensorHeader", field="strides", rule="W-8.2-21")
    resolved = [0] * len(shape)
    smallest = element_bytes
    for index in reversed(range(len(shape))) if major_order == ROW_MAJOR else range(len(shape)):
        stride = strides[index] if strides is not None else 0
        if stride < 0:
            raise ProtocolError(f"negative stride {stride}", name="TensorHeader", field="strides", rule="W-8.2-20")
        if 0 < stride < smallest:
            reason = f"strides {tuple(strides or ())} overlap or contradict the major order: dimension {index} needs at least {smallest}"
            raise ProtocolError(reason, name="TensorHeader", field="strides", rule="W-8.2-21")
        resolved[index] = stride or smallest
        smallest = resolved[index] * max(shape[index], 1)
    return tuple(resolved)


def array_from_buffer(
    buffer: Buffer, dtype_code: int, major_order: int, shape: Sequence[int], strides: Sequence[int] | None = None
) -> npt.NDArray[Any]:
    """An array over `buffer`, without a copy, read-only or writable as the buffer is. It keeps the buffer alive.

    `ProtocolError` when the layout is not one, or reaches beyond the buffer; `TypeError` for BYTES and BIT.
    """
    dtype = numpy_dtype(dtype_code)
    if dtype is None:
        raise TypeError(f"{dtype_name(dtype_code)} frames have no numpy dtype\n\nhint: read the bytes and the header instead")
    resolved = resolve_strides(dtype.itemsize, major_order, shape, strides)
    view = memoryview(buffer)
    # numpy's own check adds up in 64 bits, which eight large strides overflow: here nothing does
    extent = 0 if 0 in shape else sum((size - 1) * stride for size, stride in zip(shape, resolved, strict=True)) + dtype.itemsize
    try:
        if extent > view.nbytes:
            raise ValueError("beyond the buffer")
        return np.ndarray(shape, dtype, view, strides=resolved)
    except (TypeError, ValueError, OverflowError) as error:
        reason = f"{dtype} of shape {tuple(shape)} and strides {resolved} does not fit {view.nbytes} bytes"
        raise ProtocolError(reason, name="TensorHeader", field="dims", rule="W-10.2.1-14") from error


def _as_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    if isinstance(dtype, np.dtype):
        return dtype
    if dtype is None:  # numpy would say float64
        raise TypeError("a tensor needs a dtype, for example 'uint16'")
    try:
        return np.dtype(dtype)
    except TypeError:
        raise _no_wire_dtype(str(dtype)) from None


def _no_wire_dtype(name: str) -> TypeError:
    if name in ("float16", ">f2", "bfloat16"):
        hint = "array.view(numpy.uint16) publishes the bits, and the reader views them back; or array.astype(numpy.float32)"
    elif name in ("complex64", "complex128"):
        real = "numpy.float32" if name == "complex64" else "numpy.float64"
        hint = f"array.view({real}) puts real and imaginary parts side by side; array.astype('complex64').view(numpy.float32) is shorter"
    else:
        hint = f"the dtypes are {', '.join(str(dtype) for dtype in _NUMPY_DTYPES.values() if dtype is not None)}"
    return _refused_dtype(f"dtype {name} is not one that the wire has", hint)


def _refused_dtype(reason: str, hint: str) -> TypeError:
    return TypeError(f"{reason}\n\nhint: {hint}")
