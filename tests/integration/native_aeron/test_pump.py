"""The pump: inboxes filled without Python, keepalives sent without Python, one eventfd."""

from __future__ import annotations

import itertools
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensor_pool import _native

PUBLICATION = "aeron:ipc?term-length=1m|sparse=false"
SUBSCRIPTION = "aeron:ipc?tether=false"
SECOND_NS = 1_000_000_000
WaitUntil = Callable[[Callable[[], object]], None]


def message(schema_id: int, template_id: int, body: bytes = b"") -> bytes:
    return struct.pack("<HHHH", len(body), template_id, schema_id, 1) + body


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


@pytest.fixture
def pump() -> Any:
    pump = _native.Pump()
    yield pump
    pump.close()


def test_keepalives_of_another_process_come_in_with_the_time_they_were_sent(
    client: _native.AeronClient, pump: _native.Pump, aeron_dir: str, start: Callable[..., Any], wait_until: WaitUntil
) -> None:
    inbox = pump.add_inbox(client.add_subscription(SUBSCRIPTION, 40), [(901, 4)])
    interval_ns = 20_000_000
    sender = start("keep_alive", aeron_dir, PUBLICATION, 40, interval_ns)
    received: list[tuple[bytes, int]] = []
    wait_until(lambda: received.extend(inbox.drain()) or len(received) >= 5)
    sender.end_of_input()
    sender.expect_exit(0)
    wait_until(lambda: not received.extend(inbox.drain()) and inbox.counters()["messages_received"] == len(received))
    sent = [struct.unpack_from("<QQ", data, 8) for data, _ in received]
    assert {client_id for client_id, _ in sent} == {77}
    times = [timestamp_ns for _, timestamp_ns in sent]
    assert all(later - earlier >= interval_ns for earlier, later in itertools.pairwise(times))
    last = sender.messages()[-1]
    assert last["last_sent_ns"] == times[-1]
    assert all(0 < join_ns < time.monotonic_ns() for _, join_ns in received)


def test_only_accepted_kinds_are_kept_and_the_rest_is_counted(
    client: _native.AeronClient, pump: _native.Pump, wait_until: WaitUntil
) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 41)
    inbox = pump.add_inbox(client.add_subscription(SUBSCRIPTION, 41), [(900, 1), (901, 2)])
    wait_until(lambda: publication.is_connected)
    wanted = [message(900, 1, b"a"), message(901, 2, bytes(3000))]
    refused = [b"", b"1234567", message(900, 2), message(1, 900), message(901, 1)]
    for data in [*refused, *wanted]:
        assert publication.offer(data) > 0
    received: list[tuple[bytes, int]] = []
    wait_until(lambda: received.extend(inbox.drain()) or len(received) == 2)
    assert [data for data, _ in received] == wanted
    assert inbox.counters() == {"messages_received": 7, "messages_refused": 5, "messages_dropped": 0}


def test_a_full_inbox_loses_the_oldest_and_counts_them(client: _native.AeronClient, pump: _native.Pump, wait_until: WaitUntil) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 42)
    inbox = pump.add_inbox(client.add_subscription(SUBSCRIPTION, 42), [(900, 1)], capacity=4)
    wait_until(lambda: publication.is_connected)
    for index in range(10):
        assert publication.offer(message(900, 1, bytes([index]))) > 0
    wait_until(lambda: inbox.counters()["messages_received"] == 10)
    assert [data[8] for data, _ in inbox.drain(3)] == [6, 7, 8]
    assert [data[8] for data, _ in inbox.drain()] == [9]
    assert inbox.counters()["messages_dropped"] == 6


def test_the_eventfd_is_readable_exactly_while_there_are_messages(
    client: _native.AeronClient, pump: _native.Pump, wait_until: WaitUntil
) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 43)
    inbox = pump.add_inbox(client.add_subscription(SUBSCRIPTION, 43), [(900, 1)])
    other = pump.add_inbox(client.add_subscription(SUBSCRIPTION, 44), [(900, 1)])
    wait_until(lambda: publication.is_connected)
    assert not readable(pump.fileno())
    assert pump.wait(0) is False
    for _ in range(3):
        publication.offer(message(900, 1))
    assert pump.wait(10 * SECOND_NS) is True
    wait_until(lambda: inbox.counters()["messages_received"] == 3)
    inbox.drain(2)
    assert readable(pump.fileno())
    assert other.drain() == []
    inbox.drain(2)
    assert not readable(pump.fileno())
    publication.offer(message(900, 1))
    wait_until(lambda: readable(pump.fileno()))
    inbox.close()
    assert not readable(pump.fileno())


