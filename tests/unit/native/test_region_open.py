"""Files that somebody else named: what is opened, and everything that is refused without being opened."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensor_pool._native import Region, canonical_base_dirs, failpoint_arm, failpoint_disarm
from tensor_pool.errors import PathNotAllowedError, RegionError
from tests.unit.native.rings import in_a_fork

LENGTH = 4096
RACE_S = 0.3
DEADLINE_S = 20.0
_WALKING = threading.Event()


@pytest.fixture(params=["openat2", "walk"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways of resolving a path: with openat2, and component by component as on a kernel without it."""
    if request.param == "walk":
        _WALKING.set()
    yield
    _WALKING.clear()
    failpoint_disarm()


def open_region(path: Path | str, *bases: Path | str, writable: bool = False, minimum_length: int = 1) -> Region:
    if _WALKING.is_set():
        failpoint_arm("open.before_openat2", "error")
    return Region.open(str(path), [str(base) for base in bases], writable=writable, minimum_length=minimum_length)


def make(path: Path, content: bytes = b"inside") -> Path:
    path.write_bytes(content.ljust(LENGTH, b"\0"))
    return path


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def a_link(base: Path) -> Path:
    make(base / "real")
    (base / "link").symlink_to(base / "real")
    return base / "link"


def a_link_to_the_outside(base: Path) -> Path:
    (base / "link").symlink_to("/etc/passwd")
    return base / "link"


def a_dangling_link(base: Path) -> Path:
    (base / "link").symlink_to(base / "nothing")
    return base / "link"


def below_a_link(base: Path) -> Path:
    (base / "real").mkdir()
    make(base / "real" / "file")
    (base / "link").symlink_to("real")
    return base / "link" / "file"


def below_a_link_to_the_outside(base: Path) -> Path:
    (base / "link").symlink_to("/etc")
    return base / "link" / "passwd"


def a_fifo(base: Path) -> Path:
    os.mkfifo(base / "fifo")
    return base / "fifo"


def a_directory(base: Path) -> Path:
    (base / "directory").mkdir()
    return base / "directory"


def a_socket(base: Path) -> Path:
    directory = os.open(base, os.O_PATH)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"/proc/self/fd/{directory}/socket")
    listener.close()
    os.close(directory)
    return base / "socket"


def a_device(base: Path) -> Path:
    # only root makes one; this one anybody may open for writing, and map
    return Path("/dev/zero")


def a_hard_link(base: Path) -> Path:
    os.link(make(base / "one"), base / "two")
    return base / "two"


def below_a_file(base: Path) -> Path:
    make(base / "file")
    return base / "file" / "more"


NOT_ALLOWED = [
    pytest.param(a_link, "symbolic link", marks=[pytest.mark.requirement("W-15.21a.5-7")]),
    pytest.param(a_link_to_the_outside, "symbolic link", marks=[pytest.mark.requirement("W-15.21a.5-7")]),
    pytest.param(a_dangling_link, "symbolic link", marks=[pytest.mark.requirement("W-15.21a.5-7")]),
    pytest.param(below_a_link, "symbolic link|not a directory", marks=[pytest.mark.requirement("W-15.21a.5-2")]),
    pytest.param(below_a_link_to_the_outside, "symbolic link|not a directory", marks=[pytest.mark.requirement("W-15.21a.5-4")]),
    pytest.param(a_fifo, "a FIFO", marks=[pytest.mark.requirement("W-15.21a.5-5"), pytest.mark.requirement("W-15.21a.5-6")]),
    pytest.param(a_directory, "a directory", marks=[pytest.mark.requirement("W-15.21a.5-5")]),
    pytest.param(a_socket, "a socket", marks=[pytest.mark.requirement("W-15.21a.5-6")]),
    pytest.param(a_device, "a device", marks=[pytest.mark.requirement("W-15.21a.5-6")]),
    pytest.param(a_hard_link, "hard links", marks=[pytest.mark.requirement("W-15.21a.5-8")]),
    pytest.param(below_a_file, "not a directory", marks=[pytest.mark.requirement("W-15.21a.5-5")]),
]


