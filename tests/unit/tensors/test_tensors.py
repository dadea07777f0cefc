from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tensor_pool.errors import ProtocolError
from tensor_pool.tensors import (
    COLUMN_MAJOR,
    MAX_TENSOR_BYTES,
    ROW_MAJOR,
    array_from_buffer,
    dtype_name,
    element_size,
    is_stride_bytes,
    next_stride_bytes,
    numpy_dtype,
    resolve_strides,
    validate_publishable,
    validate_shape,
    wire_dtype,
)

UINT8, UINT16, FLOAT64 = 1, 3, 10


@pytest.mark.parametrize("dtype", ["float16", np.float16, "bfloat16", ">f2"])
def test_half_floats_are_refused_with_a_hint_to_view_their_bits(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"hint: array\.view\(numpy\.uint16\)"):
        wire_dtype(dtype)


@pytest.mark.parametrize("dtype", ["complex64", np.complex128])
def test_complex_numbers_are_refused_with_a_hint_to_view_them_as_floats(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"hint: .*view\(numpy\.float32\)"):
        wire_dtype(dtype)


@pytest.mark.parametrize("dtype", ["U3", "S3", object, [("x", "u1")], "datetime64[ns]", np.longdouble, "nonsense"])
def test_other_dtypes_are_refused_with_the_list_of_those_that_exist(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"hint: the dtypes are uint8, .*float64, bool"):
        wire_dtype(dtype)


def test_no_dtype_is_not_taken_for_float64() -> None:
    with pytest.raises(TypeError, match="needs a dtype"):
        wire_dtype(None)


@pytest.mark.parametrize("dtype", [">u2", ">f8", ">i4"])
def test_byte_swapped_dtypes_are_refused_with_the_conversion_as_hint(dtype: str) -> None:
    with pytest.raises(TypeError, match="byte-swapped"):
        wire_dtype(dtype)
    swapped = np.arange(3).astype(dtype)
    wire_dtype(swapped.astype(swapped.dtype.newbyteorder("=")).dtype)  # what the hint says works


def test_c_names_of_a_size_are_the_same_wire_dtype() -> None:
    assert wire_dtype("longlong") == wire_dtype("long") == wire_dtype(np.int64)


def test_names_of_dtypes_are_numpys_where_there_is_one() -> None:
    assert [dtype_name(code) for code in (3, 11, 13, 14)] == ["uint16", "bool", "BYTES", "BIT"]


def test_a_publishable_array_tells_its_layout() -> None:
    array = np.zeros((4, 5), np.uint16)
    assert validate_publishable(array) == (UINT16, ROW_MAJOR, (4, 5))
    assert validate_publishable(np.asfortranarray(array)) == (UINT16, COLUMN_MAJOR, (4, 5))
    assert validate_publishable(array[:, ::2]) == (UINT16, ROW_MAJOR, (4, 3))


def test_arrays_that_are_both_row_and_column_major_go_as_row_major() -> None:
    assert validate_publishable(np.zeros(7, np.uint8)).major_order == ROW_MAJOR
    assert validate_publishable(np.zeros((0, 3), np.uint8)) == (UINT8, ROW_MAJOR, (0, 3))


@pytest.mark.parametrize("shape", [(), (1,) * 9])
def test_arrays_of_no_or_nine_dimensions_are_not_publishable(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="1 to 8 dimensions") as caught:
        validate_publishable(np.zeros(shape, np.uint8))
    assert "hint: " in str(caught.value)


@pytest.mark.parametrize("thing", [[1, 2], b"bytes", memoryview(b"x"), 1.0, None])
def test_what_is_no_array_is_not_publishable(thing: Any) -> None:
    with pytest.raises(TypeError, match="a tensor is a numpy array"):
        validate_publishable(thing)


def test_two_gibibytes_are_too_many() -> None:
    largest = np.broadcast_to(np.uint8(0), (MAX_TENSOR_BYTES,))  # no memory behind it
    assert validate_publishable(largest).shape == (MAX_TENSOR_BYTES,)
    with pytest.raises(ValueError, match="at most 2147483647"):
        validate_publishable(np.broadcast_to(np.uint8(0), (2, 2**30)))
    with pytest.raises(ValueError, match="at most 2147483647"):
        validate_shape((0, 2**31), 1)
    with pytest.raises(ValueError, match="negative"):
        validate_shape((4, -1), 1)


@pytest.mark.parametrize(
    ("nbytes", "stride"),
    [(0, 64), (1, 64), (64, 64), (65, 128), (655_360, 1 << 20), (1 << 20, 1 << 20), ((1 << 20) + 1, 1 << 21), (2**31 - 1, 2**31)],
)
def test_the_next_stride_is_the_smallest_that_fits(nbytes: int, stride: int) -> None:
    assert next_stride_bytes(nbytes) == stride


