"""A stack in a process of its own, quick timers, and sessions on it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import tensor_pool as tp
from tensor_pool.testing import ChildProcess, IsolatedDirectories, ProcessHarness

DEADLINE_S = 20.0
COMMAND = "tensor_pool.cli.main:main"


@dataclass
class StackProcess:
    """`tensor-pool up` and what is needed to join it."""

    harness: ProcessHarness
    directories: IsolatedDirectories
    environment: dict[str, str]
    process: ChildProcess

    @property
    def stack_file(self) -> str:
        return str(self.directories.runtime_dir / "tensor-pool" / "stack.json")

    def command(self, name: str, *arguments: object) -> ChildProcess:
        """Run another `tensor-pool` command against this stack."""
        return self.harness.python(name, COMMAND, *arguments, environment=self.environment)

    def connect(self) -> tp.Session:
        return tp.connect(self.stack_file)


def start_stack(harness: ProcessHarness, directories: IsolatedDirectories, *arguments: str) -> StackProcess:
    environment = {
        **directories.environment(),
        "TENSOR_POOL_SHM__BASE_DIR": str(directories.shm_base_dir),
        "TENSOR_POOL_POLICIES__ANNOUNCE_PERIOD_MS": "100",
        "TENSOR_POOL_POLICIES__LEASE_KEEPALIVE_INTERVAL_MS": "100",
    }
    process = harness.python("stack", COMMAND, "up", "--json", *arguments, environment=environment)
    process.wait_for_message(event="ready")
    return StackProcess(harness, directories, environment, process)


def until(condition: Callable[[], Any], what: str = "not in time") -> Any:
    """What the condition says as soon as it says anything."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
    return found


@contextmanager
def repeating(action: Callable[[], object], period_s: float) -> Iterator[None]:
    """Do it over and over, beside the block."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(period_s):
            action()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.fixture
def stack(harness: ProcessHarness, isolated: IsolatedDirectories) -> StackProcess:
    return start_stack(harness, isolated)


@pytest.fixture
def start(harness: ProcessHarness, isolated: IsolatedDirectories) -> Callable[..., StackProcess]:
    return lambda *arguments: start_stack(harness, isolated, *arguments)


@pytest.fixture
def session(stack: StackProcess) -> Iterator[tp.Session]:
    with stack.connect() as session:
        yield session


@pytest.fixture(autouse=True)
def _no_other_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TENSOR_POOL_") and name != "TENSOR_POOL_FAILPOINTS":
            monkeypatch.delenv(name)