@pytest.mark.usefixtures("way")
@pytest.mark.requirement("W-15.21a.5-10")
@pytest.mark.requirement("W-15.21a.5-11")
@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize(("arrange", "reason"), NOT_ALLOWED)
def test_everything_but_a_regular_file_behind_no_link_is_refused(
    base: Path, arrange: Callable[[Path], Path], reason: str, writable: bool
) -> None:
    path = arrange(base)
    allowed = base if path.is_relative_to(base) else path.parent
    descriptors, mapped = len(os.listdir("/proc/self/fd")), mappings(path)
    with pytest.raises(PathNotAllowedError, match=reason) as refused:
        open_region(path, allowed, writable=writable)
    assert refused.value.path == str(path)
    assert str(path) in str(refused.value)
    assert (mappings(base), mappings(path)) == (0, mapped)
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.usefixtures("way")
@pytest.mark.requirement("W-15.21a.5-1")
@pytest.mark.requirement("W-15.21a.5-2")
@pytest.mark.requirement("W-15.21a.5-4")
def test_a_path_outside_the_base_is_refused_component_by_component(base: Path) -> None:
    outside = base.parent / f"{base.name}-evil"
    outside.mkdir()
    try:
        make(outside / "file")
        for path in (
            outside / "file",
            f"{base}/../{outside.name}/file",
            f"{base}/./..//{outside.name}/file",
            f"{base}",
            f"{base}/",
            f"{base}/.",
            f"{base}/..",
            f"{base}/x/../../etc/passwd",
            "/etc/passwd",
            "/",
            "",
            "file",
            f".{base}/file",
            f"{base}/fi\0le",
            f"/../..{outside}/file",
        ):
            with pytest.raises(PathNotAllowedError):
                open_region(path, base)
        with pytest.raises(PathNotAllowedError):
            open_region(base / "file")
    finally:
        (outside / "file").unlink()
        outside.rmdir()


@pytest.mark.usefixtures("way")
@pytest.mark.requirement("W-15.21a.5-2")
def test_a_path_that_stays_inside_is_opened_under_its_canonical_name(base: Path) -> None:
    (base / "deep").mkdir()
    make(base / "deep" / "file")
    for spelled in ("deep/file", "deep/../deep/./file", "/deep//file"):
        region = open_region(f"{base}/{spelled}", base)
        assert region.path == str(base / "deep" / "file")
        assert region.read(0, 6) == b"inside"
        status = (base / "deep" / "file").stat()
        assert region.identity == (status.st_dev, status.st_ino)
        assert (region.length, region.writable) == (LENGTH, False)
        with pytest.raises(ValueError):
            region.write(0, b"x")
        with pytest.raises(ValueError):
            region.store_u64(0, 1)


@pytest.mark.usefixtures("way")
@pytest.mark.requirement("W-15.21a.5-2")
@pytest.mark.requirement("W-15.21a.5-10")
@pytest.mark.parametrize(
    ("spelled", "error", "reason"),
    [
        ("link/../deep/inner/file", PathNotAllowedError, "link: passes a symbolic link|link: passes something that is not a directory"),
        ("deep/inner/file/../file", PathNotAllowedError, "deep/inner/file: passes something that is not a directory"),
        ("missing/../deep/inner/file", RegionError, "missing: no such file"),
        ("../{base}/deep/inner/file", PathNotAllowedError, "leaves the base directory"),
        ("deep/../../{base}/deep/inner/file", PathNotAllowedError, "leaves the base directory"),
    ],
)
def test_a_path_that_goes_back_over_anything_but_a_directory_inside_is_refused(
    base: Path, spelled: str, error: type[RegionError], reason: str
) -> None:
    (base / "deep" / "inner").mkdir(parents=True)
    make(base / "deep" / "inner" / "file", b"lexical")
    # where the kernel would go: beside what the link points to
    (base / "other" / "target").mkdir(parents=True)
    (base / "other" / "deep" / "inner").mkdir(parents=True)
    make(base / "other" / "deep" / "inner" / "file", b"another")
    (base / "link").symlink_to("other/target")
    with pytest.raises(error, match=reason) as refused:
        open_region(f"{base}/{spelled.format(base=base.name)}", base)
    assert type(refused.value) is error
    assert mappings(base) == 0
    assert open_region(f"{base}/other/target/../deep/inner/file", base).read(0, 7) == b"another"


def test_the_deepest_allowed_directory_is_the_one_that_counts(base: Path) -> None:
    (base / "deep").mkdir()
    make(base / "deep" / "file")
    assert open_region(base / "deep" / "file", base, base / "deep", Path("/")).read(0, 6) == b"inside"
    assert open_region(base / "deep" / "file", Path("/")).read(0, 6) == b"inside"


@pytest.mark.usefixtures("way")
@pytest.mark.requirement("W-15.21a.5-3")
def test_a_base_that_became_a_link_after_the_start_is_refused(base: Path) -> None:
    real, other = base / "real", base / "other"
    for directory in (real, other):
        directory.mkdir()
        make(directory / "file", directory.name.encode())
    (base / "alias").symlink_to(real)
    allowed = canonical_base_dirs(str(path) for path in [base / "alias"])
    assert allowed == [str(real)]
    (base / "alias").unlink()
    (base / "alias").symlink_to(other)
    with pytest.raises(PathNotAllowedError):
        open_region(other / "file", *allowed)
    assert open_region(real / "file", *allowed).read(0, 4) == b"real"
    real.rename(base / "moved")
    real.symlink_to(other)
    with pytest.raises(PathNotAllowedError, match=f"base directory {real} passes a symbolic link"):
        open_region(real / "file", *allowed)


def test_base_directories_must_be_there_and_be_directories(base: Path) -> None:
    for path in (base / "missing", make(base / "file"), Path("relative")):
        with pytest.raises(RegionError):
            canonical_base_dirs([str(path)])
    with pytest.raises(TypeError):
        canonical_base_dirs([3])  # type: ignore[list-item]
    with pytest.raises(RegionError):
        open_region(base / "gone" / "file", base / "gone")


