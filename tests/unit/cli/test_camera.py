"""The synthetic camera of `publish`."""

from __future__ import annotations

import numpy as np
import pytest

from tensor_pool.cli.camera import TURN_FRAMES, SyntheticCamera, narrowest_row
from tensor_pool.stamp import carries_seq, stamp_seq


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("height", [1, 8, 9, 40])
def test_every_frame_of_every_shape_carries_its_seq(dtype: str, height: int) -> None:
    for width in (narrowest_row(dtype), 8, 9, 64):
        camera = SyntheticCamera((height, width), dtype)
        out = np.empty((height, width), dtype)
        for seq in range(0, TURN_FRAMES, 37):
            camera.expose(out, seq)
            assert carries_seq(out, seq)


def test_the_stars_move() -> None:
    camera = SyntheticCamera((40, 48), "uint16")
    first, later = np.empty((40, 48), np.uint16), np.empty((40, 48), np.uint16)
    camera.expose(first, 1)
    camera.expose(later, 100)
    assert not (first[:, 4:] == later[:, 4:]).all()


@pytest.mark.parametrize(
    "array", [np.zeros((4, 7), np.uint8), np.zeros(3, np.uint16), np.zeros((2, 0), np.float64), np.zeros((), np.uint64)]
)
def test_rows_without_room_for_a_seq_carry_none(array: np.ndarray) -> None:
    assert not carries_seq(array, 0)
    with pytest.raises(ValueError, match="no room for a stamp"):
        stamp_seq(array, 0)
