"""The promises of the API page that one program can see: errors before a byte is written, waiting, closing, forking, interrupting."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.client.admin import AdminClient
from tensor_pool.client.claimed_slot import ClaimedSlot
from tests.unit.native.rings import in_a_fork


@pytest.fixture
def producer(stack_session: tp.Session) -> tp.Producer:
    return stack_session.producer(10_000, shape=(16, 24), dtype="uint16", slots=8, name="camera-1", tags=["lab"])


@pytest.fixture
def consumer(stack_session: tp.Session, producer: tp.Producer) -> tp.Consumer:
    return stack_session.consumer("camera-1", wait=10.0)


def picture(value: int) -> np.ndarray:
    return np.full((16, 24), value, np.uint16)


def test_seqs_count_from_zero_and_frames_say_where_they_are_from(producer: tp.Producer, consumer: tp.Consumer) -> None:
    assert producer.publish(picture(7), timestamp_ns=123, trace_id=9) == 0
    frame = consumer.read(timeout=5)
    assert frame is not None
    assert (frame.seq, frame.epoch, frame.timestamp_ns, frame.trace_id) == (0, producer.epoch, 123, 9)
    assert frame.key == (10_000, frame.epoch, 0)
    assert (frame.array == 7).all()
    frame.array[:] = 0  # an owned copy
    assert producer.publish(picture(8)) == 1


@pytest.mark.requirement("W-10.2.1-4")
@pytest.mark.requirement("W-10.2.1-5")
@pytest.mark.parametrize("how", ["publish", "another stride", "claim"])
def test_a_frame_has_the_time_of_its_capture_by_default_and_its_descriptor_none(
    producer: tp.Producer, consumer: tp.Consumer, how: str
) -> None:
    before_ns = time.monotonic_ns()
    if how == "claim":
        with producer.claim() as slot:
            slot.array[:] = 1
    else:
        producer.publish(picture(1) if how == "publish" else np.ones((32, 24), np.uint16)[::2])
    after_ns = time.monotonic_ns()
    frame = consumer.read(timeout=5)
    assert frame is not None
    assert before_ns <= frame.timestamp_ns <= after_ns
    assert frame.publish_timestamp_ns is None


@pytest.mark.requirement("D-4.8-4")
def test_sessions_ask_with_client_ids_of_their_own_from_the_first_time_on(stack_session: tp.Session, producer: tp.Producer) -> None:
    """An id that is taken is refused, and another one tried: here none was."""
    with tp.Session(stack_session.stack) as other, AdminClient(stack_session.stack.admin_socket) as admin:
        with stack_session.consumer(10_000), other.consumer(10_000), other.consumer(10_000):
            assert len({lease.client_id for lease in admin.leases()}) == 4
        assert admin.status()["counters"]["attach_requests_rejected"] == 0


@pytest.mark.parametrize(
    ("array", "error"),
    [
        (np.zeros((16, 24), np.uint8), (TypeError, ValueError)),
        (np.zeros((16, 24), np.float16), TypeError),
        (np.zeros((24, 16), np.uint16), ValueError),
        (np.zeros((16, 24), np.complex64), TypeError),
        (np.zeros((16, 24), ">u2"), (TypeError, ValueError)),
    ],
)
def test_a_wrong_array_is_refused_before_a_byte_is_written(
    producer: tp.Producer, consumer: tp.Consumer, array: np.ndarray, error: type[Exception]
) -> None:
    with pytest.raises(error):
        producer.publish(array)
    assert producer.stats.published == 0
    assert producer.publish(picture(1)) == 0
    frame = consumer.read(timeout=5)
    assert frame is not None
    assert frame.seq == 0


def test_a_claim_commits_on_leaving_and_aborts_on_an_exception(producer: tp.Producer, consumer: tp.Consumer) -> None:
    with pytest.raises(RuntimeError, match="camera"), producer.claim() as slot:  # noqa: PT012 - leaving the block is what is asked
        slot.array[:] = 3
        raise RuntimeError("camera")
    with producer.claim() as slot:
        assert slot.seq == 0
        slot.array[:] = 4
    frame = consumer.read(timeout=5)
    assert frame is not None
    assert (frame.array == 4).all()


@pytest.mark.parametrize("asked", [{"shape": (3, 3)}, {"dtype": "uint8"}, {"shape": (16, 24), "dtype": "int16"}, {"shape": 16 * 24}])
def test_a_claim_of_something_else_than_was_declared_is_refused_whichever_half_is_given(
    producer: tp.Producer, asked: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError), match="declared"):
        producer.claim(**asked)
    for same in ({"shape": (16, 24)}, {"dtype": "uint16"}, {"shape": [16, 24], "dtype": np.uint16}, {}):
        slot = producer.claim(**same)
        assert (slot.array.shape, slot.array.dtype) == ((16, 24), np.uint16)
        slot.abort()
    assert producer.publish(picture(1)) == 0


@pytest.mark.parametrize("settle", [ClaimedSlot.commit, ClaimedSlot.abort])
def test_the_array_of_a_slot_is_read_only_once_the_slot_is_settled(
    producer: tp.Producer, consumer: tp.Consumer, settle: Callable[[ClaimedSlot], object]
) -> None:
    slot = producer.claim()
    slot.array[:] = 3
    settle(slot)
    with pytest.raises(ValueError, match="read-only"):
        slot.array[:] = 4
    with pytest.raises(ValueError, match="WRITEABLE"):
        slot.array.flags.writeable = True
    with pytest.raises(ValueError, match="read-only"):
        slot.array[2:] = 4
    if settle is ClaimedSlot.commit:
        frame = consumer.read(timeout=5)
        assert frame is not None
        assert (frame.array == 3).all()


def test_a_borrowed_frame_that_is_overwritten_says_so(producer: tp.Producer, consumer: tp.Consumer) -> None:
    producer.publish(picture(0))
    with pytest.raises(tp.FrameOverwrittenError), consumer.borrow(timeout=5) as view:  # noqa: PT012 - leaving the block is what is asked
        assert view.still_valid()
        for value in range(8):
            producer.publish(picture(value))
        assert not view.still_valid()
    assert consumer.stats.late == 1
    assert consumer.stats.balanced
    producer.publish(picture(0))
    with pytest.raises(ValueError, match="mine"), consumer.borrow(timeout=5):  # noqa: PT012 - what the body raises is what is asked
        for value in range(8):
            producer.publish(picture(value))
        raise ValueError("mine")


def test_what_is_not_used_in_a_block_is_closed_by_hand(producer: tp.Producer, consumer: tp.Consumer) -> None:
    slot = producer.claim()
    slot.close()
    slot.close()
    assert producer.stats.aborted == 1
    with producer.claim() as slot:
        slot.array[:] = 1
    slot.close()
    assert (producer.stats.published, producer.stats.aborted) == (1, 1)
    whole = consumer.borrow(timeout=5)
    whole.close()
    whole.close()
    producer.publish(picture(0))
    view = consumer.borrow(timeout=5)
    for value in range(8):
        producer.publish(picture(value))
    for _ in range(2):
        with pytest.raises(tp.FrameOverwrittenError):
            view.close()
    assert (consumer.stats.delivered, consumer.stats.late, consumer.stats.balanced) == (1, 1, True)


def test_latest_skips_and_counts(producer: tp.Producer, consumer: tp.Consumer) -> None:
    for value in range(6):
        producer.publish(picture(value))
    frame = consumer.latest(timeout=5)
    assert frame is not None
    assert frame.seq == 5
    assert (consumer.stats.skipped, consumer.stats.delivered, consumer.stats.gap) == (5, 1, 0)


def test_reading_waits_no_longer_than_it_should(consumer: tp.Consumer) -> None:
    assert consumer.read(timeout=0) is None
    assert consumer.read(timeout=0.05) is None
    assert consumer.latest(timeout=0) is None
    with pytest.raises(TimeoutError), consumer.borrow(timeout=0.01):
        pass


def test_read_into_needs_room_and_keeps_the_frame(producer: tp.Producer, consumer: tp.Consumer) -> None:
    producer.publish(picture(5))
    with pytest.raises(ValueError, match="bytes"):
        consumer.read_into(np.empty(10, np.uint8), timeout=5)
    out = np.empty((16, 24), np.uint16)
    frame = consumer.read_into(out, timeout=5)
    assert frame is not None
    assert (out == 5).all()
    assert np.shares_memory(frame.array, out)


def test_iteration_ends_when_the_consumer_is_closed(producer: tp.Producer, consumer: tp.Consumer) -> None:
    seen = []

    def read() -> None:
        seen.extend(frame.seq for frame in consumer)

    thread = threading.Thread(target=read)
    thread.start()
    for value in range(3):
        producer.publish(picture(value))
    deadline = time.monotonic() + 10
    while len(seen) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    consumer.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert seen == [0, 1, 2]


def test_async_iteration_does_not_block_the_loop(producer: tp.Producer, consumer: tp.Consumer) -> None:
    async def main() -> tuple[list[int], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1
                if ticks % 4 == 0:
                    producer.publish(picture(ticks))

        ticking = asyncio.create_task(tick())
        seen = []
        async for frame in consumer:
            seen.append(frame.seq)
            if len(seen) == 5:
                break
        ticking.cancel()
        return seen, ticks

    seen, ticks = asyncio.run(asyncio.wait_for(main(), 20))
    assert seen == [0, 1, 2, 3, 4]
    assert ticks >= 19


def test_a_stream_that_never_pauses_does_not_keep_the_loop_to_itself(producer: tp.Producer, consumer: tp.Consumer) -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        producer.publish(picture(0))
        async for frame in consumer:
            if frame.seq == 1000:
                break
            # the next one is there before it is asked for
            producer.publish(picture(1))
        ticking.cancel()
        return ticks

    assert asyncio.run(asyncio.wait_for(main(), 20)) >= 1000 // 64


def test_a_stream_that_is_not_there(stack_session: tp.Session) -> None:
    with pytest.raises(tp.AttachError):
        stack_session.consumer(4711, wait=0)
    with pytest.raises(tp.AttachTimeoutError, match="nobody"):
        stack_session.consumer("nobody", wait=0.1)


def test_one_producer_a_stream(stack_session: tp.Session, producer: tp.Producer) -> None:
    with pytest.raises(tp.AttachRejectedError):
        stack_session.producer(10_000, shape=(16, 24), dtype="uint16", slots=8)
    producer.close()
    with stack_session.producer(10_000, shape=(16, 24), dtype="uint16", slots=8) as second:
        assert second.publish(picture(1)) == 0


def test_a_frame_that_fits_no_pool(stack_session: tp.Session, producer: tp.Producer) -> None:
    producer.close()
    with pytest.raises(tp.TensorPoolError) as caught:
        stack_session.producer(10_000, shape=(1 << 20, 1 << 12), dtype="uint8", slots=64)
    assert "bytes" in str(caught.value)


def test_streams_are_found_by_name_tag_and_id(stack_session: tp.Session, producer: tp.Producer) -> None:
    assert [stream.stream_id for stream in stack_session.discover(name="camera-1", tags=["lab"], stream_id=10_000)] == [10_000]
    assert stack_session.discover(tags=["other"]) == []


def test_everything_may_be_closed_in_any_order_and_twice(stack_session: tp.Session, producer: tp.Producer, consumer: tp.Consumer) -> None:
    producer.publish(picture(1))
    frame = consumer.read(timeout=5)
    stack_session.close()
    consumer.close()
    producer.close()
    stack_session.close()
    with pytest.raises(tp.ClosedError):
        producer.publish(picture(2))
    with pytest.raises(tp.ClosedError):
        consumer.read(timeout=0)
    with pytest.raises(tp.ClosedError):
        stack_session.discover()
    assert frame is not None
    assert (frame.array == 1).all()


def test_in_a_forked_child_everything_is_closed_and_says_so_in_the_same_words(
    producer: tp.Producer, consumer: tp.Consumer, stack_session: tp.Session, tmp_path: Path
) -> None:
    producer.publish(picture(1))
    recording = stack_session.record(10_000, tmp_path / "r")
    lent = consumer.borrow(timeout=5)
    for value in range(8):
        producer.publish(picture(value))
    slot = producer.claim()
    slot.array[:] = 5
    uses: dict[str, Callable[[], object]] = {
        "publish": lambda: producer.publish(picture(2)),
        "claim": producer.claim,
        "fill": lambda: slot.array.fill(9),
        "seq": lambda: slot.seq,
        "commit": slot.commit,
        "producer state": lambda: producer.state,
        "epoch": lambda: producer.epoch,
        "producer stats": lambda: producer.stats,
        "read": lambda: consumer.read(timeout=0),
        "latest": lambda: consumer.latest(timeout=0),
        "borrow": lambda: consumer.borrow(timeout=0),
        "fileno": consumer.fileno,
        "consumer state": lambda: consumer.state,
        "consumer stats": lambda: consumer.stats,
        "earlier stats": lambda: consumer.earlier_stats,
        "consumer counters": lambda: consumer.counters,
        "session counters": lambda: stack_session.counters,
        "discover": stack_session.discover,
        "consumer": lambda: stack_session.consumer(10_000),
        "recording": lambda: recording.stats,
    }

    def use_everything() -> str:
        said = {}
        for name, use in uses.items():
            try:
                said[name] = f"it went well: {use()!r}"
            except tp.ClosedError as error:
                said[name] = re.sub("consumer|producer|session|recording", "_", str(error))
        for handle in (slot, lent, recording, consumer, producer, stack_session):
            repr(handle)
            handle.close()
        return json.dumps(said)

    said = json.loads(in_a_fork(use_everything))
    words = "this _ belongs to the parent of this process; make a new one after fork"
    assert said == dict.fromkeys(uses, words)
    with pytest.raises(tp.FrameOverwrittenError):
        lent.close()
    assert slot.commit() == 9
    frame = consumer.latest(timeout=5)
    assert frame is not None
    assert (frame.array == 5).all()
    assert producer.publish(picture(3)) == 10


def test_ctrl_c_interrupts_a_waiting_read(consumer: tp.Consumer) -> None:
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            consumer.read(timeout=20)
    finally:
        timer.cancel()
