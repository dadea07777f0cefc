"""The media driver: its settings, its directory, and who may have it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensor_pool import _native
from tensor_pool.errors import TransportError
from tests.integration.transport.waiting import once_it_is_free


def test_its_directory_says_who_runs_it_and_goes_with_it(aeron_dir: str) -> None:
    assert not _native.media_driver_is_active(aeron_dir, 1000)
    assert _native.media_driver_pid(aeron_dir) is None
    driver = _native.MediaDriver(aeron_dir, {})
    assert driver.directory == aeron_dir
    assert _native.media_driver_is_active(aeron_dir, 1000)
    assert _native.media_driver_pid(aeron_dir) == os.getpid()
    assert driver.take_errors() == []
    driver.close()
    driver.close()
    assert not Path(aeron_dir).exists()
    assert not _native.media_driver_is_active(aeron_dir, 1000)
    assert driver.take_errors() == []


def test_a_second_driver_on_the_directory_is_refused_and_the_first_lives(media_driver: _native.MediaDriver) -> None:
    with pytest.raises(TransportError, match="Active media driver detected") as refused:
        _native.MediaDriver(media_driver.directory, {})
    assert refused.value.code == errno.EBUSY
    client = _native.AeronClient(media_driver.directory)
    client.add_subscription("aeron:ipc", 1)
    client.close()


def test_the_environment_cannot_make_it_delete_a_live_directory(media_driver: _native.MediaDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERON_DIR_DELETE_ON_START", "true")
    with pytest.raises(TransportError):
        _native.MediaDriver(media_driver.directory, {})
    assert _native.media_driver_is_active(media_driver.directory, 1000)


def test_a_killed_driver_is_not_active_and_its_directory_can_be_taken_later(aeron_dir: str, start: Callable[..., Any]) -> None:
    other = start("drive", aeron_dir, 500)
    other.wait_for_message(ready=other.pid)
    assert _native.media_driver_pid(aeron_dir) == other.pid
    other.signal(signal.SIGKILL)
    other.wait()
    assert not _native.media_driver_is_active(aeron_dir, 60_000)
    once_it_is_free(lambda: _native.MediaDriver(aeron_dir, {"driver_timeout_ms": 500})).close()


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"no_such_setting": 1}, ValueError, "no media driver setting"),
        ({"threading_mode": "sharred"}, ValueError, "not one of shared"),
        ({"threading_mode": 3}, TypeError, "a string is wanted"),
        ({"timer_interval_ms": "10"}, TypeError, "a number is wanted"),
        ({"sparse_term_buffers": 1}, TypeError, "true or false"),
        ({"mtu_bytes": True}, TypeError, "a number is wanted"),
        ({"timer_interval_ms": -1}, TypeError, "at least 0"),
        ({"timer_interval_ms": 2**63}, ValueError, "too large"),
        ({"idle_strategy": "snooze"}, TransportError, "idle_strategy was refused"),
        ({"idle_strategy": "bad\0name"}, ValueError, "NUL"),
        ({"ipc_term_length_bytes": 1000}, TransportError, "term length less than"),
        ({"timer_interval_ms": 100, "untethered_window_limit_timeout_ms": 20}, TransportError, "untethered"),
        ({"publication_unblock_timeout_ms": 1000}, TransportError, "unblock"),
    ],
)
def test_settings_that_cannot_be_are_refused_and_leave_nothing(
    aeron_dir: str, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        _native.MediaDriver(aeron_dir, settings)
    assert not Path(aeron_dir).exists()
    _native.MediaDriver(aeron_dir, {}).close()


@pytest.mark.parametrize("mode", ["shared", "shared_network", "dedicated"])
def test_every_threading_mode_and_idle_strategy_carries_messages(
    aeron_dir: str, mode: str, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    driver = _native.MediaDriver(aeron_dir, {"threading_mode": mode, "idle_strategy": "sleep-ns", "idle_strategy_arguments": "1ms"})
    client = _native.AeronClient(aeron_dir)
    publication = client.add_exclusive_publication("aeron:ipc?term-length=64k", 1)
    subscription = client.add_subscription("aeron:ipc", 1)
    wait_until(lambda: publication.offer(b"hello") > 0)
    received: list[tuple[bytes, int]] = []
    wait_until(lambda: received.extend(subscription.poll()) or received)
    client.close()
    driver.close()


def test_nothing_is_printed(aeron_dir: str, capfd: pytest.CaptureFixture[str]) -> None:
    driver = _native.MediaDriver(aeron_dir, {"socket_receive_buffer_bytes": 1 << 30})
    client = _native.AeronClient(aeron_dir)
    with pytest.raises(TransportError):
        client.add_exclusive_publication("aeron:ipc?term-length=3", 1)
    client.close()
    driver.take_errors()
    driver.close()
    assert capfd.readouterr() == ("", "")
