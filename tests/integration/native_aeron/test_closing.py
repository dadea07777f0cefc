"""Closing: in any order, twice, while others use it, and in a forked child."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tensor_pool import _native
from tensor_pool.errors import ClosedError

PUBLICATION = "aeron:ipc?term-length=64k|sparse=false"
WaitUntil = Callable[[Callable[[], object]], None]


def _everything(client: _native.AeronClient) -> dict[str, Any]:
    subscription = client.add_subscription("aeron:ipc?tether=false", 30)
    pump = _native.Pump()
    publication = client.add_exclusive_publication(PUBLICATION, 30)
    return {
        "publication": publication,
        "subscription": subscription,
        "counter": client.add_counter(2000, b"", "c"),
        "pump": pump,
        "inbox": pump.add_inbox(subscription, [(1, 1)]),
        "keepalive": pump.add_keepalive(publication, bytes(16), timestamp_offset=8, interval_ns=1_000_000),
        "client": client,
    }


@pytest.mark.parametrize("order", list(itertools.permutations(["client", "pump", "publication", "subscription"])))
def test_any_order_of_closing_is_fine(media_driver: _native.MediaDriver, order: tuple[str, ...]) -> None:
    handles = _everything(_native.AeronClient(media_driver.directory, idle_sleep="1ms"))
    for name in order:
        handles[name].close()
        handles[name].close()
    for name in ("keepalive", "inbox", "counter"):
        handles[name].close()
    assert handles["client"].is_closed
    assert handles["client"].take_errors() == []
    _assert_closed(handles)


def _assert_closed(handles: dict[str, Any]) -> None:
    publication, subscription, counter = handles["publication"], handles["subscription"], handles["counter"]
    pump, inbox, client = handles["pump"], handles["inbox"], handles["client"]
    uses: list[Callable[[], object]] = [
        lambda: publication.offer(b"x"),
        lambda: publication.try_claim(1),
        subscription.poll,
        counter.get,
        lambda: counter.set(1),
        lambda: counter.add(1),
        inbox.drain,
        lambda: pump.wait(0),
        pump.wake,
        pump.fileno,
        lambda: pump.add_inbox(subscription, []),
        lambda: client.add_subscription("aeron:ipc", 1),
        client.counters,
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()
    assert not publication.is_connected
    assert not subscription.is_connected


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_letting_go_is_fine(media_driver: _native.MediaDriver, seed: int) -> None:
    handles = _everything(_native.AeronClient(media_driver.directory, idle_sleep="1ms"))
    for name in sorted(handles, key=lambda name: hash((name, seed))):
        del handles[name]
        gc.collect()


def test_the_driver_may_go_first(aeron_dir: str) -> None:
    driver = _native.MediaDriver(aeron_dir, {})
    handles = _everything(_native.AeronClient(aeron_dir, driver_timeout_ms=1000))
    driver.close()
    for handle in handles.values():
        handle.close()


def test_a_client_may_be_closed_while_threads_use_it(media_driver: _native.MediaDriver, wait_until: WaitUntil) -> None:
    for _ in range(5):
        handles = _everything(_native.AeronClient(media_driver.directory, idle_sleep="1ms"))
        ends: list[str] = []
        began = threading.Barrier(4)

        def use(action: Callable[[], object], ends: list[str] = ends, began: threading.Barrier = began) -> None:
            began.wait()
            try:
                while True:
                    action()
            except ClosedError as error:
                ends.append(type(error).__name__)

        publication, subscription, client = handles["publication"], handles["subscription"], handles["client"]
        actions = [lambda: publication.offer(bytes(100)), subscription.poll, client.counters]  # noqa: B023
        threads = [threading.Thread(target=use, args=(action,)) for action in actions]
        for thread in threads:
            thread.start()
        began.wait()
        client.close()
        for thread in threads:
            thread.join(20)
        assert ends == ["ClosedError"] * 3


def test_a_forked_child_is_told_and_harms_nothing(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    handles = _everything(client)
    publication, subscription, pump = handles["publication"], handles["subscription"], handles["pump"]
    wait_until(lambda: publication.is_connected)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _assert_closed(handles)
            for handle in handles.values():
                handle.close()
            handles.clear()
            del publication, subscription, pump
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not client.is_closed
    assert publication.offer(b"\0" * 16) > 0
    assert client.add_counter(2000, b"", "after").add(1) == 1
    sent_ns = handles["keepalive"].last_sent_ns
    wait_until(lambda: handles["keepalive"].last_sent_ns > sent_ns)
    assert client.take_errors() == []


def test_a_forked_child_may_have_a_client_of_its_own(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    subscription = client.add_subscription("aeron:ipc?tether=false", 31)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own = _native.AeronClient(client.directory)
            publication = own.add_exclusive_publication(PUBLICATION, 31)
            wait_until(lambda: publication.offer(b"from the child") > 0)
            own.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    received: list[tuple[bytes, int]] = []
    wait_until(lambda: received.extend(subscription.poll()) or received)
    assert received[0][0] == b"from the child"
