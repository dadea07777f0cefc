"""What was given out is closed with the session, whatever became of the stack."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.driver.config import DriverSection, ShmSection
from tensor_pool.producer.stats import ProducerState
from tensor_pool.session import SessionOptions
from tensor_pool.stack import StackSettings
from tensor_pool.testing import ChildProcess, IsolatedDirectories, ProcessHarness

from .conftest import COMMAND, DEADLINE_S, StackProcess

STREAM = 20_001


def read_until_the_media_driver_is_missed(consumer: tp.Consumer) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with pytest.raises(tp.MediaDriverTimeoutError):  # noqa: PT012 - sooner or later
        while time.monotonic() < deadline:
            consumer.read(timeout=0.05)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("tensor-pool")}


def is_over(session: tp.Session, producer: tp.Producer, consumer: tp.Consumer) -> bool:
    session.close()
    with pytest.raises(tp.ClosedError):
        producer.publish(np.zeros(8, np.uint8))
    with pytest.raises(tp.ClosedError):
        consumer.read(timeout=0)
    return producer.state is ProducerState.CLOSED and consumer.closed and threads() == set()


def media_driver(harness: ProcessHarness, directories: IsolatedDirectories) -> tuple[ChildProcess, str]:
    """One of its own, without which the rest of a stack is still alive."""
    aeron_dir = str(directories.aeron_dir / "driver")
    media = harness.python("media", COMMAND, "media-driver", "--aeron-dir", aeron_dir, "--json", environment=directories.environment())
    media.wait_for_message(event="ready")
    return media, aeron_dir


def test_a_session_whose_media_driver_was_killed_closes_everything_and_keeps_the_error_of_the_block(
    start: Callable[..., StackProcess], harness: ProcessHarness, isolated: IsolatedDirectories
) -> None:
    media, aeron_dir = media_driver(harness, isolated)
    session = tp.connect(start("--aeron-dir", aeron_dir).stack_file, driver_timeout=1.0)
    with pytest.raises(RuntimeError, match="mine"), session:  # noqa: PT012 - leaving the block is what is asked
        producer = session.producer(STREAM, shape=8)
        consumer = session.consumer(STREAM, wait=DEADLINE_S)
        media.kill()
        read_until_the_media_driver_is_missed(consumer)
        raise RuntimeError("mine")
    assert is_over(session, producer, consumer)


def test_closing_right_after_the_media_driver_was_killed_is_quiet_too(start: Callable[..., StackProcess]) -> None:
    stack = start()
    with tp.connect(stack.stack_file, driver_timeout=1.0) as session:
        producer = session.producer(STREAM, shape=8)
        consumer = session.consumer(STREAM, wait=DEADLINE_S)
        stack.process.kill()
    assert is_over(session, producer, consumer)


def test_an_embedded_stack_is_closed_too_when_its_media_driver_was_killed(harness: ProcessHarness, isolated: IsolatedDirectories) -> None:
    media, aeron_dir = media_driver(harness, isolated)
    settings = StackSettings(driver=DriverSection(aeron_dir=aeron_dir), shm=ShmSection(base_dir=str(isolated.shm_base_dir)))
    with tp.embedded(settings=settings, options=SessionOptions(driver_timeout_ms=1000)) as session:
        producer = session.producer(STREAM, shape=8)
        consumer = session.consumer(STREAM, wait=DEADLINE_S)
        media.kill()
        read_until_the_media_driver_is_missed(consumer)
    assert is_over(session, producer, consumer)
    assert not list(isolated.shm_base_dir.rglob("*.ring"))