@pytest.mark.usefixtures("way")
def test_a_missing_file_is_a_region_error_and_not_a_forbidden_one(base: Path) -> None:
    for path in (base / "missing", base / "no" / "directory", base / ("n" * 300)):
        with pytest.raises(RegionError) as refused:
            open_region(path, base)
        assert not isinstance(refused.value, PathNotAllowedError)
        assert refused.value.path == str(path)


@pytest.mark.usefixtures("way")
def test_a_file_shorter_than_its_layout_is_refused(base: Path) -> None:
    make(base / "file")
    (base / "empty").touch()
    with pytest.raises(RegionError, match=r"4096 bytes.*needs 4097"):
        open_region(base / "file", base, minimum_length=LENGTH + 1)
    with pytest.raises(RegionError, match="0 bytes"):
        open_region(base / "empty", base, minimum_length=0)
    assert open_region(base / "file", base, minimum_length=LENGTH).length == LENGTH


@pytest.mark.requirement("W-15.22-3")
@pytest.mark.requirement("W-15.22-9")
@pytest.mark.requirement("W-15.22-4")
@pytest.mark.requirement("W-15.22-10")
def test_a_region_that_must_be_on_hugepages_is_refused_elsewhere(base: Path) -> None:
    make(base / "file")
    with pytest.raises(RegionError, match="hugetlbfs") as refused:
        Region.open(str(base / "file"), [str(base)], writable=False, minimum_length=1, require_hugepages=True)
    assert "mount" in refused.value.hint
    assert not mappings(base)


def test_a_file_that_is_taken_away_while_it_is_mapped_stays(base: Path) -> None:
    region = open_region(make(base / "file"), base)
    (base / "file").unlink()
    make(base / "file", b"another")
    assert region.read(0, 6) == b"inside"
    assert open_region(base / "file", base).identity != region.identity


@pytest.mark.requirement("W-15.21a.5-2")
@pytest.mark.requirement("W-15.21a.5-8")
@pytest.mark.usefixtures("way")
def test_a_parent_directory_swapped_in_a_loop_never_lets_another_file_in(base: Path) -> None:
    allowed, secret = base / "allowed", base / "secret"
    for directory in (allowed / "a" / "deep", secret / "deep"):
        directory.mkdir(parents=True)
    make(allowed / "a" / "deep" / "file", b"inside")
    make(secret / "deep" / "file", b"secret")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (allowed / "a").rename(allowed / "b")
            (allowed / "a").symlink_to(secret)
            (allowed / "a").unlink()
            (allowed / "b").rename(allowed / "a")

    swapper = threading.Thread(target=swap)
    swapper.start()
    outcomes = {"inside": 0, "refused": 0}
    started = time.monotonic()
    try:
        while time.monotonic() < started + RACE_S or not all(outcomes.values()):
            assert time.monotonic() < started + DEADLINE_S, outcomes
            try:
                assert open_region(allowed / "a" / "deep" / "file", allowed, writable=True).read(0, 6) == b"inside"
                outcomes["inside"] += 1
            except RegionError:
                outcomes["refused"] += 1
    finally:
        stop.set()
        swapper.join()


@pytest.mark.requirement("W-15.21a.5-8")
@pytest.mark.usefixtures("way")
@pytest.mark.requirement("W-15.21a.5-7")
def test_a_file_swapped_with_a_link_or_a_fifo_in_a_loop_is_never_followed_and_never_blocks(base: Path) -> None:
    secret = make(base / "secret", b"secret")
    allowed = base / "allowed"
    allowed.mkdir()
    path = make(allowed / "file")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for arrange in (lambda new: os.symlink(secret, new), os.mkfifo, make):
                arrange(allowed / "new")
                os.rename(allowed / "new", path)

    swapper = threading.Thread(target=swap)
    swapper.start()
    outcomes = {"inside": 0, "refused": 0}
    started = time.monotonic()
    try:
        while time.monotonic() < started + RACE_S or not all(outcomes.values()):
            assert time.monotonic() < started + DEADLINE_S, outcomes
            try:
                assert open_region(path, allowed, writable=True).read(0, 6) == b"inside"
                outcomes["inside"] += 1
            except RegionError:
                outcomes["refused"] += 1
    finally:
        stop.set()
        swapper.join()


def test_a_directory_that_may_not_be_searched_is_a_region_error(base: Path) -> None:
    closed = base / "closed"
    closed.mkdir()
    make(closed / "file")

    def without_privileges() -> str:
        if os.geteuid() == 0:
            # root may search everything
            os.setgid(65534)
            os.setuid(65534)
        with pytest.raises(RegionError) as refused:
            open_region(closed / "file", closed)
        return str(refused.value)

    closed.chmod(0)
    try:
        assert "permission denied" in in_a_fork(without_privileges)
    finally:
        closed.chmod(0o700)
