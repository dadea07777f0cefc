"""An announce that came late names files that are gone by then, and anybody can announce anything: what is mapped goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensor_pool.consumer.state import ConsumerPhase
from tensor_pool.session import Session
from tensor_pool.testing import check_frame, stamp_frame

from .conftest import DEADLINE_S, repeating, until
from .forger import Forger, forging

SHAPE = 512
LIES: dict[str, Callable[[Forger], dict[str, Any]]] = {
    "files that are gone": lambda forger: forger.moved(forger.true.epoch + 1),
    "the highest epoch there is": lambda forger: forger.moved(2**64 - 1),
    "the files of another epoch": lambda forger: {"epoch": forger.true.epoch + 1},
    "a file elsewhere": lambda forger: {"epoch": forger.true.epoch + 1, "header_region_uri": "shm:file?path=/etc/passwd"},
    "no file at all": lambda forger: {"epoch": forger.true.epoch + 1, "header_region_uri": "http://x"},
    "another layout of the epoch": lambda forger: {
        "header_nslots": 16,
        "payload_pools": tuple(replace(pool, pool_nslots=16) for pool in forger.true.payload_pools),
    },
}


@pytest.mark.requirement("W-10.1.1-7")
@pytest.mark.parametrize("lie", LIES)
def test_a_running_consumer_loses_nothing_to_an_announce_that_cannot_be_mapped(
    stack_session: Session, caplog: pytest.LogCaptureFixture, lie: str
) -> None:
    session = stack_session
    frame = np.empty(SHAPE, dtype=np.uint8)
    with (
        session.producer(10_000, shape=SHAPE, slots=8) as producer,
        session.consumer(10_000, wait=10.0) as consumer,
        forging(session) as forger,
    ):
        for number in range(10):
            forger.announce(**LIES[lie](forger))
            until(lambda number=number: consumer.counters["layouts_unmappable"] > number)
            stamp_frame(frame, producer.stats.last_seq + 1)
            producer.publish(frame)
            received = consumer.read(DEADLINE_S)
            assert received is not None
            assert check_frame(received.array, received.seq)
        assert consumer.state is ConsumerPhase.MAPPED
        assert consumer.stats == replace(
            consumer.stats, delivered=10, gap=0, late=0, unseen=0, first_seq=0, last_seq=9, epoch=forger.true.epoch
        )
        assert consumer.earlier_stats == ()
    assert [record for record in caplog.records if record.name == "tensor_pool.consumer" and record.levelname == "WARNING"] == []
    assert len([record for record in caplog.records if "cannot be mapped" in record.message]) <= 1


@pytest.mark.parametrize("lie", LIES)
def test_a_consumer_attaches_though_announces_that_cannot_be_mapped_beat_the_response(stack_session: Session, lie: str) -> None:
    session = stack_session
    with session.producer(10_000, shape=SHAPE, slots=8) as producer, forging(session) as forger:
        changes = LIES[lie](forger)
        with repeating(lambda: forger.announce(**changes), 0.002):
            for number in range(5):
                with session.consumer(10_000, wait=10.0) as consumer:
                    producer.publish(np.full(SHAPE, number, dtype=np.uint8))
                    received = consumer.read(DEADLINE_S)
                    assert received is not None
                    assert received.seq == number
                    assert consumer.stats.published == 1


@pytest.mark.parametrize("lie", LIES)
def test_a_reader_follows_from_producer_to_producer_through_announces_that_cannot_be_mapped(stack_session: Session, lie: str) -> None:
    session = stack_session
    frame = np.zeros(SHAPE, dtype=np.uint8)
    with (
        session.producer(10_000, shape=SHAPE, slots=8),
        session.consumer(10_000, wait=10.0) as consumer,
        forging(session) as forger,
    ):
        changes = LIES[lie](forger)
    with session.consumer(10_000, wait=10.0) as consumer, forging(session) as forger, repeating(lambda: forger.announce(**changes), 0.002):
        for _ in range(3):
            with session.producer(10_000, shape=SHAPE, slots=8, wait=10.0) as producer:
                until(lambda producer=producer: (producer.publish(frame), consumer.read(0))[1] is not None)
                stats = consumer.stats
                assert (stats.epoch, stats.first_seq) == (producer.epoch, 0)
        assert all(stats.balanced for stats in consumer.earlier_stats)


def test_the_counts_of_an_epoch_go_on_when_a_descriptor_comes_twice(stack_session: Session) -> None:
    """It makes the consumer map the epoch anew; what was on its way then is a gap."""
    session = stack_session
    with (
        session.producer(10_000, shape=SHAPE, slots=64) as producer,
        session.consumer(10_000, wait=10.0) as consumer,
        forging(session) as forger,
    ):
        for lies in range(1, 6):
            for _ in range(10):
                producer.publish(np.zeros(SHAPE, dtype=np.uint8))
            heard = consumer.counters["descriptors_received"]
            forger.describe(3)
            until(lambda heard=heard: (consumer.read(0), consumer.counters["descriptors_received"] > heard)[1])
            # an announce that is counted: the conductor has passed by
            forger.announce(epoch=2**64 - 1)
            until(lambda lies=lies: consumer.counters["layouts_unmappable"] >= lies)
            stats = consumer.stats
            assert stats.balanced
            assert (stats.first_seq, stats.published) == (0, producer.stats.published)
        assert consumer.earlier_stats == ()
        until(lambda: (producer.publish(np.zeros(SHAPE, dtype=np.uint8)), consumer.read(0))[1] is not None)
