"""A media driver in the test process, and other processes that use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensor_pool import _native
from tensor_pool.testing.directories import IsolatedDirectories
from tensor_pool.testing.harness import ChildProcess, ProcessHarness

DEADLINE_S = 20.0
SETTINGS: dict[str, int | str | bool] = {
    "threading_mode": "shared",
    "timer_interval_ms": 10,
    "untethered_window_limit_timeout_ms": 20,
    "untethered_linger_timeout_ms": 11,
    "untethered_resting_timeout_ms": 500,
    "sparse_term_buffers": False,
}

Start = Callable[..., ChildProcess]
WaitUntil = Callable[[Callable[[], object]], None]


@pytest.fixture
def aeron_dir(isolated: IsolatedDirectories) -> str:
    return str(isolated.aeron_dir)


@pytest.fixture
def media_driver(aeron_dir: str) -> Iterator[_native.MediaDriver]:
    driver = _native.MediaDriver(aeron_dir, SETTINGS)
    yield driver
    driver.close()


@pytest.fixture
def client(media_driver: _native.MediaDriver) -> Iterator[_native.AeronClient]:
    client = _native.AeronClient(media_driver.directory, name="test")
    yield client
    client.close()


@pytest.fixture
def start(harness: ProcessHarness) -> Start:
    """Start a function of `aeron_workers` in another process."""

    def start(function: str, *arguments: object) -> ChildProcess:
        directory = str(Path(__file__).parent)
        return harness.python(function, f"aeron_workers:{function}", *arguments, environment={"PYTHONPATH": directory})

    return start


@pytest.fixture
def wait_until() -> WaitUntil:
    def wait_until(condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, "did not come about in time"
            time.sleep(0.002)

    return wait_until
