"""Files of epochs: where they are made, with which modes, and what stays when one of them cannot be made."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensor_pool import _native
from tensor_pool.errors import PathNotAllowedError, RegionError, StorageSpaceError
from tensor_pool.sbe.control import RegionType, ShmRegionSuperblock
from tensor_pool.shm.directories import PermissionMode
from tensor_pool.shm.epoch_files import EpochStorage, EpochStoragePolicy, PoolSize, StreamSizes
from tensor_pool.shm.native_regions import NativeRegionFactory
from tensor_pool.shm.paths import NamespacePaths, effective_user, is_safe_component, sanitize_component
from tensor_pool.testing.driver import PlainFileRegionFactory

SIZES = StreamSizes(4, (PoolSize(1, 64), PoolSize(9, 4096)))
FACTORIES = [pytest.param(PlainFileRegionFactory, id="plain"), pytest.param(NativeRegionFactory, id="native")]


def storage(base: Path, factory: Any = None, **policy: Any) -> EpochStorage:
    paths = NamespacePaths(str(base), "someone", "lab")
    return EpochStorage(paths, factory or NativeRegionFactory(), EpochStoragePolicy(**policy), process_id=4711, monotonic_ns=lambda: 5_000)


@pytest.mark.requirement("W-7.1-1")
@pytest.mark.requirement("W-15.21a.3-1")
@pytest.mark.requirement("W-15.21a.3-6")
@pytest.mark.parametrize("factory", FACTORIES)
def test_an_epoch_is_a_directory_with_a_header_and_its_pools(tmp_path: Path, factory: Callable[[], Any]) -> None:
    files = storage(tmp_path, factory()).create(10, 77, SIZES, reserve=True)
    directory = tmp_path / "tensorpool-someone" / "lab" / "10" / "77"
    assert sorted(path.name for path in directory.iterdir()) == ["1.pool", "9.pool", "header.ring"]
    header = ShmRegionSuperblock.decode_body((directory / "header.ring").read_bytes()[:64])
    assert (header.region_type, header.nslots, header.slot_bytes, header.stride_bytes) == (RegionType.HEADER_RING, 4, 256, 0)
    assert (header.pid, header.start_timestamp_ns, header.activity_timestamp_ns) == (4711, 5_000, 5_000)
    pool = ShmRegionSuperblock.decode_body((directory / "9.pool").read_bytes()[:64])
    assert (pool.region_type, pool.pool_id, pool.slot_bytes, pool.stride_bytes) == (RegionType.PAYLOAD_POOL, 9, 4096, 4096)
    assert [pool.uri for pool in files.layout.pools] == [f"shm:file?path={directory}/1.pool", f"shm:file?path={directory}/9.pool"]
    files.close()


@pytest.mark.requirement("W-15.21a.6-1")
@pytest.mark.parametrize(
    ("mode", "file_mode", "directory_mode"), [(PermissionMode.GROUP, 0o660, 0o2770), (PermissionMode.PRIVATE, 0o600, 0o700)]
)
@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, mode: PermissionMode, file_mode: int, directory_mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        storage(tmp_path, permissions=mode).create(10, 77, SIZES, reserve=False).close()
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (directory_mode if path.is_dir() else file_mode), path


def test_an_epoch_is_never_made_twice(tmp_path: Path) -> None:
    one = storage(tmp_path)
    one.create(10, 77, SIZES, reserve=False).close()
    before = (tmp_path / "tensorpool-someone/lab/10/77/header.ring").stat().st_ino
    with pytest.raises(RegionError, match="exists already"):
        one.create(10, 77, SIZES, reserve=False)
    assert (tmp_path / "tensorpool-someone/lab/10/77/header.ring").stat().st_ino == before


@pytest.mark.parametrize("budget_bytes", [0, 1200, 1500])
def test_where_one_file_has_no_room_none_is_left(tmp_path: Path, budget_bytes: int) -> None:
    with pytest.raises(StorageSpaceError):
        storage(tmp_path, PlainFileRegionFactory(budget_bytes)).create(10, 77, SIZES, reserve=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "tensorpool-someone/lab/10/77").exists()


@pytest.mark.requirement("D-9-2")
@pytest.mark.parametrize("component", ["tensorpool-someone", "tensorpool-someone/lab", "tensorpool-someone/lab/10"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "fifo", "socket"])
def test_nothing_but_a_directory_is_passed_on_the_way(tmp_path: Path, component: str, kind: str) -> None:
    base, outside = tmp_path / "b", tmp_path / "outside"
    base.mkdir()
    outside.mkdir()
    place = base / component
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        place.symlink_to(outside)
    elif kind == "dangling link":
        place.symlink_to(tmp_path / "nowhere")
    elif kind == "file":
        place.write_bytes(b"")
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(place))
    with pytest.raises(PathNotAllowedError):
        storage(base).create(10, 77, SIZES, reserve=False)
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.requirement("D-9-3")
def test_a_fifo_in_the_place_of_a_region_is_neither_opened_nor_waited_for(tmp_path: Path) -> None:
    directory = tmp_path / "tensorpool-someone"
    directory.mkdir()
    os.mkfifo(directory / "header.ring")
    with pytest.raises(RegionError):
        _native.Region.create(str(tmp_path), "tensorpool-someone/header.ring", 4096)
    assert stat.S_ISFIFO((directory / "header.ring").stat().st_mode)


def test_removal_takes_what_a_driver_made_and_leaves_the_rest(tmp_path: Path) -> None:
    one = storage(tmp_path)
    for epoch in (77, 78):
        one.create(10, epoch, SIZES, reserve=False).close()
    directory = tmp_path / "tensorpool-someone/lab/10"
    (directory / "78" / "notes.txt").write_text("mine")
    for epoch in (77, 78, 79):
        one.remove(10, epoch)
    assert [path.name for path in directory.iterdir()] == ["78"]
    assert [path.name for path in (directory / "78").iterdir()] == ["notes.txt"]
    one.remove_stream_directory(10)
    assert directory.exists()


def test_removed_files_stay_readable_for_who_has_them_mapped(tmp_path: Path) -> None:
    one = storage(tmp_path)
    files = one.create(10, 77, SIZES, reserve=True)
    path = tmp_path / "tensorpool-someone/lab/10/77/header.ring"
    reader = _native.Region.open(str(path), [str(tmp_path)], writable=False, minimum_length=64)
    one.remove(10, 77)
    files.refresh_activity(9_999)
    assert reader.load_u64(56) == 9_999
    reader.close()
    files.close()


def test_epochs_on_disk_are_found_whatever_else_lies_there(tmp_path: Path) -> None:
    one = storage(tmp_path)
    assert one.epochs_on_disk() == {}
    one.create(10, 77, SIZES, reserve=False).close()
    root = tmp_path / "tensorpool-someone" / "lab"
    for name in ("007", "x", "10/0x1", "10/-5", "10/12", "11"):
        (root / name).mkdir()
    (root / "12").write_text("")
    (root / "13").symlink_to(tmp_path)
    assert one.epochs_on_disk() == {10: [12, 77], 11: []}


@pytest.mark.requirement("W-15.21a.3-3")
@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0b", " ", "-x", ".x", "ü", "a|b", "a?b", "x" * 65])
def test_names_that_could_climb_are_no_names(name: str) -> None:
    assert not is_safe_component(name)
    with pytest.raises(ValueError, match="cannot be the name"):
        NamespacePaths("/base", "someone", name)
    with pytest.raises(ValueError, match="cannot be the name"):
        NamespacePaths("/base", name, "lab")
    assert sanitize_component(name) == "" or is_safe_component(sanitize_component(name))


@pytest.mark.requirement("W-15.21a.3-3")
@pytest.mark.parametrize("name", ["", "..", "../../x", "a/b", ".x", "ü"])
def test_a_user_of_any_name_has_a_directory_that_cannot_climb(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name=name))
    assert is_safe_component(effective_user())


@pytest.mark.requirement("W-15.21a.3-2")
def test_the_user_is_the_one_this_process_acts_as(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    monkeypatch.setenv("USER", "../../evil")
    monkeypatch.setenv("LOGNAME", "../../evil")
    assert effective_user() == pwd.getpwuid(os.geteuid()).pw_name
