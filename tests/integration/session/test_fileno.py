"""A consumer in somebody else's event loop: its file descriptor says when there is something to read."""

from __future__ import annotations

import select
import selectors
from collections.abc import Iterator

import numpy as np
import pytest

import tensor_pool as tp

DEADLINE_MS = 20_000


@pytest.fixture
def producer(stack_session: tp.Session) -> Iterator[tp.Producer]:
    with stack_session.producer(10_000, shape=16, slots=8) as producer:
        yield producer


@pytest.fixture
def consumer(stack_session: tp.Session, producer: tp.Producer) -> Iterator[tp.Consumer]:
    with stack_session.consumer(10_000, wait=10.0) as consumer:
        yield consumer


def read_all(consumer: tp.Consumer) -> list[int]:
    seqs = []
    while (frame := consumer.read(0)) is not None:
        seqs.append(frame.seq)
    return seqs


def test_poll_wakes_for_each_frame_and_rests_after_read_has_said_that_there_is_none(producer: tp.Producer, consumer: tp.Consumer) -> None:
    poll = select.poll()
    poll.register(consumer, select.POLLIN)
    assert read_all(consumer) == []
    for seq in range(3):
        assert poll.poll(0) == []
        producer.publish(np.full(16, seq, np.uint8))
        assert poll.poll(DEADLINE_MS) == [(consumer.fileno(), select.POLLIN)]
        assert read_all(consumer) == [seq]
    assert poll.poll(0) == []


def test_a_loop_over_two_consumers_hears_each_from_its_own_descriptor(stack_session: tp.Session) -> None:
    frame = np.zeros(16, np.uint8)
    with stack_session.producer(10_001, shape=16, slots=64) as left, stack_session.producer(10_002, shape=16, slots=64) as right:
        readers = [stack_session.consumer(stream, wait=10.0) for stream in (10_001, 10_002)]
        heard: dict[int, list[int]] = {10_001: [], 10_002: []}
        with selectors.DefaultSelector() as selector:
            for reader in readers:
                selector.register(reader, selectors.EVENT_READ)
            for _ in range(10):
                left.publish(frame)
                right.publish(frame)
            while min(map(len, heard.values())) < 10:
                ready = selector.select(DEADLINE_MS / 1000)
                assert ready, heard
                for key, _ in ready:
                    reader = key.fileobj
                    assert isinstance(reader, tp.Consumer)
                    heard[reader.stream_id] += read_all(reader)
        assert heard == {10_001: list(range(10)), 10_002: list(range(10))}


def test_closing_wakes_whoever_polls(consumer: tp.Consumer) -> None:
    poll = select.poll()
    poll.register(consumer, select.POLLIN)
    consumer.close()
    assert poll.poll(DEADLINE_MS)
    with pytest.raises(tp.ClosedError):
        consumer.read(0)
