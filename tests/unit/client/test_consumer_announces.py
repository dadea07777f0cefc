"""A consumer and the announces it hears: a real driver's files and messages, forged where a test says so, and a clock that stands still."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tensor_pool import _native
from tensor_pool.client.conductor import Conductor
from tensor_pool.client.consumer import Consumer, ConsumerOptions
from tensor_pool.client.services import ClientServices
from tensor_pool.consumer.state import ConsumerPhase
from tensor_pool.driver.config import DriverSettings, PoolSection, ProfileSection, StreamSection
from tensor_pool.errors import TransportError
from tensor_pool.sbe.control import ClockDomain, ShmPoolAnnounce, ShmRegionSuperblock
from tensor_pool.sbe.driver import LeaseRevokeReason, Role, ShmLeaseKeepalive, ShmLeaseRevoked
from tensor_pool.testing.clock import ManualClock
from tensor_pool.testing.driver import InvokedDriver
from tensor_pool.testing.driver_process import attach_request
from tensor_pool.uri import RegionUri

PERIOD_NS = 1_000_000_000
STREAM_ID = 10
SETTINGS = DriverSettings(
    profiles={"small": ProfileSection(header_nslots=4, payload_pools=(PoolSection(pool_id=1, stride_bytes=64),))},
    streams={"camera": StreamSection(stream_id=STREAM_ID, profile="small")},
)


@dataclass
class UnsentKeepalive:
    """Nothing renews the lease here, and nothing may end it."""

    clock: ManualClock

    @property
    def last_sent_ns(self) -> int:
        return self.clock.monotonic

    def close(self) -> None:
        """Nothing is held."""


class LinkToDriver:
    """What the consumer sends reaches the driver; of what the driver says only the answers come by themselves, announces by `hear`."""

    def __init__(self, driver: InvokedDriver) -> None:
        self.driver = driver
        self.inbox: list[tuple[bytes, int]] = []
        self.announced: list[ShmPoolAnnounce] = []

    def send_control(self, message: bytes) -> bool:
        self.keep(self.driver.send(message))
        return True

    def keep(self, said: list[Any]) -> None:
        self.announced += [message for message in said if isinstance(message, ShmPoolAnnounce)]
        self.inbox += [(message.encode(), 0) for message in said if not isinstance(message, ShmPoolAnnounce)]

    def drain(self) -> list[tuple[bytes, int]]:
        messages, self.inbox = self.inbox, []
        return messages

    def keep_alive(self, message: ShmLeaseKeepalive, interval_ns: int) -> UnsentKeepalive:
        return UnsentKeepalive(self.driver.clock)

    def open_reader(self, stream_id: int) -> _native.FrameReader:
        return _native.FrameReader(None, stream_id=stream_id)

    def close_reader(self, reader: _native.FrameReader) -> None:
        reader.close()

    def open_sleeping_counter(self, stream_id: int, client_id: int) -> _native.Counter:
        raise TransportError("there is no Aeron here")

    def wait(self, timeout_ns: int) -> bool:
        return False

    def wake(self) -> None:
        """Nobody waits."""

    def log_errors(self) -> None:
        """There are none."""


class Watched:
    """A consumer that is attached to the stream's first epoch, with `next_epoch` made and announced but not heard of."""

    def __init__(self, base_dir: Path, driver: InvokedDriver) -> None:
        self.clock = driver.clock
        self.link = LinkToDriver(driver)
        self.conductor = Conductor(cast("Any", self.link), self.clock)
        stack: Any = SimpleNamespace(allowed_base_dirs=(str(base_dir),), announce_period_ms=1000, lease_keepalive_interval_ms=1000)
        services = ClientServices(stack, cast("Any", self.link), self.conductor, self.clock, Random(1))
        self.consumer = Consumer(services, ConsumerOptions(STREAM_ID, wait_ns=0))
        self.announce = self.link.announced[-1]
        # the next epoch takes the name of this file away
        self.header = os.open(RegionUri.parse(self.announce.header_region_uri).path, os.O_RDWR | os.O_CLOEXEC)
        self.link.keep(driver.send(attach_request(STREAM_ID, 7, Role.PRODUCER)))
        self.next_announce = self.link.announced[-1]
        assert self.epoch == self.announce.epoch == self.next_announce.epoch - 1

    @property
    def epoch(self) -> int | None:
        """The epoch whose frames would be read."""
        return self.consumer.stats.epoch if self.consumer.state is ConsumerPhase.MAPPED else None

    def hear(self, announce: ShmPoolAnnounce, *, join_ns: int = 0, **changes: Any) -> None:
        stamped = replace(announce, **{"announce_timestamp_ns": self.clock.monotonic, **changes})
        self.link.inbox.append((stamped.encode(), join_ns))
        self.conductor.do_work()

    def close(self) -> None:
        self.consumer.close()
        os.close(self.header)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    base_dir = tmp_path / "shm"
    base_dir.mkdir()
    with InvokedDriver(base_dir, tmp_path / "state", SETTINGS) as driver:
        watched = Watched(base_dir, driver)
        yield watched
        watched.close()


