"""Clock, directories, ports, failpoints, frames and the watchdog of the test kit."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensor_pool.runtime import failpoints as python_failpoints
from tensor_pool.testing import ManualClock, check_frame, isolated_directories, stamp_frame, stamped_seq, unused_udp_port
from tensor_pool.testing.failpoints import Failpoint, arm_from_environment, failpoint, failpoint_environment


def test_time_goes_by_on_both_clocks_and_a_step_moves_one() -> None:
    clock = ManualClock()
    monotonic, realtime = clock.monotonic_ns(), clock.realtime_ns()
    clock.advance(5)
    clock.step_realtime(-100)
    assert (clock.monotonic_ns() - monotonic, clock.realtime_ns() - realtime) == (5, -95)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_directories_of_a_killed_run_are_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import os\nfrom tensor_pool.testing import isolated_directories\n"
        "with isolated_directories() as d:\n    print(d.root, d.shm_base_dir, flush=True)\n    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"TMPDIR": str(tmp_path)})
    left = [Path(path) for path in done.stdout.split()]
    assert all(path.exists() for path in left)
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env={"TMPDIR": str(tmp_path)})
    assert again.returncode == -9
    assert not any(path.exists() for path in left)


def test_leftovers_are_named() -> None:
    with isolated_directories() as directories:
        assert directories.leftovers() == []
        forgotten = directories.shm_base_dir / "forgotten"
        forgotten.touch()
        assert directories.leftovers() == [forgotten]


def test_ports_are_free_and_not_given_twice() -> None:
    ports = [unused_udp_port() for _ in range(50)]
    assert len(set(ports)) == 50
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", ports[-1]))


def test_an_armed_failpoint_acts_after_the_skipped_passes_and_only_inside_the_block() -> None:
    with failpoint("test.somewhere", "error", skip=1, error_number="ENOSPC"):
        python_failpoints.reach("test.somewhere")
        with pytest.raises(OSError, match=r"failpoint test\.somewhere"):
            python_failpoints.reach("test.somewhere")
    with failpoint("test.somewhere", "error"):
        pass
    python_failpoints.reach("test.somewhere")


def test_failpoints_travel_to_a_child_through_its_environment() -> None:
    points = [Failpoint("test.one", "error", 3, 0, "ENOSPC"), Failpoint("test.two", "delay", 0, 500)]
    try:
        assert arm_from_environment(failpoint_environment(points)) == points
    finally:
        for point in points:
            point.disarm()
    assert failpoint_environment([]) == {}


@pytest.mark.parametrize("text", ["=kill", "name", "name=jump", "name=kill:1:2:EIO:5"])
def test_what_is_no_failpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a failpoint"):
        Failpoint.parse(text)


@given(seq=st.integers(0, 2**63), nbytes=st.integers(1, 4096))
def test_a_stamped_frame_is_good_for_its_seq_alone(seq: int, nbytes: int) -> None:
    frame = np.zeros(nbytes, dtype=np.uint8)
    stamp_frame(frame, seq)
    assert check_frame(frame, seq)
    if nbytes >= 8:
        assert not check_frame(frame, seq + 1)
        assert stamped_seq(frame) == seq


@given(seq=st.integers(0, 2**63), nbytes=st.integers(8, 4096), data=st.data())
def test_any_flipped_bit_is_found(seq: int, nbytes: int, data: st.DataObject) -> None:
    frame = np.zeros(nbytes, dtype=np.uint8)
    stamp_frame(frame, seq)
    frame[data.draw(st.integers(0, nbytes - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not check_frame(frame, seq)


@given(line=st.integers(1, 63))
def test_a_mixture_of_two_frames_is_found_at_any_line(line: int) -> None:
    older, newer = np.zeros((8, 512), dtype=np.uint8), np.zeros((8, 512), dtype=np.uint8)
    stamp_frame(older, 7)
    stamp_frame(newer, 8)
    torn = np.concatenate([newer.reshape(-1)[: line * 64], older.reshape(-1)[line * 64 :]])
    assert not check_frame(torn, 7)
    assert not check_frame(torn, 8)


def test_a_watchdog_writes_all_stacks_and_ends_the_process() -> None:
    program = (
        "from tensor_pool.testing import Watchdog\nimport threading\n"
        "def waits_for_ever():\n    with Watchdog(30), Watchdog(0.2):\n        threading.Event().wait()\nwaits_for_ever()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "in waits_for_ever" in done.stderr


def test_leaving_an_inner_watchdog_leaves_the_outer_one_armed() -> None:
    program = (
        "from tensor_pool.testing import Watchdog\nimport threading\n"
        "with Watchdog(0.3):\n    with Watchdog(30):\n        pass\n    threading.Event().wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False).returncode == 1
