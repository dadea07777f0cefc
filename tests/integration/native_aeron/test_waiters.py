"""A producer wakes only whom it sees asleep, and everybody as long as it does not know of each whether he sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tensor_pool import _native
from tests.unit.native.rings import STREAM_ID, Ring, publish, ring

WaitUntil = Callable[[Callable[[], object]], None]
CONSUMER, OTHER = 71, 72
DESCRIPTORS = 1100
CHANNEL = "aeron:ipc?term-length=1m"


@pytest.fixture
def eight_slots() -> Iterator[Ring]:
    with ring() as made:
        yield made


class Camera:
    """A writer that looks for waiters, and how often it woke anybody."""

    def __init__(self, client: _native.AeronClient, made: Ring) -> None:
        publication = client.add_exclusive_publication(CHANNEL, DESCRIPTORS)
        self.waiters = _native.Waiters(client, STREAM_ID)
        self._writer = _native.RingWriter(
            made.header, made.pools, nslots=made.nslots, stream_id=STREAM_ID, epoch=11, publication=publication, waiters=self.waiters
        )

    def wakes(self) -> int:
        """How many wakes one publish costs."""
        before = self._writer.counters()["wakes_sent"]
        publish(self._writer, b"x")
        return self._writer.counters()["wakes_sent"] - before


def asleep(counter: _native.Counter) -> int:
    """How many reads sleep; above the low bits is how often one began to."""
    return counter.get() & 0xFFFF


@pytest.fixture
def camera(client: _native.AeronClient, eight_slots: Ring) -> Camera:
    return Camera(client, eight_slots)


def test_who_is_not_known_of_is_woken(client: _native.AeronClient, camera: Camera) -> None:
    assert camera.wakes() == 1
    assert not camera.waiters.watch([CONSUMER])
    assert camera.wakes() == 1
    counter = _native.sleeping_counter(client, STREAM_ID, CONSUMER)
    assert not camera.waiters.watch([CONSUMER, OTHER])
    assert camera.wakes() == 1
    # of another stream, with the same consumer id
    stranger = _native.sleeping_counter(client, STREAM_ID + 1, OTHER)
    assert not camera.waiters.watch([CONSUMER, OTHER])
    assert camera.waiters.watch([CONSUMER])
    assert camera.wakes() == 0
    stranger.set(1)
    assert camera.wakes() == 0
    counter.set(1)
    assert camera.wakes() == 1


def test_nobody_at_all_costs_no_wake_and_many_cost_one(client: _native.AeronClient, camera: Camera) -> None:
    assert camera.waiters.watch([])
    assert camera.wakes() == 0
    counters = [_native.sleeping_counter(client, STREAM_ID, consumer_id) for consumer_id in range(9)]
    assert camera.waiters.watch(range(8))
    assert camera.wakes() == 0
    assert not camera.waiters.watch(range(9))
    assert camera.wakes() == 1
    assert not any(counter.get() for counter in counters)


def test_a_sleeping_read_is_seen_and_woken(client: _native.AeronClient, camera: Camera, eight_slots: Ring, wait_until: WaitUntil) -> None:
    subscription = client.add_subscription(CHANNEL, DESCRIPTORS)
    reader = eight_slots.reader(subscription=subscription)
    wait_until(lambda: subscription.is_connected)
    counter = _native.sleeping_counter(client, STREAM_ID, CONSUMER)
    reader.set_sleeping_counter(counter)
    assert camera.waiters.watch([CONSUMER])
    for seq in range(50):
        seen: list[int] = []
        sleeper = threading.Thread(target=lambda seen=seen: seen.append(reader.read(20_000_000_000).seq), daemon=True)
        sleeper.start()
        wait_until(lambda: asleep(counter) == 1)
        camera.wakes()
        sleeper.join(20)
        assert (seen, asleep(counter)) == ([seq], 0)
    # who polls, or finds a frame at once, is not woken
    assert camera.wakes() == 0
    assert reader.read(0) is not None
    assert reader.read(0) is None
    assert reader.read(1000, spin=True) is None
    assert camera.wakes() == 0


def test_a_read_that_was_stopped_in_its_sleep_is_not_woken_for_ever(client: _native.AeronClient, camera: Camera) -> None:
    counter = _native.sleeping_counter(client, STREAM_ID, CONSUMER)
    assert camera.waiters.watch([CONSUMER])
    for sleep in range(1, 4):
        # it said so, and is on no slot: stopped before it slept, or by a signal that took it out of its sleep
        counter.set((sleep << 16) + 1)
        assert [camera.wakes() for _ in range(8)] == [1, 1, 1, 1, 0, 0, 0, 0]
    counter.set(3 << 16)
    assert camera.wakes() == 0


def test_a_dead_consumer_waits_for_nothing(client: _native.AeronClient, camera: Camera, wait_until: WaitUntil) -> None:
    other = _native.AeronClient(client.directory)
    counter = _native.sleeping_counter(other, STREAM_ID, CONSUMER)
    counter.set(1)
    wait_until(lambda: camera.waiters.watch([CONSUMER]))
    assert camera.wakes() == 1
    other.close()
    wait_until(lambda: not camera.waiters.watch([CONSUMER]))
    # its Hellos end, and then nobody is left
    assert camera.waiters.watch([])
    assert camera.wakes() == 0


def test_the_end_of_the_client_takes_the_counters_out_of_sight(client: _native.AeronClient, eight_slots: Ring) -> None:
    for turn in count():
        other = _native.AeronClient(client.directory)
        camera = Camera(other, eight_slots)
        counter = _native.sleeping_counter(other, STREAM_ID, CONSUMER)
        assert camera.waiters.watch([CONSUMER])
        if turn == 2:
            break
        # in both orders; what is left of the writer writes on without looking
        (camera.waiters if turn else other).close()
        assert camera.wakes() == 1
        other.close()
        counter.close()
    other.close()
    assert camera.wakes() == 1
