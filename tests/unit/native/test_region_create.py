"""New files: made below a base, whole or not at all, with the space they need."""

from __future__ import annotations

import gc
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tensor_pool._native import Region, failpoint_arm, failpoint_disarm, failpoint_names, newest_committed_seq
from tensor_pool.errors import ClosedError, PathNotAllowedError, RegionError
from tests.unit.native.rings import EPOCH, Ring, in_a_fork, publish

LENGTH = 64 * 1024


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint_disarm()


@pytest.mark.parametrize("mode", [0o660, 0o600, 0o640, 0o666])
def test_a_new_file_has_its_length_its_mode_and_its_space(base: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        region = Region.create(str(base), "new", LENGTH, mode=mode)
    finally:
        os.umask(before)
    status = (base / "new").stat()
    assert stat.S_IMODE(status.st_mode) == mode
    assert status.st_size == region.length == LENGTH
    assert status.st_blocks * 512 >= LENGTH
    assert region.writable
    assert region.path == str(base / "new")
    assert region.identity == (status.st_dev, status.st_ino)
    assert region.read(0, LENGTH) == bytes(LENGTH)


def test_without_reserve_the_file_is_sparse_until_it_is_reserved(base: Path) -> None:
    region = Region.create(str(base), "sparse", LENGTH, reserve=False)
    assert (base / "sparse").stat().st_blocks == 0
    region.reserve()
    assert (base / "sparse").stat().st_blocks * 512 >= LENGTH
    readonly = Region.open(region.path, [str(base)], writable=False, minimum_length=1)
    with pytest.raises(ValueError):
        readonly.reserve()


def test_touching_every_page_changes_no_byte(base: Path) -> None:
    region = Region.create(str(base), "new", LENGTH, reserve=False)
    region.write(5000, b"content")
    region.prefault()
    Region.open(region.path, [str(base)], writable=False, minimum_length=1).prefault()
    assert region.read(0, LENGTH) == bytes(5000) + b"content" + bytes(LENGTH - 5007)
    region.lock()


def test_an_existing_name_is_left_alone(base: Path) -> None:
    (base / "file").write_bytes(b"mine")
    (base / "link").symlink_to(base / "nowhere")
    os.mkfifo(base / "fifo")
    (base / "directory").mkdir()
    for name in ("file", "link", "fifo", "directory"):
        with pytest.raises(RegionError):
            Region.create(str(base), name, LENGTH)
    assert (base / "file").read_bytes() == b"mine"
    assert not (base / "nowhere").exists()
    assert sorted(path.name for path in base.iterdir()) == ["directory", "fifo", "file", "link"]


def test_nothing_is_made_outside_the_base(base: Path) -> None:
    (base / "out").symlink_to("/dev/shm")
    (base / "directory").mkdir()
    for name in ("", "/", ".", "..", "../x", "/dev/shm/x", "directory/../../x", "./x/..", "directory/./../x"):
        with pytest.raises(PathNotAllowedError):
            Region.create(str(base), name, LENGTH)
    for name in ("out/tp-escaped", "missing/x", "x\0y", "n" * 300):
        with pytest.raises(RegionError):
            Region.create(str(base), name, LENGTH)
    with pytest.raises(RegionError):
        Region.create(str(base / "missing"), "x", LENGTH)
    with pytest.raises(RegionError):
        Region.create("relative", "x", LENGTH)
    assert not Path("/dev/shm/tp-escaped").exists()
    assert sorted(path.name for path in base.iterdir()) == ["directory", "out"]
    assert Region.create(str(base), "directory/new", LENGTH).path == str(base / "directory" / "new")


@pytest.mark.parametrize("length", [0, 2**63, 2**64 - 1])
def test_a_length_that_cannot_be_leaves_no_file(base: Path, length: int) -> None:
    with pytest.raises((ValueError, RegionError)):
        Region.create(str(base), "new", length)
    assert not list(base.iterdir())


@pytest.mark.requirement("D-9-4")
def test_hugepages_on_another_file_system_leave_no_file(base: Path) -> None:
    with pytest.raises(RegionError, match="hugetlbfs"):
        Region.create(str(base), "new", LENGTH, hugepages=True)
    assert not list(base.iterdir())


@pytest.mark.parametrize("name", ["region.after_create", "region.after_reserve", "region.after_map"])
def test_a_failure_at_any_step_leaves_no_file(base: Path, name: str) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    failpoint_arm(name, "error")
    with pytest.raises(RegionError, match=name):
        Region.create(str(base), "new", LENGTH)
    assert not list(base.iterdir())
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert str(base) not in Path("/proc/self/maps").read_text()
    Region.create(str(base), "new", LENGTH)


def test_bytes_outside_a_region_are_refused(base: Path) -> None:
    region = Region.create(str(base), "new", LENGTH)
    for offset, length in ((0, LENGTH + 1), (LENGTH, 1), (LENGTH + 1, 0), (2**64 - 1, 1), (2**64 - 1, 2**64 - 1), (1, LENGTH)):
        with pytest.raises(ValueError):
            region.read(offset, length)
    for offset in (LENGTH, LENGTH - 3, 2**64 - 1):
        with pytest.raises(ValueError):
            region.write(offset, b"four")
    for offset in (LENGTH, LENGTH - 4, 4, 1, 2**64 - 8):
        with pytest.raises(ValueError):
            region.load_u64(offset)
        with pytest.raises(ValueError):
            region.store_u64(offset, 1)
    with pytest.raises(OverflowError):
        region.read(-1, 1)
    with pytest.raises(BufferError):
        region.write(0, np.zeros((4, 4))[::2, ::2])
    assert region.read(LENGTH, 0) == b""
    assert region.read(0, LENGTH) == bytes(LENGTH)
    region.store_u64(LENGTH - 8, 2**64 - 1)
    assert region.load_u64(LENGTH - 8) == 2**64 - 1
    assert region.read(LENGTH - 8, 8) == b"\xff" * 8


def test_a_closed_region_says_so(base: Path) -> None:
    region = Region.create(str(base), "new", LENGTH)
    region.close()
    region.close()
    assert str(base) not in Path("/proc/self/maps").read_text()
    for call in (
        lambda: region.read(0, 1),
        lambda: region.write(0, b"x"),
        lambda: region.load_u64(0),
        lambda: region.store_u64(0, 1),
        region.reserve,
        region.prefault,
        region.lock,
        lambda: newest_committed_seq(region, 8),
    ):
        with pytest.raises(ClosedError):
            call()
    assert (region.path, region.length) == (str(base / "new"), LENGTH)


def test_memory_stays_mapped_for_those_who_use_it(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    reader = eight_slots.reader()
    reader.inject(EPOCH, publish(writer, b"lent"))
    lent = reader.borrow(0)
    claim = writer.claim(8)
    assert lent is not None
    view, filled = np.asarray(lent.buffer), np.asarray(claim)
    for region in (eight_slots.header, *(region for _, _, region in eight_slots.pools)):
        region.close()
    del lent
    reader.close()
    writer.close()
    del reader, writer, claim
    eight_slots.readers.clear()
    gc.collect()
    filled[:] = 7
    assert view.tobytes() == b"lent"
    del view, filled
    gc.collect()
    assert str(eight_slots.directory) not in Path("/proc/self/maps").read_text()


def test_a_child_of_a_fork_may_use_nothing_of_its_parent(eight_slots: Ring) -> None:
    writer = eight_slots.writer()
    reader = eight_slots.reader()
    reader.inject(EPOCH, publish(writer, b"lent"))
    lent = reader.borrow(0)
    assert lent is not None
    view = lent.buffer
    claim = writer.claim(8)
    region = eight_slots.header
    before = eight_slots.header.read(0, eight_slots.header.length)

    def child() -> str:
        for call in (
            lambda: region.read(0, 1),
            lambda: region.write(0, b"x"),
            lambda: region.store_u64(0, 1),
            region.reserve,
            lambda: publish(writer, b"x"),
            lambda: writer.claim(1),
            lambda: writer.next_seq,
            writer.counters,
            lambda: memoryview(claim),
            lambda: claim.commit(1, 1, [8], timestamp_ns=1, meta_version=0, trace_id=0, publish_timestamp=False),
            lambda: reader.read(0),
            lambda: reader.read_into(bytearray(9), 0),
            lambda: reader.borrow(0),
            lambda: reader.inject(EPOCH, 1),
            lambda: eight_slots.map(reader),
            reader.poll,
            reader.unmap,
            reader.fileno,
            reader.wake,
            lambda: reader.set_sleeping_counter(None),
            reader.needs_remap,
            reader.counters,
            lambda: reader.epoch,
        ):
            with pytest.raises(ClosedError):
                call()
        # closing and dropping them there does nothing to the parent
        claim.abort()
        view.release()
        for handle in (writer, reader, region):
            handle.close()
        return "refused"

    assert in_a_fork(child) == "refused"
    assert eight_slots.header.read(0, eight_slots.header.length) == before
    assert claim.commit(1, 1, [8], timestamp_ns=1, meta_version=0, trace_id=0, publish_timestamp=False) == 1
    assert view.release()
    assert reader.counters()["delivered"] == 1


def test_failpoints_have_names_and_unknown_ones_are_refused() -> None:
    assert "write.mid_payload" in failpoint_names()
    for name, action in (("nowhere", "error"), ("region.after_map", "explode")):
        with pytest.raises(ValueError):
            failpoint_arm(name, action)
    with pytest.raises(ValueError):
        failpoint_disarm("nowhere")


def test_two_threads_that_close_and_use_a_region_never_stand_still(base: Path) -> None:
    regions = [Region.create(str(base), f"{number}", LENGTH) for number in range(50)]

    def use() -> None:
        for region in regions:
            for _ in range(20):
                try:
                    region.read(0, 8)
                except ClosedError:
                    break
                region.close()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
