"""Directories that no other test and no running stack shares."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "tensor-pool-test-"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - this is where shared memory lives; the directories below are unique and private


@dataclass(frozen=True, slots=True)
class IsolatedDirectories:
    """What a stack under test may write to. `root` is short on purpose: the path of a UNIX socket has 107 characters."""

    root: Path
    runtime_dir: Path
    state_dir: Path
    shm_base_dir: Path
    aeron_dir: Path

    def environment(self) -> dict[str, str]:
        """Environment variables that send a process of this package into these directories."""
        return {
            "XDG_RUNTIME_DIR": str(self.runtime_dir),
            "XDG_STATE_HOME": str(self.state_dir),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "TMPDIR": str(self.root / "tmp"),
        }

    def leftovers(self) -> list[Path]:
        """Regular files and sockets that are still there. A test of promise P8 expects none."""
        found = []
        for base in (self.runtime_dir, self.shm_base_dir, self.aeron_dir, self.root / "tmp"):
            found += [path for path in sorted(base.rglob("*")) if not path.is_dir() and path.name != ".lock"]
        return found


def _make(base: Path) -> tuple[Path, int]:
    """A unique 0700 directory below `base` with a held lock inside, which says that its owner is alive."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (directory / ".lock").exists():
            return directory, lock
        # somebody took it for abandoned, and removed it, before the lock was ours
        os.close(lock)


def _remove_abandoned(base: Path) -> None:
    """Remove what test runs left that were killed: their locks are free."""
    for directory in base.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(directory / ".lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # being made right now, or another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            pass  # alive
        finally:
            os.close(lock)


@contextmanager
def isolated_directories() -> Iterator[IsolatedDirectories]:
    """Fresh runtime, state, shared-memory and Aeron directories; all of it is gone afterwards."""
    ordinary = Path(tempfile.gettempdir())
    shared = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else ordinary
    for base in {ordinary, shared}:
        _remove_abandoned(base)
    root, root_lock = _make(ordinary)
    memory, memory_lock = _make(shared)
    try:
        directories = IsolatedDirectories(
            root=root, runtime_dir=root / "run", state_dir=root / "state", shm_base_dir=memory / "shm", aeron_dir=memory / "aeron"
        )
        for path in (directories.runtime_dir, directories.state_dir, directories.shm_base_dir, root / "config", root / "tmp"):
            path.mkdir(mode=0o700)
        yield directories
    finally:
        for path, lock in ((root, root_lock), (memory, memory_lock)):
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
