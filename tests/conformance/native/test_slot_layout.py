"""What a producer writes into a slot, byte by byte."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tensor_pool import _native
from tensor_pool._native import newest_committed_seq
from tensor_pool.errors import ClosedError, FrameTooLargeError, RegionError
from tensor_pool.sbe.control import Dtype, MajorOrder, ProgressUnit, SlotHeader
from tests.unit.native import rings
from tests.unit.native.rings import Ring, commit, publish

CAPTURE_NS = 0x0102_0304_0506_0708


def u16(slot: bytes, offset: int) -> int:
    return struct.unpack_from("<H", slot, offset)[0]


def u32(slot: bytes, offset: int) -> int:
    return struct.unpack_from("<I", slot, offset)[0]


def u64(slot: bytes, offset: int) -> int:
    return struct.unpack_from("<Q", slot, offset)[0]


@pytest.mark.requirement("W-8.1-1")
@pytest.mark.requirement("W-8.2-1")
@pytest.mark.requirement("W-8.2-3")
@pytest.mark.requirement("W-8.2-4")
@pytest.mark.requirement("W-8.2-7")
@pytest.mark.requirement("W-8.2-14")
@pytest.mark.requirement("W-8.2-26")
@pytest.mark.requirement("W-15.5-2")
def test_every_byte_of_a_slot_is_the_one_of_the_specification(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    for _ in range(13):
        publish(writer, b"x")
    image = np.arange(2 * 3 * 4, dtype=np.uint16).reshape(2, 3, 4)
    seq = publish(writer, image, image.shape, dtype=3, timestamp_ns=CAPTURE_NS, meta_version=77, trace_id=5)

    assert seq == 13
    expected = bytearray(256)
    struct.pack_into("<QIIHIQI", expected, 0, 13 << 1 | 1, 48, 5, 1, 0, CAPTURE_NS, 77)
    struct.pack_into("<I4H", expected, 60, 192, 184, 52, 900, 1)
    struct.pack_into("<hhBBBI", expected, 72, 3, 1, 3, 0, 0, 0)
    struct.pack_into("<8i", expected, 83, 2, 3, 4, 0, 0, 0, 0, 0)
    assert eight_slots.header.read(64 + 5 * 256, 256) == bytes(expected)


@pytest.mark.requirement("W-8.2-7")
@pytest.mark.requirement("W-8.2-31")
@pytest.mark.requirement("W-9-6")
def test_the_python_codec_reads_back_what_was_published(two_pools: Ring) -> None:
    writer = two_pools.writer()
    publish(writer, b"")
    columns = np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4))
    seq = publish(writer, columns, columns.shape, dtype=10, major_order=2, timestamp_ns=9, meta_version=3)

    slot = SlotHeader.decode_body(two_pools.slot(seq))
    assert (slot.seq_commit, slot.values_len_bytes, slot.payload_slot, slot.pool_id) == (3, 96, 1, 6)
    assert (slot.payload_offset, slot.timestamp_ns, slot.meta_version) == (0, 9, 3)
    header = slot.tensor_header
    assert header is not None
    assert (header.dtype, header.major_order, header.ndims) == (Dtype.FLOAT64, MajorOrder.COLUMN, 2)
    assert header.dims == (3, 4, 0, 0, 0, 0, 0, 0)
    assert header.strides == (0,) * 8
    assert (header.progress_unit, header.progress_stride_bytes, header.pad_align) == (ProgressUnit.NONE, 0, 0)
    assert two_pools.payload(seq, 1, 96) == columns.tobytes("F")


@pytest.mark.requirement("W-8.3-1")
@pytest.mark.requirement("W-8.3-3")
@pytest.mark.requirement("W-15.21-1")
def test_a_slot_is_in_progress_with_the_new_seq_until_it_is_committed(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    for _ in range(8):
        publish(writer, b"first lap")
    claim = writer.claim(16)
    assert u64(eight_slots.slot(0), rings.SEQ_COMMIT) == 8 << 1
    memoryview(claim)[:] = b"0123456789abcdef"
    assert u64(eight_slots.slot(0), rings.SEQ_COMMIT) == 8 << 1
    assert newest_committed_seq(eight_slots.header, 8) == 7
    assert commit(claim) == 8
    assert u64(eight_slots.slot(0), rings.SEQ_COMMIT) == 8 << 1 | 1
    assert newest_committed_seq(eight_slots.header, 8) == 8


@pytest.mark.requirement("W-8.3-2")
@pytest.mark.requirement("W-15.2-2")
@pytest.mark.requirement("W-10.2.1-2")
@pytest.mark.requirement("W-15.4-1")
def test_seqs_start_at_zero_and_rise_by_one_over_the_end_of_the_ring(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    for expected in range(20):
        assert writer.next_seq == expected
        assert publish(writer, bytes([expected])) == expected
        assert u64(eight_slots.slot(expected), rings.SEQ_COMMIT) == expected << 1 | 1
        assert u32(eight_slots.slot(expected), rings.PAYLOAD_SLOT) == expected % 8


@pytest.mark.requirement("W-9-1")
@pytest.mark.requirement("W-15.22-11")
@pytest.mark.requirement("W-15.22-13")
def test_payloads_lie_at_the_stride_of_their_pool_after_the_superblock() -> None:
    with rings.ring(nslots=4, strides=(64,)) as small:
        writer = small.writer()
        for seq in range(6):
            publish(writer, bytes([seq]) * 64)
        expected = b"".join(bytes([seq]) * 64 for seq in (4, 5, 2, 3))
        assert small.pools[0][2].read(0, 64 + 4 * 64) == bytes(64) + expected


@pytest.mark.requirement("W-9-3")
@pytest.mark.parametrize(("nbytes", "pool_id"), [(0, 6), (1, 6), (1024, 6), (1025, 5), (4096, 5), (4097, 7), (16384, 7)])
def test_the_smallest_pool_that_fits_takes_the_frame(nbytes: int, pool_id: int) -> None:
    # the smallest is neither the first nor the last that fits
    with rings.ring(strides=(4096, 1024, 16384), first_pool_id=5) as made:
        writer = made.writer()
        published = publish(writer, bytes(nbytes))
        assert u16(made.slot(published), rings.POOL_ID) == pool_id
        claim = writer.claim(nbytes)
        assert memoryview(claim).nbytes == nbytes
        assert u16(made.slot(commit(claim)), rings.POOL_ID) == pool_id


@pytest.mark.requirement("W-8.2-16")
@pytest.mark.requirement("W-8.3-4")
def test_nothing_of_an_older_frame_is_left_in_a_slot(eight_slots: Ring) -> None:
    eight_slots.header.write(64, b"\xaa" * (8 * 256))
    writer = eight_slots.writer()
    publish(writer, bytes(256), (2,) * 8)
    for _ in range(7):
        publish(writer, b"")
    seq = publish(writer, bytes(6), (2, 3))
    slot = eight_slots.slot(seq)
    assert struct.unpack_from("<8i", slot, rings.DIMS) == (2, 3, 0, 0, 0, 0, 0, 0)
    assert struct.unpack_from("<8i", slot, rings.STRIDES) == (0,) * 8
    assert slot[rings.TENSOR_PAD :] == bytes(109)
    assert slot[rings.SLOT_PAD : rings.HEADER_LENGTH] == bytes(26)


@pytest.mark.requirement("W-8.2-29")
@pytest.mark.requirement("W-8.2-31")
def test_an_empty_frame_is_committed_like_any_other(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    publish(writer, b"x")
    seq = publish(writer, b"", (0, 5))
    slot = eight_slots.slot(seq)
    assert u64(slot, rings.SEQ_COMMIT) == 3
    assert u32(slot, rings.VALUES_LEN) == 0
    assert u32(slot, rings.PAYLOAD_SLOT) == 1


@pytest.mark.requirement("W-9-4")
@pytest.mark.requirement("W-9-5")
@pytest.mark.parametrize("nbytes", [4097, 40_000])
def test_a_frame_that_fits_nowhere_is_refused_before_a_byte_is_written(two_pools: Ring, nbytes: int) -> None:
    writer = two_pools.writer()
    publish(writer, b"kept")
    before = two_pools.header.read(0, two_pools.header.length)
    for attempt in (lambda: publish(writer, bytes(nbytes)), lambda: writer.claim(nbytes)):
        with pytest.raises(FrameTooLargeError) as refused:
            attempt()
        assert (refused.value.need_bytes, refused.value.largest_stride_bytes) == (nbytes, 4096)
    assert two_pools.header.read(0, two_pools.header.length) == before
    assert writer.next_seq == 1
    assert writer.counters()["frames_dropped_too_large"] == 2
    assert publish(writer, b"next") == 1


@pytest.mark.requirement("W-8.2-12")
@pytest.mark.parametrize(
    ("payload", "dtype", "major_order", "shape"),
    [
        (b"", 1, 1, []),
        (b"x", 1, 1, []),
        (b"x", 1, 1, [1] * 9),
        (b"xy", 1, 1, [1]),
        (b"xyz", 3, 1, [1]),
        (b"x", 0, 1, [1]),
        (b"x", 12, 1, [1]),
        (b"x", 15, 1, [1]),
        (b"x", -1, 1, [1]),
        (b"x", 1, 0, [1]),
        (b"x", 1, 3, [1]),
        (b"", 1, 1, [0, 2**31]),
        (b"", 3, 1, [0, 2**31 - 1]),
        (b"x", 1, 1, [2**32, 2**32]),
    ],
)
def test_a_frame_that_no_header_can_describe_is_refused_before_a_byte_is_written(
    eight_slots: Ring, payload: bytes, dtype: int, major_order: int, shape: list[int]
) -> None:
    writer = eight_slots.writer()
    before = eight_slots.header.read(0, eight_slots.header.length)
    with pytest.raises(ValueError):
        publish(writer, payload, shape, dtype=dtype, major_order=major_order)
    assert eight_slots.header.read(0, eight_slots.header.length) == before
    assert writer.next_seq == 0


def test_what_cannot_be_a_dimension_or_a_payload_is_refused(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    with pytest.raises(OverflowError):
        publish(writer, b"x", [-1])
    with pytest.raises(TypeError):
        publish(writer, "text", [4])
    with pytest.raises(BufferError):
        publish(writer, np.zeros((4, 4), np.uint8)[:, ::2], (4, 2))
    assert writer.next_seq == 0


def test_an_abort_gives_the_seq_back_and_leaves_the_slot_in_progress(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    claim = writer.claim(8)
    assert claim.seq == 0
    with pytest.raises(RuntimeError):
        publish(writer, b"x")
    with pytest.raises(RuntimeError):
        writer.claim(8)
    claim.abort()
    claim.abort()
    assert u64(eight_slots.slot(0), rings.SEQ_COMMIT) == 0
    assert writer.next_seq == 0
    with pytest.raises(ClosedError):
        commit(claim)
    assert writer.counters()["frames_aborted"] == 1
    assert publish(writer, b"x") == 0


def test_an_aborted_claim_has_no_power_over_the_next_one_of_the_same_seq(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    old = writer.claim(8)
    old.abort()
    new = writer.claim(16)
    assert new.seq == old.seq
    old.abort()
    with pytest.raises(ClosedError):
        commit(old)
    del old
    assert commit(new) == 0
    assert u32(eight_slots.slot(0), rings.VALUES_LEN) == 16
    assert writer.counters()["frames_aborted"] == 1


def test_a_claim_that_is_dropped_is_aborted_and_its_memory_outlives_it(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    array = np.asarray(writer.claim(8))
    assert array.ctypes.data % 64 == 0
    with pytest.raises(RuntimeError):
        writer.claim(8)
    keeper = array
    del array
    keeper[:] = 1
    del keeper
    assert writer.counters()["frames_aborted"] == 1
    assert publish(writer, b"x") == 0


def test_a_wrong_shape_leaves_the_claim_open(eight_slots: Ring) -> None:
    claim = eight_slots.writer().claim(8)
    with pytest.raises(ValueError):
        commit(claim, (9,))
    assert u64(eight_slots.slot(0), rings.SEQ_COMMIT) == 0
    assert commit(claim, (8,)) == 0


def test_a_closed_writer_says_so_and_keeps_its_counters(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    publish(writer, b"x")
    claim = writer.claim(8)
    view = memoryview(claim)
    writer.close()
    writer.close()
    for call in (lambda: publish(writer, b"x"), lambda: writer.claim(1), lambda: writer.next_seq, lambda: commit(claim)):
        with pytest.raises(ClosedError):
            call()
    view[:] = b"outlives"
    claim.abort()
    assert writer.counters()["frames_published"] == 1
    assert writer.counters()["frames_aborted"] == 1


def test_without_waiters_nobody_is_woken(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    publish(writer, b"x")
    writer.set_waiters(False)
    publish(writer, b"x")
    assert writer.counters()["wakes_sent"] == 1


@pytest.mark.parametrize(
    ("nslots", "pools", "fault"),
    [
        (0, [(1, 4096)], "power of two"),
        (6, [(1, 4096)], "power of two"),
        (2**63, [(1, 4096)], "power of two"),
        (16, [(1, 4096)], "too short"),
        (8, [], "needs a payload pool"),
        (8, [(1, 0)], "multiple of 64"),
        (8, [(1, 96)], "multiple of 64"),
        (8, [(1, 8192)], "too short"),
        (8, [(1, 2**64 - 64)], "too short"),
        (8, [(1, 4096), (1, 4096)], "twice"),
    ],
)
def test_a_ring_that_is_not_all_inside_its_files_is_refused(
    eight_slots: Ring, nslots: int, pools: list[tuple[int, int]], fault: str
) -> None:
    region = eight_slots.pools[0][2]
    described = [(pool_id, stride, region) for pool_id, stride in pools]
    with pytest.raises((ValueError, RegionError), match=fault):
        _native.RingWriter(eight_slots.header, described, nslots=nslots, stream_id=1, epoch=1, publication=None)
    reader = _native.FrameReader(None, stream_id=1)
    with pytest.raises((ValueError, RegionError), match=fault):
        reader.map(eight_slots.header, described, nslots=nslots, epoch=1, first_seq=0, max_outstanding_gap=4)
    assert reader.epoch is None