def test_wake_ends_a_wait_once_even_when_an_inbox_is_drained_meanwhile(
    client: _native.AeronClient, pump: _native.Pump, wait_until: WaitUntil
) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 45)
    inbox = pump.add_inbox(client.add_subscription(SUBSCRIPTION, 45), [(900, 1)])
    wait_until(lambda: publication.offer(message(900, 1)) > 0)
    wait_until(lambda: readable(pump.fileno()))
    pump.wake()
    inbox.drain()
    assert pump.wait(0) is True
    assert pump.wait(0) is False
    waited = []
    thread = threading.Thread(target=lambda: waited.append(pump.wait(60 * SECOND_NS)))
    thread.start()
    pump.wake()
    thread.join(20)
    assert waited == [True]


def test_a_wait_is_interrupted_by_a_signal_handler_that_raises(pump: _native.Pump) -> None:
    class RungError(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise RungError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(RungError):
            pump.wait(60 * SECOND_NS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_wait_without_the_gil_lets_others_work(pump: _native.Pump) -> None:
    thread = threading.Thread(target=lambda: pump.wait(60 * SECOND_NS))
    thread.start()
    assert sum(range(1000)) == 499_500
    pump.wake()
    thread.join(20)
    assert not thread.is_alive()


def test_a_keepalive_is_tried_again_until_somebody_listens_and_stops_when_closed(
    client: _native.AeronClient, pump: _native.Pump, wait_until: WaitUntil
) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 46)
    data = message(901, 4, bytes(8))
    keepalive = pump.add_keepalive(publication, data, timestamp_offset=8, interval_ns=SECOND_NS // 100)
    wait_until(lambda: keepalive.refused > 3)
    assert keepalive.last_sent_ns == 0
    subscription = client.add_subscription(SUBSCRIPTION, 46)
    wait_until(lambda: keepalive.last_sent_ns > 0)
    received: list[bytes] = []
    wait_until(lambda: received.extend(data for data, _ in subscription.poll()) or len(received) >= 2)
    assert received[0][:8] == data[:8]
    assert received[0][8:] != bytes(8)
    keepalive.close()
    last_ns = keepalive.last_sent_ns
    publication.offer(b"end")
    wait_until(lambda: received.extend(data for data, _ in subscription.poll()) or b"end" in received)
    assert struct.unpack("<Q", [data for data in received if data != b"end"][-1][8:])[0] <= max(last_ns, keepalive.last_sent_ns)


def test_keepalives_that_cannot_be_sent_are_refused_at_once(client: _native.AeronClient, pump: _native.Pump) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 47)
    with pytest.raises(ValueError, match="offset 9 is not inside a message of 16 bytes"):
        pump.add_keepalive(publication, bytes(16), timestamp_offset=9, interval_ns=1)
    with pytest.raises(ValueError, match="longer than the 1376"):
        pump.add_keepalive(publication, bytes(1377), timestamp_offset=0, interval_ns=1)
    with pytest.raises(ValueError, match="at least 1"):
        pump.add_inbox(client.add_subscription(SUBSCRIPTION, 47), [], capacity=0)
    with pytest.raises(ValueError, match="at least 1"):
        _native.Pump(interval_ns=0)


def test_the_pump_drains_a_reader_that_nobody_reads(client: _native.AeronClient, pump: _native.Pump, wait_until: WaitUntil) -> None:
    publication = client.add_exclusive_publication("aeron:ipc?term-length=64k", 48)
    reader = _native.FrameReader(client.add_subscription("aeron:ipc", 48), stream_id=1)
    wait_until(lambda: publication.is_connected)
    pump.add_reader(reader)
    pump.add_reader(reader)

    def sends_more_than_its_window() -> bool:
        for _ in range(20):
            publication.offer(bytes(1000))
        return publication.offer(b"x") > 0

    for _ in range(20):
        wait_until(sends_more_than_its_window)
    pump.remove_reader(reader)
    reader.close()


def test_signals_do_not_reach_the_pump(pump: _native.Pump, wait_until: WaitUntil) -> None:
    def pump_threads() -> list[Path]:
        tasks = [Path(f"/proc/self/task/{task}") for task in os.listdir("/proc/self/task")]
        return [task for task in tasks if (task / "comm").read_text().startswith("tensor-pool-pum")]

    wait_until(pump_threads)
    [task] = pump_threads()
    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    blocked = int(status["SigBlk"].strip(), 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1):
        assert blocked & 1 << number - 1
