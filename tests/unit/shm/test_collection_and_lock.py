"""What a dead driver left is taken away; what lives is not touched, and one namespace has one driver."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tensor_pool.errors import PathNotAllowedError, RegionError
from tensor_pool.shm.collection import CollectionReport, EpochCollector
from tensor_pool.shm.epoch_files import EpochStorage, EpochStoragePolicy, PoolSize, StreamSizes
from tensor_pool.shm.lock import DriverLock
from tensor_pool.shm.paths import NamespacePaths
from tensor_pool.testing.clock import ManualClock
from tensor_pool.testing.driver import PlainFileRegionFactory

SIZES = StreamSizes(2, (PoolSize(1, 64),))
STALE_NS = 3_000_000_000
OURS = 999_999_001  # above any process id that Linux gives


@pytest.fixture
def dead_process() -> int:
    """The id of a process that was there and is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def make(base: Path, clock: ManualClock, *, epoch: int, process_id: int, namespace: str = "lab", stream_id: int = 10) -> Path:
    paths = NamespacePaths(str(base), "someone", namespace)
    storage = EpochStorage(paths, PlainFileRegionFactory(), EpochStoragePolicy(), process_id=process_id, monotonic_ns=clock.monotonic_ns)
    storage.create(stream_id, epoch, SIZES, reserve=False).close()
    return Path(paths.root) / str(stream_id) / str(epoch)


def collector(base: Path, clock: ManualClock) -> EpochCollector:
    return EpochCollector(NamespacePaths(str(base), "someone", "lab"), clock, process_id=OURS, staleness_ns=STALE_NS)


@pytest.mark.requirement("W-15.21a.7-2")
@pytest.mark.parametrize(("age_ns", "goes"), [(0, False), (STALE_NS, False), (STALE_NS + 1, True)])
def test_an_epoch_goes_when_it_is_stale_and_its_driver_gone(
    tmp_path: Path, manual_clock: ManualClock, dead_process: int, age_ns: int, goes: bool
) -> None:
    path = make(tmp_path, manual_clock, epoch=5, process_id=dead_process)
    manual_clock.advance(age_ns)
    assert collector(tmp_path, manual_clock).collect_own(()) == CollectionReport(int(goes), int(not goes))
    assert path.exists() != goes
    assert path.parent.exists() != goes


@pytest.mark.requirement("W-15.21a.7-2")
def test_an_epoch_whose_driver_lives_stays_however_stale(tmp_path: Path, manual_clock: ManualClock) -> None:
    path = make(tmp_path, manual_clock, epoch=5, process_id=os.getpid())
    manual_clock.advance(1000 * STALE_NS)
    collector(tmp_path, manual_clock).collect_own(())
    assert path.exists()


def test_a_former_life_with_our_process_id_is_gone(tmp_path: Path, manual_clock: ManualClock) -> None:
    old = make(tmp_path, manual_clock, epoch=5, process_id=OURS)
    kept = make(tmp_path, manual_clock, epoch=6, process_id=OURS)
    manual_clock.advance(2 * STALE_NS)
    collector(tmp_path, manual_clock).collect_own({(10, 6)})
    assert (old.exists(), kept.exists()) == (False, True)


def test_an_epoch_of_another_boot_goes(tmp_path: Path, manual_clock: ManualClock, dead_process: int) -> None:
    path = make(tmp_path, manual_clock, epoch=5, process_id=dead_process)
    manual_clock.monotonic = 10
    collector(tmp_path, manual_clock).collect_own(())
    assert not path.exists()


@pytest.mark.parametrize("content", [None, b"", b"\0" * 64, b"\xff" * 64])
def test_a_half_made_epoch_goes_when_its_directory_is_old(tmp_path: Path, manual_clock: ManualClock, content: bytes | None) -> None:
    path = make(tmp_path, manual_clock, epoch=5, process_id=OURS)
    (path / "header.ring").unlink()
    if content is not None:
        (path / "header.ring").write_bytes(content)
    manual_clock.realtime = path.stat().st_mtime_ns + STALE_NS
    collector(tmp_path, manual_clock).collect_own(())
    assert path.exists()
    manual_clock.realtime += 1
    collector(tmp_path, manual_clock).collect_own(())
    assert not path.exists()


def test_what_no_driver_made_stays(tmp_path: Path, manual_clock: ManualClock, dead_process: int) -> None:
    path = make(tmp_path, manual_clock, epoch=5, process_id=dead_process)
    (path / "notes.txt").write_text("mine")
    (path.parent / "notes").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "header.ring").write_bytes(b"")
    (path / "2.pool").symlink_to(outside / "header.ring")
    manual_clock.advance(2 * STALE_NS)
    collector(tmp_path, manual_clock).collect_own(())
    assert sorted(entry.name for entry in path.iterdir()) == ["notes.txt"]
    assert (outside / "header.ring").exists()
    assert (path.parent / "notes").exists()


