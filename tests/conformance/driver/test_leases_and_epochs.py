"""How leases end and what that does to epochs and announces (driver 4.4, 4.7 to 4.9, 4.12, 5 to 8, 10, 13)."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from struct import Struct
from typing import Any

import pytest

from tensor_pool.driver.operations import AdminRequest
from tensor_pool.errors import AttachRejectedError, ClosedError
from tensor_pool.sbe.control import Bool as ControlBool
from tensor_pool.sbe.control import ConsumerHello, Mode, ShmPoolAnnounce
from tensor_pool.sbe.driver import (
    LeaseRevokeReason,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmDriverShutdown,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
    ShutdownReason,
)
from tensor_pool.shm.layout import layout_from_announce
from tensor_pool.shm.mapping import MappedPools
from tensor_pool.shm.native_regions import NativeRegionFactory
from tensor_pool.testing.clock import ManualClock
from tensor_pool.testing.driver import InvokedDriver, PlainFileRegionFactory, RecordingLink

MakeDriver = Callable[..., InvokedDriver]
SECOND_NS = 1_000_000_000
INTERVAL_NS = SECOND_NS


def of_kind(said: list[Any], *kinds: type) -> list[Any]:
    return [message for message in said if isinstance(message, kinds)]


def attach(driver: InvokedDriver, role: Role, *, client_id: int, stream_id: int = 10) -> ShmAttachResponse:
    request = ShmAttachRequest(client_id, stream_id, client_id, role, 1, 8, PublishMode.REQUIRE_EXISTING, None)
    (response,) = of_kind(driver.send(request), ShmAttachResponse)
    assert response.code is ResponseCode.OK, response.error_message
    return response


def keepalive(lease: ShmAttachResponse, role: Role) -> ShmLeaseKeepalive:
    assert lease.lease_id is not None
    assert lease.stream_id is not None
    return ShmLeaseKeepalive(lease.lease_id, lease.stream_id, lease.correlation_id, role, 0)


def detach(lease: ShmAttachResponse, role: Role) -> ShmDetachRequest:
    assert lease.lease_id is not None
    assert lease.stream_id is not None
    return ShmDetachRequest(77, lease.lease_id, lease.stream_id, lease.correlation_id, role)


def hello(consumer_id: int) -> ConsumerHello:
    return ConsumerHello(10, consumer_id, ControlBool.TRUE, ControlBool.FALSE, Mode.STREAM, 0, 1, None, None, None, 0, 0, "", "")


def expire(driver: InvokedDriver, lease: ShmAttachResponse, role: Role) -> list[Any]:
    return driver.advance(4 * SECOND_NS)


def revoke(driver: InvokedDriver, lease: ShmAttachResponse, role: Role) -> list[Any]:
    driver.ask("revoke", lease_id=lease.lease_id)
    return driver.said()


def detach_now(driver: InvokedDriver, lease: ShmAttachResponse, role: Role) -> list[Any]:
    return driver.send(detach(lease, role))


ENDS = [
    pytest.param(expire, LeaseRevokeReason.EXPIRED, id="expired"),
    pytest.param(revoke, LeaseRevokeReason.REVOKED, id="revoked"),
    pytest.param(detach_now, LeaseRevokeReason.DETACHED, id="detached"),
]


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D-4.9-5")
@pytest.mark.requirement("D-4.7-1")
@pytest.mark.parametrize(("end", "reason"), ENDS)
@pytest.mark.parametrize("role", Role)
def test_every_end_of_a_lease_is_said_with_its_reason(driver: InvokedDriver, end: Any, reason: LeaseRevokeReason, role: Role) -> None:
    lease = attach(driver, role, client_id=5)
    assert [held["state"] for held in driver.ask("leases")["leases"]] == ["attached"]
    driver.send(keepalive(lease, role))
    assert [held["state"] for held in driver.ask("leases")["leases"]] == ["active"]
    (notice,) = of_kind(end(driver, lease, role), ShmLeaseRevoked)
    assert (notice.lease_id, notice.stream_id, notice.client_id, notice.role, notice.reason) == (lease.lease_id, 10, 5, role, reason)
    assert notice.error_message


@pytest.mark.requirement("W-10.1.1-1")
@pytest.mark.requirement("D-4.7-4")
@pytest.mark.requirement("D-4.7-5")
@pytest.mark.requirement("D-4.4-5")
@pytest.mark.requirement("D-4.10-1")
@pytest.mark.requirement("D-6-2")
@pytest.mark.requirement("D-6-3")
@pytest.mark.requirement("D-6-4")
@pytest.mark.requirement("D-4.9-4")
@pytest.mark.parametrize(("end", "reason"), ENDS)
def test_when_a_producer_goes_the_notice_is_followed_at_once_by_a_higher_epoch(
    driver: InvokedDriver, end: Any, reason: LeaseRevokeReason
) -> None:
    lease = attach(driver, Role.PRODUCER, client_id=5)
    said = of_kind(end(driver, lease, Role.PRODUCER), ShmLeaseRevoked, ShmPoolAnnounce)
    position = next(index for index, message in enumerate(said) if isinstance(message, ShmLeaseRevoked))
    notice, announce = said[position], said[position + 1]
    assert isinstance(announce, ShmPoolAnnounce)
    assert announce.epoch == lease.epoch + 1
    assert announce.announce_timestamp_ns - notice.timestamp_ns < SECOND_NS // 10
    assert announce.producer_id == 0
    assert {message.epoch for message in said[position + 1 :]} == {lease.epoch + 1}


@pytest.mark.parametrize(("end", "reason"), ENDS)
def test_when_a_consumer_goes_the_epoch_stays(driver: InvokedDriver, end: Any, reason: LeaseRevokeReason) -> None:
    lease = attach(driver, Role.CONSUMER, client_id=5)
    end(driver, lease, Role.CONSUMER)
    assert attach(driver, Role.CONSUMER, client_id=6).epoch == lease.epoch


@pytest.mark.requirement("D-6-1")
@pytest.mark.requirement("D-7-3")
@pytest.mark.parametrize(("end", "reason"), ENDS)
def test_the_next_producer_gets_one_epoch_more_and_files_of_its_own(driver: InvokedDriver, end: Any, reason: LeaseRevokeReason) -> None:
    consumer = attach(driver, Role.CONSUMER, client_id=4)
    first = attach(driver, Role.PRODUCER, client_id=5)
    assert first.epoch == consumer.epoch + 1
    end(driver, first, Role.PRODUCER)
    second = attach(driver, Role.PRODUCER, client_id=6)
    assert second.epoch == first.epoch + 2
    assert second.header_region_uri != first.header_region_uri


@pytest.mark.requirement("D-4.8-1")
@pytest.mark.requirement("D-4.8-2")
def test_lease_ids_never_come_twice(driver: InvokedDriver) -> None:
    seen = set()
    for number in range(1, 301):
        role = Role.PRODUCER if number % 10 == 0 else Role.CONSUMER
        lease = attach(driver, role, client_id=number)
        seen.add(lease.lease_id)
        if number % 3 == 0:
            driver.ask("revoke", lease_id=lease.lease_id)
        else:
            driver.send(detach(lease, role))
    assert len(seen) == 300


# --- keepalive ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D-4.4-3")
@pytest.mark.parametrize("role", Role)
def test_keepalives_extend_a_lease_past_its_first_expiry(driver: InvokedDriver, role: Role) -> None:
    lease = attach(driver, role, client_id=5)
    for _ in range(10):
        driver.send(keepalive(lease, role))
        assert of_kind(driver.advance(INTERVAL_NS), ShmLeaseRevoked) == []
    assert driver.agent.counters.keepalives_accepted == 10


@pytest.mark.requirement("D-4.4-1")
@pytest.mark.requirement("D-4.4-7")
@pytest.mark.requirement("D-7-1")
@pytest.mark.requirement("D-7-2")
@pytest.mark.requirement("D-4.1-3")
def test_three_missed_keepalives_end_a_lease_and_not_less(driver: InvokedDriver) -> None:
    lease = attach(driver, Role.PRODUCER, client_id=5)
    driver.send(keepalive(lease, Role.PRODUCER))
    assert of_kind(driver.advance(3 * INTERVAL_NS), ShmLeaseRevoked) == []
    (notice,) = of_kind(driver.advance(INTERVAL_NS // 10), ShmLeaseRevoked)
    assert notice.reason is LeaseRevokeReason.EXPIRED
    assert driver.ask("leases") == {"leases": []}


@pytest.mark.requirement("D-4.4-8")
@pytest.mark.requirement("D-4.4-4")
def test_the_interval_and_grace_of_the_configuration_hold(make_driver: MakeDriver) -> None:
    driver = make_driver(lease_keepalive_interval_ms=100, lease_expiry_grace_intervals=5)
    lease = attach(driver, Role.CONSUMER, client_id=5)
    assert lease.lease_expiry_timestamp_ns == driver.clock.monotonic_ns() + SECOND_NS // 2
    assert of_kind(driver.advance(SECOND_NS // 2), ShmLeaseRevoked) == []
    assert len(of_kind(driver.advance(SECOND_NS // 10), ShmLeaseRevoked)) == 1


@pytest.mark.requirement("D-4.4-9")
@pytest.mark.requirement("D-4.4-6")
def test_status_tells_interval_and_grace(driver: InvokedDriver) -> None:
    status = driver.ask("status")
    assert (status["lease_keepalive_interval_ms"], status["lease_expiry_grace_intervals"]) == (1000, 3)


@pytest.mark.requirement("D-4.1-1")
@pytest.mark.parametrize("wrong", [{"lease_id": 1}, {"stream_id": 11}, {"client_id": 6}, {"role": Role.PRODUCER}])
def test_a_keepalive_that_does_not_match_in_all_four_extends_nothing(driver: InvokedDriver, wrong: dict[str, Any]) -> None:
    lease = attach(driver, Role.CONSUMER, client_id=5)
    driver.advance(2 * SECOND_NS)
    driver.send(replace(keepalive(lease, Role.CONSUMER), **wrong))
    assert driver.agent.counters.keepalives_unmatched == 1
    assert len(of_kind(driver.advance(SECOND_NS + SECOND_NS // 10), ShmLeaseRevoked)) == 1


@pytest.mark.parametrize(("end", "reason"), ENDS)
def test_a_keepalive_never_revives_a_lease(driver: InvokedDriver, end: Any, reason: LeaseRevokeReason) -> None:
    lease = attach(driver, Role.CONSUMER, client_id=5)
    end(driver, lease, Role.CONSUMER)
    driver.send(keepalive(lease, Role.CONSUMER))
    assert driver.agent.counters.keepalives_unmatched == 1
    assert driver.ask("leases") == {"leases": []}


def test_a_stall_of_the_driver_ends_nobodys_lease(driver: InvokedDriver) -> None:
    lease = attach(driver, Role.PRODUCER, client_id=5)
    driver.clock.advance(60 * SECOND_NS)
    driver.run()
    assert of_kind(driver.said(), ShmLeaseRevoked) == []
    assert driver.agent.counters.stalls_credited == 1
    driver.send(keepalive(lease, Role.PRODUCER))
    assert of_kind(driver.advance(2 * SECOND_NS), ShmLeaseRevoked) == []


def test_a_step_of_the_wall_clock_ends_nobodys_lease(driver: InvokedDriver) -> None:
    attach(driver, Role.PRODUCER, client_id=5)
    for step_ns in (3600 * SECOND_NS, -7200 * SECOND_NS):
        driver.clock.step_realtime(step_ns)
        assert of_kind(driver.advance(SECOND_NS), ShmLeaseRevoked) == []


def test_keepalives_that_wait_in_the_queue_are_heard_before_a_lease_is_judged(driver: InvokedDriver) -> None:
    lease = attach(driver, Role.CONSUMER, client_id=5)
    driver.advance(3 * SECOND_NS)
    for _ in range(2000):
        driver.link.deliver(hello(9).encode())
    driver.link.deliver(keepalive(lease, Role.CONSUMER).encode())
    assert of_kind(driver.advance(SECOND_NS), ShmLeaseRevoked) == []


def test_a_flood_that_never_ends_does_not_keep_a_dead_lease_alive(driver: InvokedDriver) -> None:
    attach(driver, Role.PRODUCER, client_id=5)
    notices: list[Any] = []
    for _ in range(800):
        for _ in range(600):
            driver.link.deliver(b"\0" * 8)
        driver.clock.advance(SECOND_NS // 100)
        driver.agent.do_work()
        notices += of_kind(driver.said(), ShmLeaseRevoked)
        if notices:
            break
    assert len(notices) == 1


# --- detach ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D-4.9-2")
def test_detach_is_answered_ok_and_ends_the_lease(driver: InvokedDriver) -> None:
    lease = attach(driver, Role.CONSUMER, client_id=5)
    (response,) = of_kind(driver.send(detach(lease, Role.CONSUMER)), ShmDetachResponse)
    assert (response.correlation_id, response.code) == (77, ResponseCode.OK)
    assert driver.ask("leases") == {"leases": []}


@pytest.mark.requirement("D-4.9-2")
@pytest.mark.requirement("D-4.9-3")
@pytest.mark.parametrize("wrong", [{"lease_id": 1}, {"stream_id": 11}, {"client_id": 6}, {"role": Role.PRODUCER}])
def test_detach_that_does_not_match_in_all_four_is_rejected(driver: InvokedDriver, wrong: dict[str, Any]) -> None:
    lease = attach(driver, Role.CONSUMER, client_id=5)
    (response,) = of_kind(driver.send(replace(detach(lease, Role.CONSUMER), **wrong)), ShmDetachResponse)
    assert (response.correlation_id, response.code) == (77, ResponseCode.REJECTED)
    assert len(driver.ask("leases")["leases"]) == 1


@pytest.mark.requirement("D-4.9-1")
def test_detaching_twice_does_no_harm(driver: InvokedDriver) -> None:
    lease = attach(driver, Role.PRODUCER, client_id=5)
    driver.send(detach(lease, Role.PRODUCER))
    said = driver.send(detach(lease, Role.PRODUCER))
    assert [type(message) for message in said] == [ShmDetachResponse]
    assert attach(driver, Role.PRODUCER, client_id=6).epoch == lease.epoch + 2


def test_revoking_an_unknown_lease_is_refused_in_words(driver: InvokedDriver) -> None:
    with pytest.raises(AttachRejectedError, match="no lease 17"):
        driver.ask("revoke", lease_id=17)


# --- announces -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("W-10.1.1-1")
def test_a_stream_is_announced_every_period(make_driver: MakeDriver) -> None:
    driver = make_driver(announce_period_ms=250)
    attach(driver, Role.CONSUMER, client_id=5)
    driver.advance(SECOND_NS)
    times = [announce.announce_timestamp_ns for announce in of_kind(driver.advance(5 * SECOND_NS), ShmPoolAnnounce)]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [250_000_000] * (len(times) - 1)
    assert len(times) == 20


@pytest.mark.requirement("D-8-2")
@pytest.mark.requirement("W-10.1.1-2")
@pytest.mark.requirement("W-10.1.1-3")
def test_announce_and_response_say_the_same(driver: InvokedDriver) -> None:
    lease = attach(driver, Role.PRODUCER, client_id=5)
    driver.advance(SECOND_NS // 2)
    announce = of_kind(driver.advance(SECOND_NS), ShmPoolAnnounce)[-1]
    assert (announce.stream_id, announce.epoch, announce.layout_version) == (lease.stream_id, lease.epoch, lease.layout_version)
    assert (announce.header_nslots, announce.header_slot_bytes, announce.header_region_uri) == (
        lease.header_nslots,
        lease.header_slot_bytes,
        lease.header_region_uri,
    )
    said = [(pool.pool_id, pool.pool_nslots, pool.stride_bytes, pool.region_uri) for pool in announce.payload_pools]
    assert said == [(pool.pool_id, pool.pool_nslots, pool.stride_bytes, pool.region_uri) for pool in lease.payload_pools]
    assert announce.encode()[8 + 24] == 1


@pytest.mark.requirement("D-8-3")
def test_the_producer_id_is_that_of_the_attached_producer_or_zero(driver: InvokedDriver) -> None:
    attach(driver, Role.CONSUMER, client_id=4)
    assert {announce.producer_id for announce in of_kind(driver.advance(2 * SECOND_NS), ShmPoolAnnounce)} == {0}
    lease = attach(driver, Role.PRODUCER, client_id=5)
    assert {announce.producer_id for announce in of_kind(driver.advance(2 * SECOND_NS), ShmPoolAnnounce)} == {5}
    said = driver.send(detach(lease, Role.PRODUCER)) + driver.advance(2 * SECOND_NS)
    assert {announce.producer_id for announce in of_kind(said, ShmPoolAnnounce)} == {0}


def test_a_new_epoch_is_announced_at_once(driver: InvokedDriver) -> None:
    request = ShmAttachRequest(5, 10, 5, Role.PRODUCER, 1, 8, PublishMode.REQUIRE_EXISTING, None)
    response, announce = driver.send(request)
    assert (announce.epoch, announce.announce_timestamp_ns) == (response.epoch, driver.clock.monotonic_ns())


@pytest.mark.requirement("W-6-1")
@pytest.mark.parametrize("factory", [PlainFileRegionFactory, NativeRegionFactory])
def test_an_epoch_is_announced_when_its_files_are_whole_and_not_before(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, factory: Callable[[], Any]
) -> None:
    """Every announce is followed to its files at the moment it is sent. No fsync: it does nothing on tmpfs (decision E41)."""
    seen: list[int] = []

    def look(link: RecordingLink, data: bytes) -> bool:
        announce = ShmPoolAnnounce.decode(data)
        now_ns = announce.announce_timestamp_ns
        with MappedPools.open(layout_from_announce(announce), [str(root)], writable=False, now_ns=now_ns, freshness_ns=0):
            seen.append(announce.epoch)
        return link.send_control(data)

    monkeypatch.setattr(RecordingLink, "send_announce", look)
    driver = make_driver(region_factory=factory())
    root = driver.root
    consumer = attach(driver, Role.CONSUMER, client_id=4)
    lease = attach(driver, Role.PRODUCER, client_id=5)
    driver.send(detach(lease, Role.PRODUCER))
    assert sorted(set(seen)) == [consumer.epoch, lease.epoch, lease.epoch + 1]


def test_ten_thousand_hellos_are_five_announces_a_second(driver: InvokedDriver) -> None:
    attach(driver, Role.CONSUMER, client_id=4)
    driver.advance(SECOND_NS)
    announces = []
    for _ in range(100):
        for number in range(100):
            driver.link.deliver(hello(number).encode())
        announces += of_kind(driver.advance(SECOND_NS // 100), ShmPoolAnnounce)
    assert driver.agent.counters.hellos_accepted == 10_000
    assert 5 <= len(announces) <= 6  # and the periodic one


def test_a_hello_is_answered_with_an_announce_well_before_the_period(make_driver: MakeDriver) -> None:
    driver = make_driver(announce_period_ms=10_000)
    attach(driver, Role.CONSUMER, client_id=4)
    driver.advance(SECOND_NS)
    driver.send(hello(9))
    assert len(of_kind(driver.send(hello(9)) + driver.advance(SECOND_NS), ShmPoolAnnounce)) <= 2
    assert driver.agent.counters.announces_sent >= 2


@pytest.mark.requirement("D-3-5")
@pytest.mark.requirement("W-7.1-4")
@pytest.mark.parametrize("role", Role)
def test_activity_advances_with_and_without_a_producer_and_nothing_else_changes(driver: InvokedDriver, role: Role) -> None:
    lease = attach(driver, role, client_id=5)
    header = driver.root / "10" / str(lease.epoch) / "header.ring"
    word = Struct("<Q")
    seen = []
    for _ in range(3):
        driver.send(keepalive(lease, role))
        driver.advance(SECOND_NS)
        superblock = header.read_bytes()[:64]
        seen.append(superblock[:56])
        assert driver.clock.monotonic_ns() - word.unpack_from(superblock, 56)[0] <= SECOND_NS
    assert len(set(seen)) == 1


@pytest.mark.requirement("D-3-6")
def test_a_producer_that_hangs_does_not_keep_its_epoch_alive(driver: InvokedDriver) -> None:
    lease = attach(driver, Role.PRODUCER, client_id=5)
    driver.advance(10 * SECOND_NS)
    content = (driver.root / "10" / str(lease.epoch) / "header.ring").read_bytes()
    assert driver.clock.monotonic_ns() - int.from_bytes(content[56:64], "little") > 3 * SECOND_NS


# --- the end of the driver, and its next life --------------------------------------------------------------------------


@pytest.mark.requirement("D-4.12-4")
@pytest.mark.requirement("W-15.14-4")
def test_the_last_words_are_a_shutdown_notice_and_no_file_is_left(driver: InvokedDriver) -> None:
    attach(driver, Role.PRODUCER, client_id=5)
    attach(driver, Role.CONSUMER, client_id=6, stream_id=11)
    driver.said()
    driver.close()
    (notice,) = driver.said()
    assert isinstance(notice, ShmDriverShutdown)
    assert notice.reason is ShutdownReason.NORMAL
    assert list(driver.root.rglob("*")) == []
    with pytest.raises(ClosedError):
        driver.ask("status")


@pytest.mark.requirement("D-4.12-1")
def test_an_administrator_ends_the_driver_and_clients_read_why(driver: InvokedDriver) -> None:
    driver.ask("shutdown")
    assert driver.agent.stop_requested.is_set()
    driver.close()
    (notice,) = driver.said()
    assert notice.reason is ShutdownReason.ADMIN


def test_a_blocked_transport_delays_the_end_no_longer_than_the_timeout(make_driver: MakeDriver) -> None:
    driver = make_driver(shutdown_timeout_ms=50)
    driver.link.is_blocked = True
    begin_ns = driver.clock.monotonic_ns()
    driver.close()
    assert 50_000_000 <= driver.clock.monotonic_ns() - begin_ns <= 60_000_000


def test_answers_wait_for_a_blocked_transport_in_their_order(driver: InvokedDriver) -> None:
    driver.link.is_blocked = True
    requests = [ShmAttachRequest(number, 10, number, Role.CONSUMER, 1, 8, None, None) for number in (1, 2, 3)]
    assert driver.send(*requests) == []
    driver.link.is_blocked = False
    said = driver.send(ShmAttachRequest(4, 10, 4, Role.CONSUMER, 1, 8, None, None))
    assert [message.correlation_id for message in of_kind(said, ShmAttachResponse)] == [1, 2, 3, 4]


def test_answers_that_nobody_takes_are_given_up_and_counted(driver: InvokedDriver) -> None:
    driver.link.is_blocked = True
    driver.send(ShmAttachRequest(1, 99, 1, Role.CONSUMER, 1, 8, None, None))
    driver.advance(3 * SECOND_NS)
    driver.link.is_blocked = False
    assert of_kind(driver.advance(SECOND_NS), ShmAttachResponse) == []
    assert driver.agent.counters.messages_unsent == 1


def crash(driver: InvokedDriver) -> None:
    """As after SIGKILL: no goodbye, the files stay."""
    driver.agent.do_work = None  # type: ignore[method-assign, assignment]


@pytest.mark.requirement("D-10-3")
@pytest.mark.requirement("D-13-2")
@pytest.mark.requirement("D-6-6")
@pytest.mark.parametrize("wiped", ["nothing", "shared memory", "the file of epochs", "everything"])
def test_epochs_rise_over_a_crash_whatever_was_wiped(make_driver: MakeDriver, tmp_path: Any, wiped: str) -> None:
    clock = ManualClock()
    first = make_driver(clock=clock)
    lease = attach(first, Role.PRODUCER, client_id=5)
    for number in range(6, 9):
        first.send(detach(lease, Role.PRODUCER))
        lease = attach(first, Role.PRODUCER, client_id=number)
    crash(first)
    clock.advance(20_000_000)
    if wiped in ("shared memory", "everything"):
        shutil.rmtree(tmp_path / "shm")
        (tmp_path / "shm").mkdir()
    if wiped in ("the file of epochs", "everything"):
        shutil.rmtree(tmp_path / "state")
    if wiped not in ("everything",):
        clock.step_realtime(-365 * 86_400 * SECOND_NS)
    second = make_driver(clock=clock)
    assert attach(second, Role.PRODUCER, client_id=9).epoch > lease.epoch


@pytest.mark.requirement("D-10-4")
def test_leases_of_a_former_life_mean_nothing(make_driver: MakeDriver) -> None:
    first = make_driver()
    lease = attach(first, Role.PRODUCER, client_id=5)
    crash(first)
    second = make_driver(clock=first.clock)
    second.send(keepalive(lease, Role.PRODUCER))
    assert second.agent.counters.keepalives_unmatched == 1
    assert attach(second, Role.PRODUCER, client_id=6).epoch > lease.epoch


@pytest.mark.requirement("W-15.21a.7-1")
@pytest.mark.requirement("W-15.21a.7-2")
def test_files_of_a_crash_are_collected_when_they_are_stale(make_driver: MakeDriver) -> None:
    first = make_driver()
    old = attach(first, Role.PRODUCER, client_id=5)
    crash(first)
    first.clock.advance(10 * SECOND_NS)
    second = make_driver(clock=first.clock)
    new = attach(second, Role.PRODUCER, client_id=6)
    assert {path.name for path in (second.root / "10").iterdir()} == {str(new.epoch)}
    assert new.epoch > old.epoch


@pytest.mark.requirement("W-15.21a.7-2")
def test_what_a_crash_left_a_moment_ago_goes_at_the_next_collection(make_driver: MakeDriver) -> None:
    first = make_driver()
    old = attach(first, Role.PRODUCER, client_id=5)
    crash(first)
    second = make_driver(clock=first.clock)
    second.run()
    assert (second.root / "10" / str(old.epoch)).exists()
    second.advance(11 * SECOND_NS)
    assert not (second.root / "10" / str(old.epoch)).exists()


# --- slow files ----------------------------------------------------------------------------------------------------------


def pass_without_files(driver: InvokedDriver, duration_ns: int) -> list[Any]:
    """Time goes by while the worker is busy."""
    for _ in range(duration_ns // 10_000_000):
        driver.clock.advance(10_000_000)
        driver.agent.do_work()
    return driver.said()


def test_an_epoch_whose_producer_went_is_not_announced_again_however_long_the_next_takes(driver: InvokedDriver) -> None:
    consumer = attach(driver, Role.CONSUMER, client_id=4)
    lease = attach(driver, Role.PRODUCER, client_id=5)
    driver.link.deliver(detach(lease, Role.PRODUCER).encode())
    driver.link.deliver(hello(4).encode())
    assert of_kind(pass_without_files(driver, 2 * SECOND_NS), ShmPoolAnnounce) == []
    # nor does a request that is repeated meanwhile get the epoch that has ended
    driver.link.deliver(ShmAttachRequest(4, 10, 4, Role.CONSUMER, 1, 8, PublishMode.REQUIRE_EXISTING, None).encode())
    assert of_kind(pass_without_files(driver, SECOND_NS // 2), ShmAttachResponse) == []
    driver.run()
    assert {announce.epoch for announce in of_kind(driver.said(), ShmPoolAnnounce)} == {lease.epoch + 1}
    assert consumer.epoch == lease.epoch - 1


def test_files_that_take_long_hold_up_nobody_else(driver: InvokedDriver) -> None:
    other = attach(driver, Role.CONSUMER, client_id=4, stream_id=11)
    requests = [ShmAttachRequest(number, 10, number, Role.PRODUCER, 1, 8, None, None) for number in (5, 6)]
    for request in requests:
        driver.link.deliver(request.encode())
    assert of_kind(pass_without_files(driver, SECOND_NS // 10), ShmAttachResponse) == []
    driver.link.deliver(keepalive(other, Role.CONSUMER).encode())
    driver.link.deliver(ShmAttachRequest(7, 11, 7, Role.CONSUMER, 1, 8, None, None).encode())
    said = pass_without_files(driver, 2 * SECOND_NS)
    assert [response.correlation_id for response in of_kind(said, ShmAttachResponse)] == [7]
    assert len({announce.announce_timestamp_ns for announce in of_kind(said, ShmPoolAnnounce)}) >= 2
    assert driver.agent.counters.keepalives_accepted == 1
    driver.run()
    answers = {response.correlation_id: response.code for response in of_kind(driver.said(), ShmAttachResponse)}
    assert answers == {5: ResponseCode.OK, 6: ResponseCode.REJECTED}


def test_a_provisioning_waits_for_files_that_are_being_made(driver: InvokedDriver) -> None:
    driver.ask("provision", stream_id=50, slots=4, stride_bytes=64)
    driver.link.deliver(ShmAttachRequest(5, 50, 5, Role.CONSUMER, 1, 8, None, None).encode())
    driver.agent.do_work()
    answer = driver.agent.submit(AdminRequest("provision", {"stream_id": 50, "slots": 8, "stride_bytes": 64}))
    driver.agent.do_work()
    assert not answer.done()
    driver.run()
    assert answer.result(timeout=0)["stream"]["slots"] == 8


# --- retention and layout --------------------------------------------------------------------------------------------------


def epochs_of(driver: InvokedDriver) -> set[int]:
    return {int(path.name) for path in (driver.root / "10").iterdir()}


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_as_many_epochs_stay_as_the_policy_keeps(make_driver: MakeDriver, keep: int) -> None:
    driver = make_driver(epoch_gc_keep=keep)
    owned = []
    for number in range(1, 6):
        lease = attach(driver, Role.PRODUCER, client_id=number)
        owned.append(lease.epoch)
        driver.advance(SECOND_NS // 10)
        assert epochs_of(driver) == set(owned[-keep:])
        driver.send(detach(lease, Role.PRODUCER))


def test_without_collection_every_owned_epoch_stays_until_the_end(make_driver: MakeDriver) -> None:
    driver = make_driver(epoch_gc_enabled=False)
    for number in range(1, 6):
        driver.send(detach(attach(driver, Role.PRODUCER, client_id=number), Role.PRODUCER))
    assert len(epochs_of(driver)) == 6
    driver.close()
    assert list(driver.root.iterdir()) == []


def test_an_epoch_that_is_kept_for_late_readers_makes_room_for_a_producer(make_driver: MakeDriver) -> None:
    class FullWhileItIsThere(PlainFileRegionFactory):
        def create(self, base_dir: str, relative_path: str, length: int, **how: Any) -> Any:
            is_there = any(path.name == str(kept) for path in (driver.root / "10").iterdir())
            self.budget_bytes = 0 if is_there and relative_path.endswith(".pool") else 1 << 30
            return super().create(base_dir, relative_path, length, **how)

    kept = 0
    driver = make_driver(region_factory=FullWhileItIsThere())
    first = attach(driver, Role.PRODUCER, client_id=1)
    driver.send(detach(first, Role.PRODUCER))
    kept = first.epoch
    assert kept in epochs_of(driver)
    attach(driver, Role.PRODUCER, client_id=2)
    assert kept not in epochs_of(driver)


@pytest.mark.requirement("D-6-5")
def test_new_sizes_are_a_new_epoch(driver: InvokedDriver) -> None:
    driver.ask("provision", stream_id=50, slots=4, stride_bytes=64)
    first = attach(driver, Role.CONSUMER, client_id=5, stream_id=50)
    driver.ask("provision", stream_id=50, slots=8, stride_bytes=128)
    announce = of_kind(driver.said(), ShmPoolAnnounce)[-1]
    assert (announce.epoch, announce.header_nslots, announce.payload_pools[0].stride_bytes) == (first.epoch + 1, 8, 128)
    driver.ask("provision", stream_id=50, slots=8, stride_bytes=128)
    assert attach(driver, Role.CONSUMER, client_id=6, stream_id=50).epoch == first.epoch + 1
