"""Directories below the base, walked one component at a time: no link is followed, nothing of another user is used."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum

from tensor_pool.errors import PathNotAllowedError, RegionError

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PermissionMode(Enum):
    """Who may map the regions (wire 15.21a.6). No mode gives "others" anything."""

    GROUP = "group"
    PRIVATE = "private"

    @property
    def file_mode(self) -> int:
        return 0o660 if self is PermissionMode.GROUP else 0o600

    @property
    def directory_mode(self) -> int:
        return 0o2770 if self is PermissionMode.GROUP else 0o700


@contextmanager
def opened_directory(base_dir: str, components: Sequence[str], *, make_mode: int | None = None) -> Iterator[int]:
    """A descriptor of `base_dir`/`components`.

    With `make_mode` missing components are made, and all of them are ours and of that mode afterwards; without it a missing one is a
    `FileNotFoundError`. A link or anything else that is no directory is a `PathNotAllowedError`.
    """
    with ExitStack() as descriptors:
        path = base_dir
        descriptor = _open_base(base_dir)
        descriptors.callback(os.close, descriptor)
        for name in components:
            path = os.path.join(path, name)
            if make_mode is not None:
                _make_if_missing(descriptor, name, path)
            descriptor = _open(descriptor, name, path)
            descriptors.callback(os.close, descriptor)
            if make_mode is not None:
                _make_ours(descriptor, path, make_mode)
        yield descriptor


@contextmanager
def opened_child(parent: int, name: str) -> Iterator[int]:
    """A descriptor of the directory `name` in an opened directory."""
    descriptor = _open(parent, name, name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_new_directory(parent: int, name: str, path: str, mode: int) -> None:
    """Make `name` in `parent`; `RegionError` where anything of that name exists already."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError as error:
        raise RegionError(f"{path} exists already; an epoch always gets a directory of its own", path=path) from error
    except OSError as error:
        raise _failed("make the directory", path, error) from error
    with opened_child(parent, name) as descriptor:
        os.fchmod(descriptor, mode)  # not mkdir's mode argument: the umask and the missing set-group-id bit would change it


def list_names(descriptor: int) -> list[str]:
    return sorted(os.listdir(descriptor))


def remove_directory(parent: int, name: str) -> bool:
    """Remove an empty directory; False where it is not empty or gone."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
            return False
        raise
    return True


def remove_file(parent: int, name: str) -> None:
    """Remove a file's name; whoever has it open or mapped keeps its bytes."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def file_system_type(path: str) -> str:
    """The type of the file system that holds `path`, e.g. `tmpfs` or `hugetlbfs`; empty where the kernel does not say."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == wanted:
                return rest.split()[0]
    return ""


def _open_base(base_dir: str) -> int:
    try:
        return os.open(base_dir, _OPEN_DIRECTORY)
    except OSError as error:
        raise _failed("open the base directory", base_dir, error) from error


def _make_if_missing(parent: int, name: str, path: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    except OSError as error:
        raise _failed("make the directory", path, error) from error


def _open(parent: int, name: str, path: str) -> int:
    try:
        return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise PathNotAllowedError(f"{path} is a link or no directory", path=path) from error
        raise _failed("open the directory", path, error) from error


def _make_ours(descriptor: int, path: str, mode: int) -> None:
    """Refuse a directory that another user put there; give one of ours the mode it should have."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise PathNotAllowedError(
            f"{path} belongs to user {status.st_uid}, not to user {os.geteuid()} that this driver runs as",
            path=path,
            hint="remove that directory, or set shm.base_dir or shm.namespace to another place",
        )
    if stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(descriptor, mode)


def _failed(what: str, path: str, error: OSError) -> RegionError:
    return RegionError(f"cannot {what} {path}: {error.strerror}", path=path)
