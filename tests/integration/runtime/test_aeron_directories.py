"""Directories of media drivers: one for each run, removed by the next start when its stack was killed, and at no other time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tensor_pool.runtime import DirectoryLock
from tensor_pool.stack import remove_abandoned_aeron_directories
from tensor_pool.testing import ChildProcess, ProcessHarness
from tensor_pool.testing.failpoints import Failpoint

DEADLINE_S = 20.0
MADE = Failpoint("stack.aeron_directory_made", "pause")
LOCKED = Failpoint("stack.abandoned_directory_locked", "pause")


@pytest.fixture
def start(harness: ProcessHarness, tmp_path: Path) -> Any:
    def start(function: str, *failpoints: Failpoint) -> ChildProcess:
        environment = {"PYTHONPATH": str(Path(__file__).parent)}
        return harness.python(function, f"aeron_directory_workers:{function}", tmp_path, failpoints=failpoints, environment=environment)

    return start


def wait_until_paused(child: ChildProcess) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert child.is_running
        assert time.monotonic() < deadline_s, "it did not reach its failpoint"
        time.sleep(0.002)


def is_held(child: ChildProcess) -> bool:
    holder = child.wait_for_message()["holder"]
    return Path(holder).is_dir() and DirectoryLock.held_by_other(holder)


def test_a_directory_stays_while_its_stack_lives_and_goes_when_it_was_killed(start: Any, tmp_path: Path) -> None:
    child = start("hold")
    assert is_held(child)
    assert remove_abandoned_aeron_directories(tmp_path) == 0
    assert is_held(child)
    child.kill()
    child.wait()
    assert remove_abandoned_aeron_directories(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_lock_file", [False, True])
def test_a_directory_that_is_taken_for_abandoned_while_it_is_being_made_is_made_anew(
    start: Any, tmp_path: Path, has_lock_file: bool
) -> None:
    child = start("hold", MADE)
    wait_until_paused(child)
    (made,) = tmp_path.iterdir()
    if has_lock_file:
        # made, and its lock not taken yet
        (made / ".lock").touch()
    assert remove_abandoned_aeron_directories(tmp_path) == 1
    child.cont()
    assert is_held(child)
    child.end_of_input()
    child.expect_exit(0)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_not_held_by_whoever_makes_it_while_another_is_about_to_remove_it(start: Any, tmp_path: Path) -> None:
    child = start("hold", MADE)
    wait_until_paused(child)
    (made,) = tmp_path.iterdir()
    collector = start("collect", LOCKED)
    wait_until_paused(collector)
    child.cont()
    assert child.wait_for_message()["holder"] != str(made)
    collector.cont()
    assert collector.wait_for_message()["removed"] == 1
    assert is_held(child)
    assert not made.exists()


def test_a_directory_whose_maker_was_killed_at_once_is_removed(start: Any, tmp_path: Path) -> None:
    child = start("hold", MADE)
    wait_until_paused(child)
    child.kill()
    child.wait()
    assert remove_abandoned_aeron_directories(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []
