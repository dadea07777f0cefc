"""A media driver that dies or stops: every call raises in time, nothing hangs, the process lives."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tensor_pool import _native
from tensor_pool.errors import MediaDriverTimeoutError

DRIVER_TIMEOUT_MS = 1000


@pytest.mark.parametrize("how", ["killed", "stopped cleanly"])
def test_when_the_driver_goes_everything_raises_in_time_and_the_process_survives(
    aeron_dir: str, start: Callable[..., Any], how: str
) -> None:
    driver = start("drive", aeron_dir, DRIVER_TIMEOUT_MS)
    driver.wait_for_message(ready=driver.pid)
    user = start("hold_open", aeron_dir, DRIVER_TIMEOUT_MS)
    user.wait_for_message(ready=True)
    gone_ns = time.monotonic_ns()
    if how == "killed":
        driver.signal(signal.SIGKILL)
    else:
        driver.end_of_input()
    names = ("offer", "claim", "poll", "drain", "counter", "add", "counters")
    result = user.wait_for_message(all_ended=dict.fromkeys(names, "MediaDriverTimeoutError"))
    assert -1000 in result["errors"] or 1000 in result["errors"]
    last_ns = max(message["at_ns"] for message in user.messages() if "at_ns" in message)
    assert last_ns - gone_ns < DRIVER_TIMEOUT_MS * 1_000_000 * 3
    assert next(message for message in _eventually(user, "closed_within_s"))["closed_within_s"] < 5
    user.end_of_input()
    user.expect_exit(0)


def _eventually(child: Any, key: str) -> list[dict[str, Any]]:
    child.wait_for_text(key)
    return [message for message in child.messages() if key in message]


def test_without_a_driver_a_client_gives_up_after_its_time_out(aeron_dir: str) -> None:
    started = time.monotonic()
    with pytest.raises(MediaDriverTimeoutError, match="no media driver answered"):
        _native.AeronClient(aeron_dir, driver_timeout_ms=200)
    assert time.monotonic() - started >= 0.2


def test_a_client_waits_for_a_driver_that_starts_late(aeron_dir: str, start: Callable[..., Any]) -> None:
    start("drive", aeron_dir, 10_000)
    client = _native.AeronClient(aeron_dir, driver_timeout_ms=20_000)
    client.add_subscription("aeron:ipc", 1)
    client.close()


def test_a_new_client_works_on_a_driver_that_was_started_again(aeron_dir: str, start: Callable[..., Any]) -> None:
    first = start("drive", aeron_dir, DRIVER_TIMEOUT_MS)
    first.wait_for_message(ready=first.pid)
    old = _native.AeronClient(aeron_dir, driver_timeout_ms=DRIVER_TIMEOUT_MS)
    first.end_of_input()
    first.expect_exit(0)
    second = start("drive", aeron_dir, DRIVER_TIMEOUT_MS)
    second.wait_for_message(ready=second.pid)
    new = _native.AeronClient(aeron_dir, driver_timeout_ms=10_000)
    new.add_exclusive_publication("aeron:ipc?term-length=64k", 1)
    old.close()
    assert not new.is_closed
    new.close()


def test_a_directory_of_garbage_is_a_driver_that_does_not_answer(aeron_dir: str) -> None:
    from pathlib import Path

    Path(aeron_dir).mkdir()
    for content in (b"", b"\0" * 100, b"\xff" * 10_000):
        (Path(aeron_dir) / "cnc.dat").write_bytes(content)
        with pytest.raises(MediaDriverTimeoutError):
            _native.AeronClient(aeron_dir, driver_timeout_ms=50)
        assert not _native.media_driver_is_active(aeron_dir, 1000)