@pytest.mark.parametrize("nbytes", [-1, 2**31])
def test_there_is_no_stride_for_an_impossible_size(nbytes: int) -> None:
    with pytest.raises(ValueError, match=str(nbytes)):
        next_stride_bytes(nbytes)


def test_strides_of_pools_are_powers_of_two_from_64() -> None:
    assert [stride for stride in (-64, 0, 32, 64, 96, 128, 192, 4096, 2**31, 2**32) if is_stride_bytes(stride)] == [64, 128, 4096, 2**31]


def test_an_array_shares_the_memory_of_its_buffer() -> None:
    buffer = bytearray(12)
    array = array_from_buffer(buffer, UINT16, ROW_MAJOR, (2, 3))
    array[1, 2] = 0x0102
    assert buffer[-2:] == b"\x02\x01"
    buffer[0] = 9
    assert array[0, 0] == 9


def test_an_array_over_a_read_only_buffer_is_read_only() -> None:
    array = array_from_buffer(bytes(4), UINT8, ROW_MAJOR, (4,))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_an_array_keeps_its_buffer_alive() -> None:
    array = array_from_buffer(bytearray(b"abcd"), UINT8, ROW_MAJOR, (4,))
    gc.collect()
    assert array.tobytes() == b"abcd"


def test_a_buffer_may_be_longer_than_the_tensor() -> None:
    assert array_from_buffer(b"abcdef", UINT8, ROW_MAJOR, (2, 2)).tolist() == [[97, 98], [99, 100]]


def test_column_major_counts_the_first_dimension_fastest() -> None:
    array = array_from_buffer(bytes(range(6)), UINT8, COLUMN_MAJOR, (2, 3))
    assert array.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_rows_may_be_padded() -> None:
    array = array_from_buffer(b"abc.def.", UINT8, ROW_MAJOR, (2, 3), (4, 1))
    assert array.tobytes() == b"abcdef"


def test_a_zero_stride_is_inferred() -> None:
    assert resolve_strides(8, ROW_MAJOR, (2, 3, 4), (0, 64, 0)) == (192, 64, 8)
    assert resolve_strides(8, COLUMN_MAJOR, (2, 3, 4), None) == (8, 16, 48)
    assert resolve_strides(2, ROW_MAJOR, (5, 0, 3), (0, 0, 0)) == (6, 6, 2)


@pytest.mark.parametrize(("code", "name"), [(13, "BYTES"), (14, "BIT")])
def test_bytes_and_bits_never_become_an_array(code: int, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} frames have no numpy dtype"):
        array_from_buffer(bytes(8), code, ROW_MAJOR, (8,))


@pytest.mark.parametrize(
    ("code", "major_order", "shape", "strides", "field"),
    [
        (0, 1, (4,), None, "dtype"),
        (12, 1, (4,), None, "dtype"),
        (UINT8, 0, (4,), None, "major_order"),
        (UINT8, 7, (4,), None, "major_order"),
        (UINT8, 1, (), None, "ndims"),
        (UINT8, 1, (1,) * 9, None, "ndims"),
        (UINT8, 1, (-1,), None, "dims"),
        (UINT8, 1, (9,), None, "dims"),
        (FLOAT64, 1, (2,), None, "dims"),
        (UINT8, 1, (2, 2), (5, 1), "dims"),
        (UINT8, 1, (2**31 - 1,) * 8, None, "dims"),
        (UINT8, 1, (2, 2), (2,), "strides"),
        (UINT8, 1, (2, 2), (-2, 1), "strides"),
        (UINT8, 1, (2, 2), (1, 1), "strides"),
        (UINT8, 1, (2, 2), (1, 2), "strides"),
        (UINT8, 2, (2, 2), (2, 1), "strides"),
        (UINT16, 1, (2,), (1,), "strides"),
    ],
)
def test_layouts_that_cannot_be_trusted_are_protocol_errors(
    code: int, major_order: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, field: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        array_from_buffer(bytes(6), code, major_order, shape, strides)
    assert caught.value.field == field


def test_an_unknown_dtype_has_no_size_name_or_numpy_dtype() -> None:
    for question in (element_size, dtype_name, numpy_dtype):
        with pytest.raises(ProtocolError, match="99 is not a dtype"):
            question(99)


@pytest.mark.parametrize("ndims", range(2, 9))
@pytest.mark.parametrize("strides", [None, 2**31 - 1, 2**30])
def test_layouts_that_overflow_64_bits_do_not_reach_beyond_the_buffer(ndims: int, strides: int | None) -> None:
    shape = [2**31 - 1] * (ndims - 1) + [2]
    given = None if strides is None else [strides] + [0] * (ndims - 1)
    for order in (ROW_MAJOR, COLUMN_MAJOR):
        with pytest.raises(ProtocolError):
            array_from_buffer(b"12345678", 1, order, shape, given)
