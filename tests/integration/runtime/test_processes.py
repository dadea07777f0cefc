"""What only other processes can show: locks that go with their holder, signals that end a process in order."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tensor_pool.errors import RegionError
from tensor_pool.runtime import DirectoryLock, ShutdownSignal

WAIT_S = 30.0
HOLD = """
import sys
from tensor_pool.runtime import DirectoryLock
lock = DirectoryLock(sys.argv[1])
print(lock.acquire(), flush=True)
sys.stdin.read()
"""
FORK = """
import os, sys
from tensor_pool.runtime import DirectoryLock
lock = DirectoryLock(sys.argv[1])
assert lock.acquire()
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
WAIT_FOR_SIGNAL = """
import sys, threading
from tensor_pool.runtime import ShutdownSignal
with ShutdownSignal() as shutdown:
    print("ready", flush=True)
    shutdown.event.wait()
    print(shutdown.received.name, flush=True)
    if len(sys.argv) > 1:
        threading.Event().wait()
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=WAIT_S)


def test_a_lock_is_held_by_one_process_and_free_after_its_death(tmp_path: Path) -> None:
    assert not DirectoryLock.held_by_other(tmp_path)
    process = start(HOLD, str(tmp_path))
    try:
        assert line_of(process) == "True"
        assert DirectoryLock.held_by_other(tmp_path)
        assert DirectoryLock.held_by_other(tmp_path / ".lock")
        pauses: list[float] = []
        assert not DirectoryLock(tmp_path).acquire(pause=pauses.append)
        assert len(pauses) == 4
        with pytest.raises(RegionError, match="locked by another process"), DirectoryLock(tmp_path):
            pass
    finally:
        end(process)
    assert not DirectoryLock.held_by_other(tmp_path)
    with DirectoryLock(tmp_path) as lock:
        assert lock.is_held
        assert lock.acquire()
    assert not lock.is_held


def test_a_forked_child_does_not_hold_the_lock_beyond_its_parents_death(tmp_path: Path) -> None:
    process = start(FORK, str(tmp_path))
    try:
        child = int(line_of(process))
        process.wait(WAIT_S)
        os.kill(child, 0)
        assert DirectoryLock(tmp_path).acquire()
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert process.stdout is not None
        process.stdout.close()


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    assert first.acquire()
    first.path.unlink()
    assert second.acquire()
    assert not DirectoryLock(tmp_path).acquire(pause=lambda _: None)
    first.release()
    second.release(remove=True)
    second.release()
    assert not list(tmp_path.iterdir())


def test_a_lock_file_that_goes_away_between_open_and_lock_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[Path] = []

    def flock(descriptor: int, mode: int, real: Callable[[int, int], None] = fcntl.flock) -> None:
        if not removed:
            removed.append(lock.path)
            lock.path.unlink()
        real(descriptor, mode)

    lock = DirectoryLock(tmp_path)
    monkeypatch.setattr(fcntl, "flock", flock)
    assert lock.acquire()
    assert removed
    assert DirectoryLock.held_by_other(tmp_path)
    lock.release()


def test_a_lock_is_no_way_to_write_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(RegionError, match="cannot open"):
        DirectoryLock(tmp_path).acquire()
    with pytest.raises(RegionError, match="cannot open"):
        DirectoryLock.held_by_other(tmp_path)
    with pytest.raises(RegionError, match="cannot open"):
        DirectoryLock(tmp_path / "missing").acquire()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_sets_the_event(number: signal.Signals) -> None:
    process = start(WAIT_FOR_SIGNAL)
    try:
        assert line_of(process) == "ready"
        process.send_signal(number)
        assert line_of(process) == number.name
        assert process.wait(WAIT_S) == 0
    finally:
        end(process)


def test_a_second_signal_kills_who_hangs_while_ending() -> None:
    process = start(WAIT_FOR_SIGNAL, "hang")
    try:
        assert line_of(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert line_of(process) == "SIGTERM"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == -signal.SIGINT
    finally:
        end(process)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ShutdownSignal() as shutdown:
        assert signal.getsignal(signal.SIGINT) == shutdown._on_signal
        os.kill(os.getpid(), signal.SIGTERM)
        assert shutdown.event.wait(WAIT_S)
        assert shutdown.received is signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_it_is_just_an_event() -> None:
    seen: list[object] = []

    def use() -> None:
        with ShutdownSignal() as shutdown:
            seen.append(shutdown.event.is_set())

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(WAIT_S)
    assert seen == [False]
