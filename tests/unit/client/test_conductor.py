"""The conductor: control traffic to the handles, refused messages to a counter, the end of the transport to everybody."""

from __future__ import annotations

import struct

import pytest

from tensor_pool.client.conductor import Conductor, ControlMessage
from tensor_pool.errors import MediaDriverTimeoutError, TransportError
from tensor_pool.sbe.driver import LeaseRevokeReason, Role, ShmLeaseRevoked
from tensor_pool.testing.clock import ManualClock
from tests.unit.client.fakes import FakeLink
from tests.vectors.known_answers import load_known_answers

REVOKED = ShmLeaseRevoked(1, 2, 10000, 3, Role.CONSUMER, LeaseRevokeReason.EXPIRED, "")


class Recorder:
    """A handle that keeps what it was told."""

    def __init__(self) -> None:
        self.messages: list[tuple[ControlMessage, int]] = []
        self.ticks = 0
        self.errors: list[TransportError] = []

    def on_message(self, message: ControlMessage, join_ns: int, now_ns: int) -> None:
        self.messages.append((message, join_ns))

    def on_tick(self, now_ns: int) -> None:
        self.ticks += 1

    def on_transport_lost(self, error: TransportError) -> None:
        self.errors.append(error)


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def conductor(link: FakeLink) -> Conductor:
    return Conductor(link, ManualClock())


def test_each_message_reaches_every_handle_once_with_the_time_of_joining(conductor: Conductor, link: FakeLink) -> None:
    first, second = Recorder(), Recorder()
    conductor.add(first)
    conductor.add(second)
    link.inbox = [(REVOKED.encode(), 17)]
    assert conductor.do_work() == 1
    assert conductor.do_work() == 0
    assert first.messages == second.messages == [(REVOKED, 17)]
    assert first.ticks == 2


@pytest.mark.requirement("D-4.9-9")
def test_a_revocation_for_an_unknown_reason_is_counted_and_nothing_else_happens(conductor: Conductor, link: FakeLink) -> None:
    handle = Recorder()
    conductor.add(handle)
    data = bytearray(REVOKED.encode())
    data[8 + 25] = 9
    link.inbox = [(bytes(data), 0), (REVOKED.encode(), 0)]
    conductor.do_work()
    assert handle.messages == [(REVOKED, 0)]
    assert conductor.malformed == 1


def test_whatever_is_refused_raises_the_counter_by_one_and_reaches_nobody(conductor: Conductor, link: FakeLink) -> None:
    handle = Recorder()
    conductor.add(handle)
    refused = [
        b"",
        bytes(7),
        bytes(64),
        REVOKED.encode()[:-1],
        REVOKED.encode() + b"\0",
        struct.pack("<HHHH", 26, 7, 901, 2) + REVOKED.encode()[8:],
        next(answer.data for answer in load_known_answers() if answer.schema == 910),
        next(answer.data for answer in load_known_answers() if answer.message == "TensorHeader"),
    ]
    for number, data in enumerate(refused, start=1):
        link.inbox = [(data, 0)]
        conductor.do_work()
        assert conductor.malformed == number
    assert handle.messages == []


def test_the_end_of_the_transport_is_told_once_and_raised_to_whoever_waits(conductor: Conductor, link: FakeLink) -> None:
    handle = Recorder()
    conductor.add(handle)
    link.error = MediaDriverTimeoutError("the media driver is gone")
    assert conductor.do_work() == 0
    assert conductor.do_work() == 0
    assert handle.errors == [link.error]
    with pytest.raises(MediaDriverTimeoutError):
        conductor.wait_until(lambda: False, 10**12)
    with pytest.raises(MediaDriverTimeoutError):
        conductor.add(Recorder())
    with pytest.raises(MediaDriverTimeoutError):
        conductor.check_open()


def test_a_removed_handle_hears_nothing_more(conductor: Conductor, link: FakeLink) -> None:
    handle = Recorder()
    conductor.add(handle)
    conductor.remove(handle)
    conductor.remove(handle)
    link.inbox = [(REVOKED.encode(), 0)]
    conductor.do_work()
    assert handle.messages == []
    assert handle.ticks == 0


def test_waiting_drives_the_conductor_and_ends_when_the_condition_holds(conductor: Conductor, link: FakeLink) -> None:
    handle = Recorder()
    conductor.add(handle)
    link.inbox = [(REVOKED.encode(), 0)]
    assert conductor.wait_until(lambda: bool(handle.messages), 10**12)
    assert not conductor.wait_until(lambda: False, 0)
