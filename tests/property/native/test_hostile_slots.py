"""Bytes at random: whatever a slot holds, a reader delivers what an array can be made of, or counts."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensor_pool._native import FrameReader, ReadFrame, RingWriter
from tests.unit.native import rings
from tests.unit.native.rings import EPOCH, Ring, balances, publish, ring

ELEMENT = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 8, 8: 8, 9: 4, 10: 8, 11: 1, 13: 1, 14: 1}
RELAXED = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NUMBER = st.one_of(st.sampled_from([0, 1, 2, 8, 9, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
CHANGE = st.tuples(st.integers(8, 255), st.sampled_from("BHI"), NUMBER)

Handles = tuple[Ring, RingWriter, FrameReader]


@pytest.fixture
def handles() -> Iterator[Handles]:
    with ring() as made:
        yield made, made.writer(), made.reader()


def assert_sound(frame: ReadFrame) -> None:
    """Every element inside the payload, none over another: recomputed here from the specification, in numbers without a limit."""
    assert 1 <= len(frame.shape) <= 8
    assert all(dim >= 0 for dim in frame.shape)
    element = ELEMENT[frame.dtype]
    order = range(len(frame.shape)) if frame.major_order == rings.COLUMN else reversed(range(len(frame.shape)))
    end, span = element, element
    for axis in order:
        stride = frame.strides[axis] if frame.strides is not None else span
        assert stride >= span
        end += (max(frame.shape[axis], 1) - 1) * stride
        span = stride * max(frame.shape[axis], 1)
    buffer = frame.buffer
    assert buffer is not None
    assert memoryview(buffer).nbytes == frame.nbytes <= 4096
    if 0 not in frame.shape:
        assert end <= frame.nbytes
        strides = frame.strides
        array = np.ndarray(frame.shape, f"V{element}", memoryview(buffer), strides=strides, order="F" if frame.major_order == 2 else "C")
        array.tobytes()


@RELAXED
@given(
    changes=st.lists(CHANGE, min_size=1, max_size=6),
    borrow=st.booleans(),
)
@pytest.mark.requirement("W-15.21-6")
def test_a_slot_with_random_bytes_over_it_is_delivered_soundly_or_counted(
    handles: Handles, changes: list[tuple[int, str, int]], borrow: bool
) -> None:
    made, writer, reader = handles
    before = reader.counters()
    seq = publish(writer, np.arange(24, dtype=np.float32), (2, 3, 4), dtype=rings.FLOAT32)
    for offset, layout, value in changes:
        size = struct.calcsize(layout)
        made.patch(seq, min(offset, 256 - size), layout, value % (1 << 8 * size))
    reader.inject(EPOCH, seq)
    frame = reader.borrow(0) if borrow else reader.read(0)
    after = reader.counters()
    if frame is not None:
        assert_sound(frame)
    assert after["delivered"] - before["delivered"] == (frame is not None)
    assert after["invalid"] - before["invalid"] == (frame is None)
    assert balances(after)


@st.composite
def tensor_headers(draw: st.DrawFn) -> bytes:
    """TensorHeaders that are nearly right, so that the deep checks are reached."""
    ndims = draw(st.integers(1, 8))
    dims = draw(st.lists(st.one_of(st.integers(0, 5), st.sampled_from([-1, 2**31 - 1, 65536])), min_size=ndims, max_size=ndims))
    strides = draw(
        st.lists(st.one_of(st.just(0), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 4096, -4, 2**31 - 1])), min_size=ndims, max_size=ndims)
    )
    padding = [0] * (8 - ndims)
    dtype, major_order = draw(st.sampled_from([*ELEMENT, 0, 12])), draw(st.sampled_from([1, 2]))
    unit, progress_stride = draw(st.sampled_from([0, 0, 1, 2])), draw(st.sampled_from([0, 4, 8, 64]))
    return struct.pack("<hhBBBI16i", dtype, major_order, ndims, 0, unit, progress_stride, *dims, *padding, *strides, *padding)


@RELAXED
@given(header=tensor_headers(), values_len=st.one_of(st.integers(0, 300), st.sampled_from([4096, 4097])))
@pytest.mark.requirement("W-8.2-21")
@pytest.mark.requirement("W-10.2.1-14")
def test_shapes_and_strides_that_do_not_fit_are_never_delivered(handles: Handles, header: bytes, values_len: int) -> None:
    made, writer, reader = handles
    seq = publish(writer, b"")
    made.header.write(made.slot_offset(seq) + rings.DTYPE, header)
    made.patch(seq, rings.VALUES_LEN, "I", values_len)
    reader.inject(EPOCH, seq)
    frame = reader.read(0)
    if frame is not None:
        assert_sound(frame)


@RELAXED
@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    dtype=st.sampled_from(sorted(ELEMENT)),
    major_order=st.sampled_from([1, 2]),
    data=st.data(),
)
def test_whatever_is_published_is_delivered_byte_for_byte(
    handles: Handles, shape: list[int], dtype: int, major_order: int, data: st.DataObject
) -> None:
    _, writer, reader = handles
    nbytes = int(np.prod(shape, dtype=object)) * ELEMENT[dtype]
    if nbytes > 4096:
        shape, nbytes = [ELEMENT[dtype]], ELEMENT[dtype] ** 2
    payload = bytes(data.draw(st.binary(min_size=64, max_size=64)) * 64)[:nbytes]
    stamps = data.draw(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)))
    seq = publish(writer, payload, shape, dtype=dtype, major_order=major_order, timestamp_ns=stamps[0], meta_version=stamps[1])
    trace_id = data.draw(st.integers(0, 2**64 - 1))
    reader.inject(EPOCH, seq, None, trace_id)
    frame = reader.read(0)
    assert frame is not None
    assert_sound(frame)
    assert (frame.seq, frame.shape, frame.dtype, frame.major_order) == (seq, tuple(shape), dtype, major_order)
    assert (frame.timestamp_ns, frame.meta_version, frame.trace_id) == (*stamps, trace_id)
    assert frame.strides is None
    assert bytes(memoryview(frame.buffer)) == payload
