"""A session without threads: its caller's own loop moves the control traffic, by `invoke` or by waiting for a frame."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.client.admin import AdminClient, LeaseInfo
from tensor_pool.driver.config import ShmSection
from tensor_pool.session import Session, SessionOptions
from tensor_pool.stack import StackSettings
from tensor_pool.stamp import carries_seq
from tensor_pool.testing import IsolatedDirectories

from .conftest import StackProcess

DEADLINE_S = 20.0
INVOKED = SessionOptions(threaded=False)
FRAME = np.arange(8 * 8, dtype=np.uint16).reshape(8, 8)


@pytest.fixture
def invoked(session: tp.Session) -> Iterator[Session]:
    """On the same stack as `session`, which runs as sessions do."""
    with Session(session.stack, options=INVOKED) as invoked:
        yield invoked


def until(condition: Callable[[], bool], invoke: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        invoke()
        time.sleep(0.001)


def producer_lease(admin: AdminClient) -> LeaseInfo | None:
    return next((lease for lease in admin.leases() if lease.role == "producer"), None)


def test_a_session_without_threads_attaches_publishes_and_reads(stack: StackProcess, session: tp.Session) -> None:
    before = threading.enumerate()
    with Session(session.stack, options=INVOKED) as invoked:
        producer = invoked.producer(20_001, shape=FRAME.shape, dtype=FRAME.dtype, slots=8)
        consumer = invoked.consumer(20_001, wait=DEADLINE_S)
        for seq in range(20):
            assert producer.publish(FRAME + seq) == seq
            invoked.invoke()
            frame = consumer.read(timeout=DEADLINE_S)
            assert frame is not None
            assert frame.seq == seq
            assert (frame.array == FRAME + seq).all()
        assert (consumer.stats.delivered, consumer.stats.balanced) == (20, True)
        assert threading.enumerate() == before
    with pytest.raises(tp.ClosedError):
        invoked.invoke()


def test_a_stack_inside_the_program_runs_by_itself_beside_a_session_that_is_invoked(isolated: IsolatedDirectories) -> None:
    settings = StackSettings(shm=ShmSection(base_dir=str(isolated.shm_base_dir)))
    with tp.embedded(settings=settings, options=INVOKED) as session:
        # only waiting is done by the session: the answers come from the threads of the stack
        with session.producer(20_001, shape=FRAME.shape, dtype=FRAME.dtype, slots=8) as producer:
            consumer = session.consumer(20_001, wait=DEADLINE_S)
            producer.publish(FRAME)
            frame = consumer.read(timeout=DEADLINE_S)
        assert frame is not None
        assert (frame.array == FRAME).all()
        assert not [thread.name for thread in threading.enumerate() if "client" in thread.name]


def test_sessions_with_and_without_threads_read_each_other(session: tp.Session, invoked: Session) -> None:
    for writing, reading, stream_id in ((session, invoked, 20_001), (invoked, session, 20_002)):
        producer = writing.producer(stream_id, shape=FRAME.shape, dtype=FRAME.dtype, slots=8)
        consumer = reading.consumer(stream_id, wait=DEADLINE_S)
        for seq in range(20):
            producer.publish(FRAME + seq)
            frame = consumer.read(timeout=DEADLINE_S)
            assert frame is not None
            assert (frame.array == FRAME + seq).all()


def test_a_waiting_read_follows_the_stream_to_its_next_producer_without_invoke(stack: StackProcess, invoked: Session) -> None:
    arguments = ("publish", "--shape", "32x32", "--rate", 200, "--json")
    first = stack.command("camera", *arguments)
    with invoked.consumer("camera-1", wait=DEADLINE_S) as consumer:
        frame = consumer.read(timeout=DEADLINE_S)
        assert frame is not None
        epoch = frame.epoch
        first.kill()
        stack.command("camera", *arguments)
        while frame.epoch == epoch:
            frame = consumer.read(timeout=DEADLINE_S)
            assert frame is not None, "no frame of the second producer"
            assert carries_seq(frame.array, frame.seq)
        assert all(stats.balanced for stats in (*consumer.earlier_stats, consumer.stats))


def test_a_reader_that_only_polls_follows_the_stream_when_it_invokes(session: tp.Session, invoked: Session) -> None:
    shape, dtype = FRAME.shape, FRAME.dtype
    first = session.producer(20_001, shape=shape, dtype=dtype, slots=8)
    consumer = invoked.consumer(20_001, wait=DEADLINE_S)

    def hears(producer: tp.Producer) -> bool:
        invoked.invoke()
        return consumer.stats.epoch == producer.epoch

    def polled() -> tp.Frame:
        frames: list[tp.Frame] = []
        until(lambda: frames.extend(filter(None, [consumer.read(0)])) or bool(frames))
        return frames[0]

    first.publish(FRAME)
    assert polled().epoch == first.epoch
    first.close()
    with session.producer(20_001, shape=shape, dtype=dtype, slots=8) as second:
        until(lambda: hears(second))
        second.publish(FRAME)
        assert polled().epoch == second.epoch


def test_a_lease_is_renewed_while_the_program_is_busy_with_other_things(session: tp.Session, invoked: Session) -> None:
    producer = invoked.producer(20_001, shape=FRAME.shape, dtype=FRAME.dtype, slots=8)
    epoch = producer.epoch
    with AdminClient(session.stack.admin_socket) as admin:
        first = producer_lease(admin)
        assert first is not None
        left_ms, renewals = first.expires_in_ms, 0
        deadline = time.monotonic() + DEADLINE_S
        # each renewal stands for one interval, and the lease for fewer of them
        while renewals < 8:
            assert time.monotonic() < deadline, "not renewed"
            lease = producer_lease(admin)
            assert lease is not None, "expired"
            renewals += lease.expires_in_ms > left_ms
            left_ms = lease.expires_in_ms
    invoked.invoke()
    assert (producer.state.value, producer.epoch) == ("attached", epoch)
    assert producer.publish(FRAME) == 0


def test_what_a_driver_says_is_noticed_by_invoke_and_not_before(session: tp.Session, invoked: Session) -> None:
    producer = invoked.producer(20_001, shape=FRAME.shape, dtype=FRAME.dtype, slots=8)
    epoch = producer.epoch
    assert epoch is not None
    with AdminClient(session.stack.admin_socket) as admin:
        lease = producer_lease(admin)
        assert lease is not None
        admin.revoke(lease.lease_id)
        until(lambda: producer_lease(admin) is None)
    assert (producer.state.value, producer.epoch) == ("attached", epoch)
    done: list[int] = []
    until(lambda: producer.stats.reattached == 1, lambda: done.append(invoked.invoke()))
    # every message was told, and a pass without one is none
    assert max(done) > 0
    assert producer.epoch is not None
    assert producer.epoch > epoch
    assert producer.publish(FRAME) == 0