@pytest.mark.parametrize("kind", ["epoch", "stream"])
def test_a_linked_directory_is_not_followed(tmp_path: Path, manual_clock: ManualClock, dead_process: int, kind: str) -> None:
    base, elsewhere = tmp_path / "a", tmp_path / "b"
    base.mkdir()
    elsewhere.mkdir()
    target = make(elsewhere, manual_clock, epoch=5, process_id=dead_process)
    own = make(base, manual_clock, epoch=6, process_id=OURS)
    link = own.parent / "7" if kind == "epoch" else own.parent.parent / "11"
    link.symlink_to(target if kind == "epoch" else target.parent)
    manual_clock.advance(2 * STALE_NS)
    with suppress(PathNotAllowedError):
        collector(base, manual_clock).collect_own(())
    assert (target / "header.ring").exists()


def lock_of(base: Path, namespace: str) -> DriverLock:
    return DriverLock(NamespacePaths(str(base), "someone", namespace), 0o2770)


def test_abandoned_namespaces_of_the_user_are_cleaned_and_held_ones_left(
    tmp_path: Path, manual_clock: ManualClock, dead_process: int
) -> None:
    paths = {name: make(tmp_path, manual_clock, epoch=5, process_id=dead_process, namespace=name) for name in ("held", "free", "unlocked")}
    held, free = lock_of(tmp_path, "held"), lock_of(tmp_path, "free")
    held.acquire(1)
    free.acquire(2)
    free.release(remove=False)
    manual_clock.advance(2 * STALE_NS)
    manual_clock.realtime = Path(free.path).stat().st_mtime_ns + 61_000_000_000
    report = collector(tmp_path, manual_clock).collect_abandoned()
    assert report.epochs_removed == 1
    assert {name: path.exists() for name, path in paths.items()} == {"held": True, "free": False, "unlocked": True}
    assert not (tmp_path / "tensorpool-someone" / "free").exists()
    held.release(remove=True)


# --- the lock ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D-2.1-2")
def test_one_namespace_has_one_driver_and_the_other_is_told_who(tmp_path: Path) -> None:
    first, second = lock_of(tmp_path, "lab"), lock_of(tmp_path, "lab")
    first.acquire(4711)
    pauses: list[float] = []
    with pytest.raises(RegionError, match="process 4711") as caught:
        second.acquire(1, pause=pauses.append)
    assert "shm.namespace" in caught.value.hint
    assert len(pauses) == 4
    first.release(remove=True)
    second.acquire(1)
    second.release(remove=True)


def test_two_namespaces_have_two_drivers_in_disjoint_trees(tmp_path: Path) -> None:
    first, second = lock_of(tmp_path, "one"), lock_of(tmp_path, "two")
    first.acquire(1)
    second.acquire(2)
    assert os.path.dirname(first.path) != os.path.dirname(second.path)
    first.release(remove=True)
    second.release(remove=True)


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    program = (
        "import sys, os, signal\n"
        "from tensor_pool.shm.lock import DriverLock\n"
        "from tensor_pool.shm.paths import NamespacePaths\n"
        f"DriverLock(NamespacePaths({str(tmp_path)!r}, 'someone', 'lab'), 0o2770).acquire(os.getpid())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == -9
    again = lock_of(tmp_path, "lab")
    again.acquire(1)
    again.release(remove=True)


def test_giving_up_a_namespace_leaves_no_directory(tmp_path: Path) -> None:
    one = lock_of(tmp_path, "lab")
    one.acquire(1)
    one.release(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_giving_up_a_namespace_leaves_what_others_have_there(tmp_path: Path) -> None:
    one, other = lock_of(tmp_path, "lab"), lock_of(tmp_path, "elsewhere")
    one.acquire(1)
    other.acquire(2)
    one.release(remove=True)
    assert [path.name for path in (tmp_path / "tensorpool-someone").iterdir()] == ["elsewhere"]
    other.release(remove=True)


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_something_else_in_the_place_of_the_lock_is_refused(tmp_path: Path, kind: str) -> None:
    one = lock_of(tmp_path, "lab")
    path = Path(one.path)
    path.parent.mkdir(parents=True)
    target = tmp_path / "target"
    target.write_text("keep")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(RegionError):
        one.acquire(1)
    assert target.read_text() == "keep"
