"""A lock file in a directory. The kernel lets the lock go with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from tensor_pool.errors import RegionError

LOCK_FILE: Final = ".lock"
_OPEN_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPEN_TO_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.02


class DirectoryLock:
    """Says that the owner of a directory is alive, from `acquire` until `release` or the end of the process; not inherited by a fork."""

    def __init__(self, directory: str | os.PathLike[str], name: str = LOCK_FILE) -> None:
        self._path = Path(directory) / name
        self._descriptor: int | None = None

    @property
    def path(self) -> Path:
        return self._path

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(self, *, pause: Callable[[float], None] = time.sleep) -> bool:
        """Take the lock, if nobody has it. Who only looks holds it for microseconds, hence the few attempts."""
        if self._descriptor is not None:
            return True
        for attempt in range(_ATTEMPTS):
            if attempt > 0:
                pause(_PAUSE_S)
            self._descriptor = self._try()
            if self._descriptor is not None:
                _held.add(self)
                return True
        return False

    def release(self, *, remove: bool = False) -> None:
        """Let the lock go; with `remove` its file goes first, while nobody else can hold it."""
        if self._descriptor is None:
            return
        if remove:
            with suppress(FileNotFoundError):
                self._path.unlink()
        self._drop()

    @staticmethod
    def held_by_other(path: str | os.PathLike[str]) -> bool:
        """Whether somebody holds the lock of this directory (or lock file): another process, or another `DirectoryLock` of this one."""
        file = Path(path)
        if file.is_dir():
            file /= LOCK_FILE
        try:
            descriptor = os.open(file, _OPEN_TO_LOOK)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise RegionError(f"cannot open {file}: {error.strerror}", path=str(file)) from error
        try:
            # shared, so that two who look do not see each other
            return not _take(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def __enter__(self) -> DirectoryLock:
        if not self.acquire():
            raise RegionError(f"{self._path} is locked by another process", path=str(self._path))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def _drop(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        _held.discard(self)
        if descriptor is not None:
            os.close(descriptor)

    def _try(self) -> int | None:
        while True:
            try:
                descriptor = os.open(self._path, _OPEN_LOCK, 0o600)
            except OSError as error:
                raise RegionError(f"cannot open {self._path}: {error.strerror}", path=str(self._path)) from error
            keep = False
            try:
                if not _take(descriptor, fcntl.LOCK_EX):
                    return None
                # a file that the last holder removed between our open and our lock is no lock at all
                keep = self._is_still_named(descriptor)
                if keep:
                    return descriptor
            finally:
                if not keep:
                    os.close(descriptor)

    def _is_still_named(self, descriptor: int) -> bool:
        try:
            named = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        opened = os.fstat(descriptor)
        return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _take(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# A fork shares the open file and with it the lock: without this a child would hold it beyond its parent's death.
_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock._drop()


os.register_at_fork(after_in_child=_forget_in_child)
