"""Which seqs a reader takes, which it counts and as what, and how a frame reaches its caller."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.unit.native import rings
from tests.unit.native.rings import EPOCH, Ring, balances, commit, counted, publish


@pytest.mark.requirement("W-8.2-10")
@pytest.mark.requirement("W-8.2-28")
@pytest.mark.requirement("W-8.3-10")
@pytest.mark.requirement("W-10.2.1-12")
@pytest.mark.requirement("W-15.3-1")
@pytest.mark.requirement("W-15.21-4")
@pytest.mark.parametrize("seq_in_slot", [0, 3, 19, 2**63 - 1 - 4, 2**63 - 1])
@pytest.mark.parametrize("how", ["read", "borrow"])
def test_a_slot_with_another_seq_is_late(eight_slots: Ring, seq_in_slot: int, how: str) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    for _ in range(12):
        publish(writer, b"x")
    eight_slots.patch(11, rings.SEQ_COMMIT, "Q", seq_in_slot << 1 | 1)
    reader.inject(EPOCH, 11)
    assert (reader.borrow(0) if how == "borrow" else reader.read(0)) is None
    assert counted(reader) == {"gap": 11, "late": 1}


@pytest.mark.requirement("W-8.3-6")
@pytest.mark.requirement("W-8.3-10")
@pytest.mark.requirement("W-15.21-2")
@pytest.mark.requirement("W-15.21-5")
def test_a_slot_in_progress_is_dropped_at_once_and_the_next_frame_comes(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    claim = writer.claim(8)
    reader.inject(EPOCH, claim.seq)
    assert reader.read(0) is None
    assert counted(reader) == {"late": 1, "not_committed": 1}
    commit(claim)
    reader.inject(EPOCH, publish(writer, b"next"))
    frame = reader.read(0)
    assert frame is not None
    assert frame.seq == 1
    assert counted(reader) == {"delivered": 1, "late": 1, "not_committed": 1}


@pytest.mark.requirement("W-10.2.1-11")
def test_the_slot_of_a_seq_is_found_by_the_mapped_number_of_slots(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    for number in range(14):
        publish(writer, bytes([number]))
    reader.inject(EPOCH, 13)
    frame = reader.read(0)
    assert frame is not None
    assert bytes(memoryview(frame.buffer)) == eight_slots.payload(5, 0, 1) == bytes([13])


@pytest.mark.requirement("W-10.2.1-9")
@pytest.mark.requirement("W-15.21-8")
@pytest.mark.parametrize("epoch", [0, EPOCH - 1, EPOCH + 1, 2**64 - 1])
def test_another_epoch_is_counted_and_reads_nothing(eight_slots: Ring, epoch: int) -> None:
    reader = eight_slots.reader()
    reader.inject(epoch, publish(eight_slots.writer(), b"x"))
    assert reader.read(0) is None
    assert counted(reader) == {"wrong_epoch": 1}


@pytest.mark.requirement("W-15.2-3")
@pytest.mark.requirement("W-15.18-4")
@pytest.mark.requirement("W-15.21-9")
@pytest.mark.requirement("W-15.21-10")
@pytest.mark.requirement("W-15.21-11")
def test_a_new_epoch_drops_what_was_queued_and_counts_from_zero(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    for _ in range(5):
        reader.inject(EPOCH, publish(writer, b"old"))
    assert reader.read(0) is not None
    last = reader.unmap()
    assert (last["delivered"], last["first_seq"], last["last_seq"], last["newest_committed"]) == (1, 0, 0, 4)
    assert reader.epoch is None
    reader.inject(EPOCH, 5)
    reader.inject(EPOCH + 1, 0)
    assert reader.read(0) is None
    # the counts of the epoch that has ended stay until there is another
    assert counted(reader) == {"delivered": 1, "unmapped": 2}

    with rings.ring() as renewed:
        renewed.map(reader, epoch=EPOCH + 1)
        assert reader.read(0) is None
        reader.inject(EPOCH, 6)
        reader.inject(EPOCH + 1, publish(renewed.writer(), b"new"))
        frame = reader.read(0)
        assert frame is not None
        assert (frame.epoch, frame.seq, bytes(memoryview(frame.buffer))) == (EPOCH + 1, 0, b"new")
        assert counted(reader) == {"delivered": 1, "unmapped": 2, "wrong_epoch": 1}
        assert not reader.needs_remap()


@pytest.mark.requirement("D-4.9-7")
def test_a_mapping_that_is_resumed_goes_on_with_its_counts_and_drops_what_was_in_flight(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    for _ in range(3):
        reader.inject(EPOCH, publish(writer, b"x"))
    lent = reader.borrow(0)
    assert lent is not None
    reader.unmap()
    reader.inject(EPOCH, publish(writer, b"while it was away"))
    assert eight_slots.map(reader, first_seq=None, resume=True) == 0
    assert reader.read(0) is None
    assert counted(reader) == {"delivered": 1, "unmapped": 1}
    for _ in range(5):
        publish(writer, b"y")
    # a view of the mapping before is still in the same books
    assert not lent.buffer.release()
    reader.inject(EPOCH, 8)
    frame = reader.read(0)
    assert frame is not None
    assert frame.seq == 8
    assert counted(reader) == {"delivered": 1, "late": 1, "gap": 7, "unmapped": 1}


def test_a_view_that_is_given_back_while_nothing_is_mapped_is_in_the_books_of_its_epoch(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    reader.inject(EPOCH, publish(writer, b"lent"))
    lent = reader.borrow(0)
    assert lent is not None
    reader.unmap()
    for _ in range(8):
        publish(writer, b"x")
    assert not lent.buffer.release()
    assert counted(reader) == {"late": 1}


def test_only_the_epoch_that_was_mapped_last_can_be_resumed(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    reader.inject(EPOCH, publish(eight_slots.writer(), b"x"))
    with pytest.raises(ValueError, match="resumed"):
        eight_slots.map(reader, epoch=EPOCH + 1, resume=True)
    # and what is mapped stays
    frame = reader.read(0)
    assert frame is not None
    reader.close()
    assert counted(reader) == {"delivered": 1}


def test_a_seq_that_went_back_asks_for_a_new_mapping(eight_slots: Ring) -> None:
    reader = eight_slots.reader(first_seq=None)
    writer = eight_slots.writer()
    for _ in range(6):
        reader.inject(EPOCH, publish(writer, b"x"))
    assert not reader.needs_remap()
    reader.inject(EPOCH, 2)
    assert reader.needs_remap()
    eight_slots.map(reader, first_seq=6)
    assert not reader.needs_remap()
    # what was announced before this reader joined says nothing
    reader.inject(EPOCH, 5)
    assert not reader.needs_remap()


@pytest.mark.requirement("W-15.4-5")
@pytest.mark.parametrize(("jump", "taken", "gap"), [(15, 14, 13), (16, 15, 14), (17, 17, 16), (18, 18, 17)])
def test_a_reader_more_than_the_allowed_gap_behind_goes_to_the_newest(jump: int, taken: int, gap: int) -> None:
    with rings.ring(nslots=32) as made:
        reader = made.reader(max_outstanding_gap=16)
        writer = made.writer()
        for _ in range(jump + 1):
            publish(writer, b"x")
        reader.inject(EPOCH, 0)
        assert reader.read(0) is not None
        reader.inject(EPOCH, jump - 1)
        reader.inject(EPOCH, jump)
        frame = reader.read(0)
        assert frame is not None
        assert frame.seq == taken
        assert reader.counters()["gap"] == gap


@pytest.mark.requirement("W-15.4-2")
@pytest.mark.requirement("W-15.3-2")
def test_lost_seqs_are_gaps_and_overwritten_frames_are_late(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    for _ in range(4):
        publish(writer, b"x")
    reader.inject(EPOCH, 3)
    lent = reader.borrow(0)
    assert lent is not None
    assert counted(reader) == {"delivered": 1, "gap": 3}
    for _ in range(8):
        publish(writer, b"y")
    assert lent.buffer is not None
    assert not lent.buffer.still_valid()
    assert not lent.buffer.release()
    assert not lent.buffer.release()
    assert counted(reader) == {"gap": 3, "late": 1}


@pytest.mark.requirement("W-8.3-7")
@pytest.mark.requirement("W-8.3-10")
@pytest.mark.requirement("W-8.3-13")
def test_a_frame_is_checked_again_after_its_payload_was_copied(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    reader.inject(EPOCH, publish(writer, b"lent"))
    lent = reader.borrow(0)
    assert lent is not None
    view = lent.buffer
    assert bytes(memoryview(view)) == b"lent"
    assert view.still_valid()
    assert memoryview(view).readonly
    # opening the slot again is enough: not a byte of the payload need be written
    for _ in range(7):
        publish(writer, b"x")
    claim = writer.claim(4)
    assert not view.still_valid()
    assert not view.release()
    claim.abort()
    assert not view.release()


@pytest.mark.requirement("W-15.18-4")
def test_a_frame_lent_by_an_older_mapping_is_not_in_the_books_of_the_new_one(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    reader.inject(EPOCH, publish(writer, b"lent"))
    lent = reader.borrow(0)
    assert lent is not None
    eight_slots.map(reader, first_seq=1)
    for _ in range(8):
        publish(writer, b"x")
    assert not lent.buffer.release()
    assert counted(reader) == {}
    reader.inject(EPOCH, 8)
    assert reader.read(0) is not None
    assert counted(reader) == {"gap": 7, "delivered": 1}


def test_a_seq_above_63_bits_is_malformed(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    reader.inject(EPOCH, 2**63)
    reader.inject(EPOCH, 2**64 - 1)
    assert reader.read(0) is None
    assert counted(reader) == {"malformed": 2}


def test_the_highest_seqs_are_read_and_booked(eight_slots: Ring) -> None:
    top = 2**63 - 1
    writer = eight_slots.writer()
    publish(writer, b"x")
    for index in range(8):
        eight_slots.header.write(eight_slots.slot_offset(index), eight_slots.slot(0))
    eight_slots.patch(top, rings.PAYLOAD_SLOT, "I", top % 8)
    eight_slots.patch(top, rings.SEQ_COMMIT, "Q", top << 1 | 1)
    reader = eight_slots.reader()
    reader.inject(EPOCH, top)
    frame = reader.read(0)
    assert frame is not None
    assert frame.seq == top
    counters = reader.counters()
    assert (counters["gap"], counters["last_seq"], counters["newest_committed"]) == (top, top, top)
    assert balances(counters)
    assert reader.read(10_000_000) is None
    # a reader that joins after the last seq there can be gets nothing, and nothing breaks
    assert eight_slots.map(reader, first_seq=None) == top + 1
    reader.inject(EPOCH, top)
    assert reader.read(10_000_000) is None
    with pytest.raises(ValueError):
        eight_slots.map(reader, first_seq=2**63)


def test_a_slot_that_holds_the_seq_of_another_index_is_not_the_newest(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    publish(writer, b"x")
    eight_slots.patch(2, rings.SEQ_COMMIT, "Q", 1001 << 1 | 1)
    reader = eight_slots.reader(first_seq=None)
    assert reader.counters()["first_seq"] == 1
    assert reader.counters()["newest_committed"] == 0


@pytest.mark.requirement("W-10.2.1-7")
@pytest.mark.requirement("W-10.2.1-3")
@pytest.mark.requirement("W-10.2.1-6")
@pytest.mark.requirement("W-10.2.1-10")
@pytest.mark.requirement("W-10.2.1-16")
@pytest.mark.requirement("W-10.2.1-18")
def test_both_timestamps_and_the_trace_id_are_reported(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    publish(writer, b"ab", timestamp_ns=5, meta_version=9)
    publish(writer, b"ab", timestamp_ns=6)
    reader.inject(EPOCH, 0, 1234, 77)
    reader.inject(EPOCH, 1)
    first, second = reader.read(0), reader.read(0)
    assert first is not None
    assert second is not None
    assert (first.timestamp_ns, first.publish_timestamp_ns, first.trace_id, first.meta_version) == (5, 1234, 77, 9)
    assert (second.timestamp_ns, second.publish_timestamp_ns, second.trace_id) == (6, None, 0)
    assert (first.dtype, first.major_order, first.shape, first.nbytes) == (1, 1, (2,), 2)


def test_a_buffer_that_is_too_short_leaves_the_frame_next(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    for payload in (b"12345678", b"abc"):
        reader.inject(EPOCH, publish(writer, payload))
    short = bytearray(7)
    for _ in range(3):
        with pytest.raises(ValueError, match="8 bytes and the buffer 7"):
            reader.read_into(short, 0)
    assert short == bytes(7)
    out = np.zeros((4, 4), np.uint8)
    frame = reader.read_into(out, 0)
    assert frame is not None
    assert isinstance(frame.buffer, memoryview)
    assert (frame.buffer.obj is out, frame.buffer.nbytes) == (True, out.nbytes)
    assert np.shares_memory(frame.array, out)
    assert (frame.seq, out.tobytes()[:8], out.tobytes()[8:]) == (0, b"12345678", bytes(8))
    with pytest.raises(BufferError):
        reader.read_into(b"readonly", 0)
    with pytest.raises(BufferError):
        reader.read_into(np.zeros((4, 4), np.uint8)[:, ::2], 0)
    assert counted(reader) == {"delivered": 1}


def test_an_owned_frame_is_writable_aligned_and_its_own(eight_slots: Ring) -> None:
    reader = eight_slots.reader()
    writer = eight_slots.writer()
    reader.inject(EPOCH, publish(writer, struct.pack("<4I", 1, 2, 3, 4)))
    frame = reader.read(0)
    assert frame is not None
    array = np.asarray(frame.buffer)
    assert array.ctypes.data % 64 == 0
    array[:] = 9
    assert len(frame.buffer) == 16
    assert eight_slots.payload(0, 0, 16) == struct.pack("<4I", 1, 2, 3, 4)
    assert frame.buffer is frame.buffer
