"""What a reader believes of a slot: a valid one is broken field by field, and each break is counted once and delivers nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from tests.unit.native import rings
from tests.unit.native.rings import COLUMN, EPOCH, Ring, counted, publish

MAX_I32 = 2**31 - 1


class Break(NamedTuple):
    """Bytes over a field of a good slot."""

    offset: int
    layout: str
    values: tuple[int, ...]

    def apply(self, ring: Ring, seq: int) -> None:
        ring.patch(seq, self.offset, self.layout, *self.values)


def breaks(rule: str, offset: int, layout: str, *alternatives: int | tuple[int, ...]) -> list[object]:
    marks = [pytest.mark.requirement(name) for name in rule.split()]
    made = (value if isinstance(value, tuple) else (value,) for value in alternatives)
    return [pytest.param(Break(offset, layout, values), marks=marks, id=f"{offset}-{values}") for values in made]


BROKEN = [
    *breaks("W-8.3-8 W-15.18-3", rings.HEADER_LENGTH, "I", 0, 184, 191, 193, 200, 2**32 - 1),
    *breaks("W-8.3-8", rings.EMBEDDED_BLOCK_LENGTH, "H", 0, 183, 185, 192),
    *breaks("W-8.3-8 W-15.21-3", rings.EMBEDDED_TEMPLATE, "H", 0, 51, 53),
    *breaks("W-8.3-9 W-15.21-3", rings.EMBEDDED_SCHEMA, "H", 1, 901),
    *breaks("W-8.3-9 W-15.21-3", rings.EMBEDDED_VERSION, "H", 0, 2, 9),
    *breaks("W-8.2-15", rings.PAYLOAD_OFFSET, "I", 1, 64, 2**32 - 1),
    *breaks("W-10.2.1-13 W-15.5-2", rings.PAYLOAD_SLOT, "I", 0, 3, 8, 2**32 - 1),
    *breaks("W-15.21-6", rings.POOL_ID, "H", 0, 2, 65535),
    *breaks("W-10.2.1-14", rings.VALUES_LEN, "I", 4097, 2**31, 2**32 - 1),
    *breaks("W-15.21-6", rings.VALUES_LEN, "I", 1, 95),
    *breaks("W-15.8-1", rings.DTYPE, "h", 0, 12, 15, 99, 255, -1),
    *breaks("W-15.21-6", rings.DTYPE, "h", 10, 7),  # twice the bytes
    *breaks("W-15.8-1", rings.MAJOR_ORDER, "h", 0, 3, 7, -1),
    *breaks("W-8.2-13", rings.NDIMS, "B", 0, 9, 255),
    *breaks(
        "W-15.21-6", rings.DIMS, "3i", (-1, 3, 4), (2, -3, 4), (3, 3, 4), (MAX_I32, MAX_I32, MAX_I32), (MAX_I32, 1, 1), (-(2**31), 3, 4)
    ),
    *breaks("W-8.2-20", rings.STRIDES, "3i", (-48, 16, 4), (48, -16, 4), (0, 0, -4), (-(2**31), 0, 0)),
    *breaks("W-8.2-21", rings.STRIDES, "3i", (47, 16, 4), (48, 12, 4), (16, 16, 4), (1, 1, 1), (0, 8, 0), (0, 0, 1)),
    *breaks("W-8.2-21", rings.STRIDES, "3i", (4, 8, 24)),  # columns, and the header says rows
    *breaks("W-15.21-6", rings.STRIDES, "3i", (49, 0, 0), (0, 0, 5), (MAX_I32, 0, 0), (0, MAX_I32, 0), (0, 0, MAX_I32)),
    *breaks("W-8.2-23", rings.PROGRESS_UNIT, "BI", (1, 0), (1, 4), (1, 47), (1, 2**32 - 1), (2, 0), (2, 48)),
    *breaks("W-15.8-1", rings.PROGRESS_UNIT, "BI", (3, 48), (9, 48), (255, 0)),
]


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("how", ["read", "newest", "read_into", "borrow"])
def test_a_broken_header_is_counted_invalid_and_never_delivered(eight_slots: Ring, fault: Break, how: str) -> None:
    writer = eight_slots.writer()
    reader = eight_slots.reader()
    publish(writer, b"before")
    seq = publish(writer, np.arange(24, dtype=np.float32), (2, 3, 4), dtype=rings.FLOAT32)
    fault.apply(eight_slots, seq)
    reader.inject(EPOCH, seq)

    out = bytearray(4096)
    frame = {
        "read": lambda: reader.read(0),
        "newest": lambda: reader.read(0, newest=True),
        "read_into": lambda: reader.read_into(out, 0),
        "borrow": lambda: reader.borrow(0),
    }[how]()
    assert frame is None
    assert out == bytes(4096)
    assert counted(reader) == {"gap": 1, "invalid": 1}

    # the stream goes on
    reader.inject(EPOCH, publish(writer, b"after"))
    after = reader.read(0)
    assert after is not None
    assert bytes(memoryview(after.buffer)) == b"after"


GOOD = [
    *breaks("W-8.2-6", rings.SLOT_PAD, "26B", (255,) * 26),
    *breaks("W-8.2-25", rings.TENSOR_PAD, "109B", (255,) * 109),
    *breaks("W-8.2-25", rings.PAD_ALIGN, "B", 255),
    *breaks("W-8.2-17", rings.DIMS + 12, "5i", (-1,) * 5),
    *breaks("W-8.2-17", rings.STRIDES + 12, "5i", (-1,) * 5),
    *breaks("W-8.2-18", rings.STRIDES, "3i", (48, 16, 4), (0, 16, 4), (48, 0, 0), (0, 0, 4)),
    *breaks("W-8.2-23", rings.PROGRESS_UNIT, "BI", (1, 48), (2, 16), (0, 12345)),
]


@pytest.mark.parametrize("change", GOOD)
def test_what_the_rules_leave_free_is_accepted(eight_slots: Ring, change: Break) -> None:
    writer = eight_slots.writer()
    reader = eight_slots.reader()
    values = np.arange(24, dtype=np.float32)
    seq = publish(writer, values, (2, 3, 4), dtype=rings.FLOAT32)
    change.apply(eight_slots, seq)
    reader.inject(EPOCH, seq)
    frame = reader.read(0)
    assert frame is not None
    assert frame.shape == (2, 3, 4)
    assert frame.strides is None
    assert bytes(memoryview(frame.buffer)) == values.tobytes()
    assert counted(reader) == {"delivered": 1}


@pytest.mark.requirement("W-8.2-18")
@pytest.mark.parametrize(
    ("strides", "resolved", "major_order"),
    [
        ((64, 0, 0), (64, 16, 4), rings.ROW),
        ((0, 32, 0), (96, 32, 4), rings.ROW),
        ((0, 0, 8), (96, 32, 8), rings.ROW),
        ((100, 32, 6), (100, 32, 6), rings.ROW),
        ((4, 8, 32), (4, 8, 32), COLUMN),
        ((0, 0, 32), (4, 8, 32), COLUMN),
        ((8, 0, 0), (8, 16, 48), COLUMN),
    ],
)
def test_padded_strides_that_stay_inside_are_delivered(
    eight_slots: Ring, strides: tuple[int, ...], resolved: tuple[int, ...], major_order: int
) -> None:
    writer = eight_slots.writer()
    reader = eight_slots.reader()
    payload = bytes(range(256))
    seq = publish(writer, payload)
    eight_slots.patch(seq, rings.DTYPE, "hhB", rings.FLOAT32, major_order, 3)
    eight_slots.patch(seq, rings.DIMS, "3i", 2, 3, 4)
    eight_slots.patch(seq, rings.STRIDES, "3i", *strides)
    reader.inject(EPOCH, seq)
    frame = reader.read(0)
    assert frame is not None
    assert (frame.shape, frame.strides, frame.nbytes) == ((2, 3, 4), resolved, 256)
    array = np.ndarray(frame.shape, np.float32, memoryview(frame.buffer), strides=frame.strides)
    last = sum((dim - 1) * stride for dim, stride in zip(frame.shape, resolved, strict=True))
    assert array[1, 2, 3].tobytes() == payload[last : last + 4]


def test_the_last_element_may_end_with_the_payload_and_no_byte_later(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    reader = eight_slots.reader()
    for nbytes in (124, 123):
        seq = publish(writer, bytes(nbytes))
        eight_slots.patch(seq, rings.DTYPE, "hhB", rings.FLOAT32, rings.ROW, 2)
        eight_slots.patch(seq, rings.DIMS, "2i", 2, 15)
        eight_slots.patch(seq, rings.STRIDES, "2i", 64, 4)
        reader.inject(EPOCH, seq)
    frame = reader.read(0)
    assert frame is not None
    assert frame.nbytes == 124
    assert reader.read(0) is None
    assert counted(reader) == {"delivered": 1, "invalid": 1}


@pytest.mark.requirement("W-8.2-30")
def test_an_empty_frame_touches_no_payload(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    reader = eight_slots.reader()
    # every access behind the superblock would be a SIGBUS
    with open(eight_slots.pools[0][2].path, "r+b") as pool:
        pool.truncate(64)
    for shape in ((0,), (0, 5), (3, 0)):
        reader.inject(EPOCH, publish(writer, b"", shape))
    seq = publish(writer, b"", (0,))
    eight_slots.patch(seq, rings.DIMS, "i", 1000)
    reader.inject(EPOCH, seq)
    shapes = []
    for _ in range(2):
        frame = reader.read(0)
        lent = reader.borrow(0)
        assert frame is not None
        assert lent is not None
        assert memoryview(frame.buffer).nbytes == memoryview(lent.buffer).nbytes == 0
        shapes += [frame.shape, lent.shape]
        assert frame.strides is None
    # a promise without a payload is an empty array
    assert shapes == [(0,), (0, 5), (3, 0), (0,)]
