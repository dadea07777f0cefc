"""Full file systems, signals, writers that are killed in the middle of a frame, locks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensor_pool._native import Region, failpoint_arm, failpoint_disarm
from tensor_pool.errors import RegionError
from tensor_pool.uri import RegionUri
from tests.fault.native.native_workers import TMPFS_BYTES
from tests.unit.native.rings import EPOCH, numbered_header, publish, ring, shared_directory

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 30
# without root in a user namespace, where a tmpfs may be mounted
PRIVATE_MOUNTS = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--map-root-user"])]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint_disarm()


def run(function: str, *arguments: object, private_mounts: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a function of `native_workers` to its end."""
    module = f"tests.fault.native.native_workers:{function}"
    command = [sys.executable, "-m", "tensor_pool.testing.child", module, *(str(argument) for argument in arguments)]
    if private_mounts:
        command = [*PRIVATE_MOUNTS, *command]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def skip_unless_mountable(file_system: str, directory: Path) -> None:
    """Root has to be able to; for others it depends on the machine and the file system."""
    tried = subprocess.run([*PRIVATE_MOUNTS, "mount", "-t", file_system, "none", directory], capture_output=True, text=True, check=False)
    if os.geteuid() != 0 and tried.returncode != 0:
        pytest.skip(f"without root nobody mounts a {file_system} here: {tried.stderr.splitlines()[0]}")


def said_by(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_a_full_file_system_is_an_error_with_need_and_have_and_leaves_no_file(tmp_path: Path) -> None:
    skip_unless_mountable("tmpfs", tmp_path)
    said = said_by(run("full_file_system", tmp_path, private_mounts=True))
    assert said["left"] == []
    expected = {
        "create": (4 * TMPFS_BYTES, TMPFS_BYTES, "big"),
        "second": (TMPFS_BYTES, TMPFS_BYTES // 2, "more"),
        "reserve": (4 * TMPFS_BYTES, TMPFS_BYTES // 2, "sparse"),
    }
    for name, (need_bytes, have_bytes, file) in expected.items():
        assert said[name][:3] == [need_bytes, have_bytes, str(tmp_path / file)]
        assert "enlarge" in said[name][3]
        assert str(need_bytes) in said[name][4]
        assert str(have_bytes) in said[name][4]
    # touching pages that cannot be brought is an error and not the end of the process
    assert said["prefault"][0] == 4 * TMPFS_BYTES
    assert said["content"] == "kept"
    assert said["names"] == ["half", "sparse"]


@pytest.mark.requirement("W-15.22-3")
@pytest.mark.requirement("W-15.22-9")
def test_a_region_on_a_hugetlbfs_passes_the_check_and_has_whole_pages(tmp_path: Path) -> None:
    skip_unless_mountable("hugetlbfs", tmp_path)
    said = said_by(run("hugepages", tmp_path, private_mounts=True))
    free = int(next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("HugePages_Free")).split()[1])
    if free >= 2:
        assert (said["open"], said["create"]) == (2 << 20, 2 << 20)
        return
    # no pages on this host: the check for hugepages is passed, mapping them is what fails
    assert "cannot be mapped" in str(said["open"]) or said["open"] == 2 << 20
    assert str(said["create"]).startswith("StorageSpaceError: ")
    assert said["names"] == ["file"]


@pytest.mark.requirement("D-9-4")
def test_a_driver_on_a_hugetlbfs_grants_what_insists_on_it_and_every_uri_says_so(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    skip_unless_mountable("hugetlbfs", tmp_path / "shm")
    said = said_by(run("driver_on_hugepages", tmp_path / "shm", tmp_path / "state", private_mounts=True))
    assert said["answered"] == [["OK", ""]]
    assert said["announces"] > 0
    uris = [RegionUri.parse(uri) for uri in said["uris"]]
    assert {(Path(uri.path).name, uri.require_hugepages) for uri in uris} == {("header.ring", True), ("1.pool", True)}


def test_a_file_above_the_limit_of_the_process_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    done = run("too_large_for_the_limit", tmp_path)
    assert done.returncode == 0
    assert "Error: " in done.stdout
    assert "file too large" in done.stdout or "no space" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_reservation_goes_through_however_many_signals_come() -> None:
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    try:
        with shared_directory() as directory:
            for number in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
                region = Region.create(str(directory), f"{number}", 64 << 20)
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert os.stat(region.path).st_blocks * 512 >= 64 << 20
                os.unlink(region.path)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard


@pytest.mark.requirement("W-8.3-1")
@pytest.mark.requirement("W-8.3-3")
@pytest.mark.requirement("W-8.3-5")
@pytest.mark.parametrize(
    ("point", "word", "payload_is_new", "header_is_new"),
    [
        ("write.before_in_progress", 1, 0, False),
        ("write.after_in_progress", 16, 0, False),
        ("write.mid_payload", 16, 2048, False),
        ("write.after_payload", 16, 4096, False),
        ("write.after_header", 16, 4096, True),
        ("write.before_committed", 16, 4096, True),
        ("write.after_committed", 17, 4096, True),
    ],
)
def test_a_writer_killed_at_any_step_leaves_the_last_frame_the_new_one_or_an_open_slot(
    point: str, word: int, payload_is_new: int, header_is_new: bool
) -> None:
    with ring() as made:
        done = run("killed_writer", made.header.path, made.pools[0][2].path, point)
        assert done.returncode == -signal.SIGKILL
        assert made.header.load_u64(64) == word
        assert made.payload(0, 0, 4096) == bytes([8]) * payload_is_new + bytes([0]) * (4096 - payload_is_new)
        assert made.slot(0)[8:] == numbered_header(8 if header_is_new else 0)
        reader = made.reader()
        reader.inject(EPOCH, 0)
        reader.inject(EPOCH, 8)
        frames = [reader.read(0), reader.read(0)]
        delivered = [(frame.seq, bytes(memoryview(frame.buffer))) for frame in frames if frame is not None]
        seq = word >> 1
        assert delivered == ([(seq, bytes([seq]) * 4096)] if word & 1 else [])
        assert reader.counters()["not_committed"] == (0 if word & 1 else 1)


@pytest.mark.parametrize("point", ["write.before_in_progress", "write.mid_payload", "write.after_header"])
def test_a_write_that_failed_is_tried_again_with_the_same_seq(point: str) -> None:
    with ring() as made:
        writer = made.writer()
        reader = made.reader()
        failpoint_arm(point, "error")
        with pytest.raises(RegionError):
            publish(writer, b"lost")
        assert writer.counters()["frames_published"] == 0
        assert publish(writer, b"kept") == 0
        reader.inject(EPOCH, 0)
        frame = reader.read(0)
        assert frame is not None
        assert bytes(memoryview(frame.buffer)) == b"kept"


def test_refused_frames_and_questions_from_many_threads_never_stand_still() -> None:
    done = run("too_large_from_many_threads", 1.0)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
