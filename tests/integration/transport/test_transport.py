"""The Python face: a client that logs and closes, the embedded driver, a driver as a process of its own."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensor_pool import _native
from tensor_pool.errors import ClosedError, ConfigError, MediaDriverTimeoutError, TransportError
from tensor_pool.testing.directories import IsolatedDirectories
from tensor_pool.testing.harness import ProcessHarness
from tensor_pool.testing.ports import unused_udp_port
from tensor_pool.transport import (
    EmbeddedMediaDriver,
    MediaDriverSettings,
    TransportClient,
    exclusive_channel,
    run_media_driver,
    subscription_channel,
)
from tests.integration.transport.waiting import DEADLINE_S, wait_until


@pytest.fixture
def directory(isolated: IsolatedDirectories) -> Path:
    return isolated.aeron_dir


@pytest.fixture
def driver(directory: Path) -> Iterator[EmbeddedMediaDriver]:
    with EmbeddedMediaDriver(directory) as driver:
        yield driver


@pytest.mark.parametrize("base", ["aeron:ipc", "aeron:udp?endpoint=127.0.0.1:{port}"])
def test_channels_made_for_each_other_carry_messages(driver: EmbeddedMediaDriver, base: str) -> None:
    channel = base.format(port=unused_udp_port())
    with TransportClient(driver.directory, name="one") as one, TransportClient(driver.directory, name="two") as two:
        publication = one.publish(exclusive_channel(channel, "64k"), 7)
        subscription = two.subscribe(subscription_channel(channel), 7)
        wait_until(lambda: publication.offer(b"hello") > 0)
        received: list[tuple[bytes, int]] = []
        wait_until(lambda: received.extend(subscription.poll()) or received)
        assert received == [(b"hello", publication.session_id)]
        assert publication.max_message_length == 8192


def test_logs_take_their_space_when_they_are_made(driver: EmbeddedMediaDriver, directory: Path) -> None:
    with TransportClient(driver.directory) as client:
        client.publish(exclusive_channel("aeron:ipc", "1m"), 8)
        [log] = (directory / "publications").iterdir()
        assert log.stat().st_blocks * 512 >= 3 << 20


def test_a_closed_client_says_so_and_closes_what_it_gave_out(driver: EmbeddedMediaDriver) -> None:
    client = TransportClient(driver.directory)
    publication = client.publish(exclusive_channel("aeron:ipc", "64k"), 9)
    counter = client.counter(2000, b"key", "label")
    assert not client.is_closed
    client.close()
    client.close()
    assert client.is_closed
    for use in (lambda: publication.offer(b""), counter.get, lambda: client.subscribe("aeron:ipc", 1)):
        with pytest.raises(ClosedError):
            use()


def test_what_aeron_reports_goes_to_the_log(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    driver = EmbeddedMediaDriver(directory)
    client = TransportClient(driver.directory, driver_timeout_ms=1000)
    driver.close()
    wait_until(lambda: client.is_closed)
    with caplog.at_level(logging.WARNING, "tensor_pool.transport"):
        wait_until(client.log_errors)
    assert f"Aeron client of {directory}: MediaDriver has been shutdown" in caplog.text
    with pytest.raises(MediaDriverTimeoutError):
        client.subscribe("aeron:ipc", 1)
    client.close()


def test_a_second_driver_is_refused_with_a_hint(driver: EmbeddedMediaDriver) -> None:
    with pytest.raises(TransportError) as refused:
        EmbeddedMediaDriver(driver.directory)
    assert refused.value.code == errno.EBUSY
    assert "another directory" in str(refused.value)
    assert driver.log_errors() == 0


def test_the_driver_logs_what_it_refused(driver: EmbeddedMediaDriver, caplog: pytest.LogCaptureFixture) -> None:
    with TransportClient(driver.directory) as client, pytest.raises(TransportError):
        client.publish("aeron:ipc?term-length=3", 1)
    with caplog.at_level(logging.WARNING, "tensor_pool.transport"):
        wait_until(driver.log_errors)
    assert "term length less than" in caplog.text
    assert driver.log_errors() == 0


def test_settings_are_refused_before_a_driver_starts(directory: Path) -> None:
    with pytest.raises(ConfigError):
        EmbeddedMediaDriver(directory, MediaDriverSettings(timer_interval_ms=50))
    assert not directory.exists()


@pytest.mark.parametrize(
    ("strategy", "arguments"),
    [("backoff", "10-20-1us-1ms"), ("backoff", "1-1-500-1s"), ("sleep-ns", "500000"), ("sleep-ns", "1MS"), ("yield", "1-1-100us-2ms")],
)
def test_idle_arguments_that_are_accepted_are_those_that_aeron_takes(directory: Path, strategy: str, arguments: str) -> None:
    settings = MediaDriverSettings(idle_strategy=strategy, idle_strategy_arguments=arguments)
    with EmbeddedMediaDriver(directory, settings) as driver:
        assert driver.settings is settings


def test_run_media_driver_runs_until_it_is_told_to_stop(directory: Path) -> None:
    stop, ready = threading.Event(), threading.Event()
    told: list[str] = []

    def on_ready(where: str) -> None:
        told.append(where)
        ready.set()

    thread = threading.Thread(target=run_media_driver, args=(directory,), kwargs={"stop": stop, "on_ready": on_ready})
    thread.start()
    assert ready.wait(DEADLINE_S)
    assert told == [str(directory)]
    with TransportClient(directory) as client:
        client.subscribe("aeron:ipc", 1)
    stop.set()
    thread.join(DEADLINE_S)
    assert not directory.exists()


def test_a_driver_in_a_process_of_its_own_stops_on_a_signal_and_cleans_up(directory: Path, harness: ProcessHarness) -> None:
    child = harness.python("driver", "transport_workers:drive", directory, environment={"PYTHONPATH": str(Path(__file__).parent)})
    child.wait_for_message(ready=str(directory))
    assert _native.media_driver_pid(str(directory)) == child.pid
    with TransportClient(directory) as client:
        client.subscribe(subscription_channel("aeron:ipc"), 1)
    child.signal(signal.SIGTERM)
    child.expect_exit(0)
    assert not directory.exists()
    assert child.stderr() == ""


def test_in_a_forked_child_closing_does_nothing(driver: EmbeddedMediaDriver) -> None:
    client = TransportClient(driver.directory)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            client.close()
            driver.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not client.is_closed
    client.subscribe("aeron:ipc", 1)
    client.close()
