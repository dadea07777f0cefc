from __future__ import annotations

from contextlib import suppress

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensor_pool.errors import ProtocolError
from tensor_pool.tensors import COLUMN_MAJOR, array_from_buffer, element_size, next_stride_bytes, numpy_dtype, validate_publishable

numpy_codes = st.integers(1, 11)
shapes = hnp.array_shapes(min_dims=1, max_dims=8, min_side=0, max_side=4)


@given(numpy_codes, shapes, st.booleans(), st.data())
def test_an_array_comes_back_from_its_bytes_and_layout(code: int, shape: tuple[int, ...], column_major: bool, data: st.DataObject) -> None:
    dtype = numpy_dtype(code)
    assert dtype is not None
    array = np.asarray(data.draw(hnp.arrays(dtype, shape)), order="F" if column_major else "C")
    layout = validate_publishable(array)
    payload = array.tobytes(order="F" if layout.major_order == COLUMN_MAJOR else "C")
    back = array_from_buffer(payload, *layout)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@given(
    st.binary(max_size=64),
    st.integers(-1, 15),
    st.integers(-1, 3),
    st.lists(st.integers(-2, 6) | st.sampled_from([2**31 - 1, -(2**31)]), max_size=9),
    st.none() | st.lists(st.integers(-2, 20) | st.sampled_from([2**31 - 1]), max_size=9),
)
def test_whatever_a_header_says_no_array_reaches_beyond_its_buffer(
    payload: bytes, code: int, major_order: int, shape: list[int], strides: list[int] | None
) -> None:
    with suppress(ProtocolError, TypeError):
        array = array_from_buffer(payload, code, major_order, shape, strides)
        low, high = np.lib.array_utils.byte_bounds(array)
        start = np.frombuffer(payload, np.uint8).__array_interface__["data"][0] if payload else low
        assert array.size == 0 or start <= low <= high <= start + len(payload)
        extent = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)) + element_size(code)
        assert array.size == 0 or extent <= len(payload)


@given(st.integers(1, 2**31 - 1))
def test_the_next_stride_fits_and_half_of_it_would_not(nbytes: int) -> None:
    stride = next_stride_bytes(nbytes)
    assert nbytes <= stride
    assert stride == 64 or stride // 2 < nbytes
