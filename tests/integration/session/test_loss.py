"""What clients do when a producer, the SHM driver or the media driver is killed, and when a lease is taken away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.client.admin import AdminClient
from tensor_pool.stamp import carries_seq

from .conftest import COMMAND, DEADLINE_S, StackProcess, until


def test_a_consumer_goes_on_with_the_next_producer(stack: StackProcess, session: tp.Session) -> None:
    arguments = ("publish", "--shape", "32x32", "--rate", 200, "--json")
    first = stack.command("camera", *arguments)
    with session.consumer("camera-1", wait=DEADLINE_S) as consumer:
        frame = consumer.read(timeout=DEADLINE_S)
        assert frame is not None
        first.kill()
        stack.command("camera", *arguments, "--wait", DEADLINE_S)
        epoch = frame.epoch
        while frame is None or frame.epoch == epoch:
            frame = consumer.read(timeout=DEADLINE_S)
            assert frame is not None, "no frame of the second producer"
            assert carries_seq(frame.array, frame.seq)
        assert frame.epoch > epoch
        assert all(stats.balanced for stats in (*consumer.earlier_stats, consumer.stats))


@pytest.mark.parametrize("rows", [32, 96], ids=["as before", "in larger slots"])
def test_whoever_waits_gets_the_stream_of_a_killed_producer(stack: StackProcess, session: tp.Session, rows: int) -> None:
    camera = stack.command("camera", "publish", "--shape", "32x32", "--rate", 200, "--json")
    camera.wait_for_message(event="attached")
    with pytest.raises(tp.AttachRejectedError, match="producer"):
        session.producer(10_000, shape=(rows, 32), dtype="uint16", wait=0.2)
    camera.kill()
    with session.producer(10_000, shape=(rows, 32), dtype="uint16", wait=DEADLINE_S) as producer:
        assert producer.publish(np.zeros((rows, 32), np.uint16)) == 0


def test_a_producer_whose_lease_was_revoked_says_so_and_comes_back(stack: StackProcess, session: tp.Session) -> None:
    frame = np.zeros((16, 16), np.uint16)
    with session.producer(20_001, shape=(16, 16), dtype="uint16") as producer, session.consumer(20_001, wait=DEADLINE_S) as consumer:
        assert producer.publish(frame) == 0
        assert consumer.read(timeout=DEADLINE_S) is not None
        epoch = producer.epoch
        assert epoch is not None
        with AdminClient(session.stack.admin_socket) as admin:
            lease = next(lease for lease in admin.leases() if lease.role == "producer")
            admin.revoke(lease.lease_id)

        refusals = []
        deadline = time.monotonic() + DEADLINE_S
        # without a pause: attaching again takes a few milliseconds
        while producer.stats.reattached == 0 and time.monotonic() < deadline:
            try:
                producer.publish(frame)
            except tp.LeaseLostError as error:
                refusals.append(error.reason)
        assert set(refusals) == {"revoked"}
        until(lambda: producer.state.value == "attached", "the producer attaches again")
        assert producer.epoch is not None
        assert producer.epoch > epoch
        seq = producer.publish(frame)
        read = None
        while read is None or (read.epoch, read.seq) != (producer.epoch, seq):
            read = consumer.read(timeout=DEADLINE_S)
            assert read is not None, "the frame of the new epoch did not come"


def test_clients_come_back_after_the_driver_was_killed(start: Callable[..., StackProcess]) -> None:
    """With a media driver of its own process, the SHM driver can die and be started again under living sessions."""
    bootstrap = start()
    aeron_dir = str(bootstrap.directories.aeron_dir / "driver")
    bootstrap.process.terminate()
    media = bootstrap.harness.python("media", COMMAND, "media-driver", "--aeron-dir", aeron_dir, "--json")
    media.wait_for_message(event="ready")
    stack = start("--aeron-dir", aeron_dir)
    frame = np.arange(256, dtype=np.uint16).reshape(16, 16)
    with stack.connect() as session, session.producer(20_002, shape=(16, 16), dtype="uint16", name="again") as producer:
        consumer = session.consumer(20_002, wait=DEADLINE_S)
        producer.publish(frame)
        assert consumer.read(timeout=DEADLINE_S) is not None
        epoch = producer.epoch
        stack.process.kill()
        start("--aeron-dir", aeron_dir)
        until(lambda: producer.state.value == "attached" and producer.epoch != epoch, "the producer attaches to the new driver")
        read = None
        deadline = time.monotonic() + DEADLINE_S
        while (read is None or read.epoch == epoch) and time.monotonic() < deadline:
            producer.publish(frame)
            read = consumer.read(timeout=0.05)
        assert read is not None
        assert producer.epoch is not None
        assert epoch is not None
        assert read.epoch == producer.epoch > epoch
        assert (read.array == frame).all()
        assert consumer.stats.reattached >= 1
    media.terminate()


def test_the_death_of_the_media_driver_is_an_error_and_no_more(start: Callable[..., StackProcess]) -> None:
    stack = start()
    with tp.connect(stack.stack_file, driver_timeout=1.0) as session:
        producer = session.producer(20_003, shape=(8, 8), dtype="uint8")
        consumer = session.consumer(20_003, wait=DEADLINE_S)
        stack.process.kill()
        with pytest.raises((tp.MediaDriverTimeoutError, tp.LeaseLostError)):  # noqa: PT012 - sooner or later
            for _ in range(10_000):
                producer.publish(np.zeros((8, 8), np.uint8))
                time.sleep(0.01)
        with pytest.raises(tp.MediaDriverTimeoutError):  # noqa: PT012 - sooner or later
            for _ in range(1000):
                consumer.read(timeout=0.05)
        with pytest.raises(tp.TensorPoolError):
            session.consumer(20_003, wait=1.0)
    # the next stack starts at once, in the same runtime directory
    start()


def test_async_iteration_ends_with_the_media_driver(start: Callable[..., StackProcess]) -> None:
    stack = start()

    async def read_until_it_ends(consumer: tp.Consumer) -> None:
        async for _ in consumer:
            stack.process.kill()

    with tp.connect(stack.stack_file, driver_timeout=1.0) as session:
        producer = session.producer(20_004, shape=(8, 8), dtype="uint8")
        consumer = session.consumer(20_004, wait=DEADLINE_S)
        producer.publish(np.zeros((8, 8), np.uint8))
        with pytest.raises(tp.MediaDriverTimeoutError):
            asyncio.run(asyncio.wait_for(read_until_it_ends(consumer), DEADLINE_S))