@pytest.mark.requirement("W-10.1.1-8")
@pytest.mark.requirement("W-10.1.1-9")
@pytest.mark.requirement("W-15.1-6")
@pytest.mark.parametrize(("age_periods", "is_believed"), [(2.5, True), (3.5, False)])
def test_an_announce_older_than_three_periods_changes_nothing(watched: Watched, age_periods: float, is_believed: bool) -> None:
    watched.hear(watched.next_announce, announce_timestamp_ns=watched.clock.monotonic - int(age_periods * PERIOD_NS))
    assert watched.epoch == (watched.next_announce if is_believed else watched.announce).epoch
    assert watched.consumer.counters["announces_stale"] == (not is_believed)


@pytest.mark.requirement("W-10.1.1-10")
def test_an_announce_from_before_the_image_changes_nothing(watched: Watched) -> None:
    watched.hear(watched.next_announce, join_ns=watched.clock.monotonic + 1)
    assert watched.epoch == watched.announce.epoch
    assert watched.consumer.counters["announces_before_join"] == 1
    watched.hear(watched.next_announce, join_ns=watched.clock.monotonic)
    assert watched.epoch == watched.next_announce.epoch


@pytest.mark.requirement("W-10.1.1-11")
@pytest.mark.requirement("W-10.1.1-12")
def test_an_announce_of_the_wall_clock_has_to_be_fresh_by_it_and_nothing_else(watched: Watched) -> None:
    synced = {"announce_clock_domain": ClockDomain.REALTIME_SYNCED, "join_ns": 1 << 62}
    watched.clock.step_realtime(-watched.clock.realtime + 100 * PERIOD_NS)
    watched.hear(watched.next_announce, announce_timestamp_ns=96 * PERIOD_NS, **synced)
    assert watched.epoch == watched.announce.epoch
    watched.hear(watched.next_announce, announce_timestamp_ns=98 * PERIOD_NS, **synced)
    assert watched.epoch == watched.next_announce.epoch


@pytest.mark.requirement("W-10.1.1-7")
def test_the_highest_epoch_that_was_heard_of_is_the_mapped_one(watched: Watched) -> None:
    watched.hear(watched.next_announce)
    assert watched.epoch == watched.next_announce.epoch
    watched.hear(watched.announce)
    assert watched.epoch == watched.next_announce.epoch
    assert watched.consumer.counters["announces_lower_epoch"] == 1


@pytest.mark.requirement("W-15.1-3")
@pytest.mark.parametrize("field", ["magic", "epoch"])
def test_a_superblock_that_changed_is_found_by_the_next_announce_of_the_same_epoch(watched: Watched, field: str) -> None:
    watched.hear(watched.announce)
    assert watched.consumer.state is ConsumerPhase.MAPPED
    os.pwrite(watched.header, b"\0", ShmRegionSuperblock.OFFSETS[field])
    watched.hear(watched.announce)
    assert (watched.consumer.state, watched.epoch) == (ConsumerPhase.UNMAPPED, None)
    # the same epoch is not believed again, the next one is
    watched.hear(watched.announce)
    assert watched.consumer.state is ConsumerPhase.UNMAPPED
    watched.hear(watched.next_announce)
    assert watched.epoch == watched.next_announce.epoch


@pytest.mark.requirement("D-4.9-8")
def test_after_the_producer_was_revoked_a_consumer_waits_for_the_higher_epoch(watched: Watched) -> None:
    words = ShmLeaseRevoked(watched.clock.monotonic, 1, STREAM_ID, 7, Role.PRODUCER, LeaseRevokeReason.EXPIRED, "")
    watched.link.inbox.append((words.encode(), 0))
    watched.conductor.do_work()
    assert watched.epoch is None
    watched.hear(watched.announce)
    assert watched.epoch is None
    watched.hear(watched.next_announce)
    assert watched.epoch == watched.next_announce.epoch
