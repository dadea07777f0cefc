"""The numbers of wire 15.8 as numpy sees them."""

from __future__ import annotations

import numpy as np
import pytest

from tensor_pool import tensors
from tensor_pool.errors import ProtocolError

REGISTRY = {
    1: np.uint8,
    2: np.int8,
    3: np.uint16,
    4: np.int16,
    5: np.uint32,
    6: np.int32,
    7: np.uint64,
    8: np.int64,
    9: np.float32,
    10: np.float64,
    11: np.bool_,
}


@pytest.mark.parametrize(("code", "scalar"), REGISTRY.items())
def test_each_number_is_its_numpy_dtype_both_ways(code: int, scalar: type[np.generic]) -> None:
    assert tensors.numpy_dtype(code) == np.dtype(scalar)
    assert tensors.wire_dtype(scalar) == code
    assert tensors.element_size(code) == np.dtype(scalar).itemsize


@pytest.mark.parametrize("code", [13, 14])
def test_bytes_and_bits_have_no_numpy_dtype_and_count_one_byte(code: int) -> None:
    assert tensors.numpy_dtype(code) is None
    assert tensors.element_size(code) == 1


@pytest.mark.requirement("W-15.8-2")
def test_twelve_and_every_number_outside_the_registry_is_refused() -> None:
    for code in (-32768, -1, 0, 12, 15, 99, 255, 32767):
        with pytest.raises(ProtocolError) as caught:
            tensors.numpy_dtype(code)
        assert caught.value.rule == "W-15.8-1"


def test_the_numbers_are_those_of_the_generated_codec() -> None:
    control = pytest.importorskip("tensor_pool.sbe.control")
    for code in control.Dtype:
        name = "bool" if code.name == "BOOLEAN" else code.name
        if code.name != "UNKNOWN":
            assert tensors.dtype_name(code).upper() == name.upper()
    assert (control.MajorOrder.ROW, control.MajorOrder.COLUMN) == (tensors.ROW_MAJOR, tensors.COLUMN_MAJOR)
