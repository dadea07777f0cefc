"""The lock that says which driver of a namespace is alive. The kernel lets it go with the process, however that ends (decision E97)."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from tensor_pool.errors import RegionError
from tensor_pool.shm.directories import opened_child, opened_directory, remove_directory, remove_file
from tensor_pool.shm.paths import LOCK_FILE, NamespacePaths

_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ATTEMPTS = 5
_PAUSE_S = 0.02


class DriverLock:
    """The advisory lock on a namespace's `driver.lock`, held from `acquire` until `release` or the end of the process."""

    def __init__(self, paths: NamespacePaths, directory_mode: int) -> None:
        self._paths = paths
        self._directory_mode = directory_mode
        self._descriptor: int | None = None

    @property
    def path(self) -> str:
        return os.path.join(self._paths.root, LOCK_FILE)

    def acquire(self, process_id: int, *, pause: Callable[[float], None] = time.sleep) -> None:
        """Take the lock. `RegionError` names the process that holds it (as it wrote its id: in a container that may be another's).

        A collector of another stack holds it for microseconds while it looks whether anybody lives here, hence the few attempts.
        """
        while True:
            # whoever gives the namespace up removes its directory, perhaps between our making it and our opening it
            with suppress(FileNotFoundError):
                descriptor = self._take(pause)
                break
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{process_id}\n".encode())
        self._descriptor = descriptor

    def _take(self, pause: Callable[[float], None]) -> int:
        with opened_directory(self._paths.base_dir, self._paths.components, make_mode=self._directory_mode) as directory:
            for attempt in range(_ATTEMPTS):
                if attempt > 0:
                    pause(_PAUSE_S)
                if (descriptor := lock_file(directory)) is not None:
                    return descriptor
            raise self._held_by(self._read_holder(directory))

    def release(self, *, remove: bool) -> None:
        """Let the lock go; with `remove` its file goes first, while nobody else can hold it, and the directories if they are empty."""
        if self._descriptor is None:
            return
        try:
            if remove:
                self._remove()
        finally:
            os.close(self._descriptor)
            self._descriptor = None

    def _remove(self) -> None:
        user, namespace = self._paths.components
        with (
            suppress(FileNotFoundError),
            opened_directory(self._paths.base_dir, ()) as base,
            opened_child(base, user) as parent,
            opened_child(parent, namespace) as directory,
        ):
            remove_file(directory, LOCK_FILE)
            remove_directory(parent, namespace)
            remove_directory(base, user)

    def _held_by(self, holder: str) -> RegionError:
        return RegionError(
            f"another driver{holder} manages namespace {self._paths.namespace!r} below {self._paths.base_dir}",
            path=self.path,
            hint="use that one, stop it, or give this one another shm.namespace",
        )

    @staticmethod
    def _read_holder(directory: int) -> str:
        try:
            descriptor = os.open(LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
        except OSError:
            return ""
        try:
            text = os.read(descriptor, 20).decode("ascii", errors="replace").strip()
        finally:
            os.close(descriptor)
        return f" (process {text})" if text.isdigit() else ""


def lock_file(directory: int) -> int | None:
    """A descriptor of `driver.lock` in `directory` with the lock on it; None where somebody holds it."""
    while True:
        try:
            descriptor = os.open(LOCK_FILE, _OPEN_LOCK, 0o600, dir_fd=directory)
        except FileNotFoundError:
            raise  # with O_CREAT: the directory itself is gone
        except OSError as error:
            raise RegionError(f"cannot open {LOCK_FILE}: {error.strerror}", path=LOCK_FILE) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise RegionError(f"{LOCK_FILE} is not a regular file", path=LOCK_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        if _is_still_named(directory, descriptor):
            return descriptor
        os.close(descriptor)  # the last holder removed this file between our open and our lock: what we hold is no lock at all


def _is_still_named(directory: int, descriptor: int) -> bool:
    try:
        named = os.stat(LOCK_FILE, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
