"""The one directory that a demo writes to, besides build/: gone when it ends, and when it was killed emptied by the next one."""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from types import TracebackType
from typing import Final

import psutil
from demo_processes import DemoError

from tensor_pool.errors import RegionError
from tensor_pool.runtime import DirectoryLock
from tensor_pool.stack import AERON_PARENT, remove_abandoned_aeron_directories

END_LIMIT_S: Final = 10.0
DIRECTORIES: Final = {
    "TENSOR_POOL_RUNTIME_DIR": "runtime",
    "TENSOR_POOL_SHM__BASE_DIR": "shm",
    "XDG_STATE_HOME": "state",
    "XDG_CACHE_HOME": "cache",
    "MPLCONFIGDIR": "matplotlib",
}


class Workplace:
    """Held by a lock: another demo of this user is refused while this one runs, and what lies there without that is abandoned.

    In shared memory, where the rings have to be; the little else that there is (logs, sockets, epochs) does not need a second place.
    """

    def __init__(self) -> None:
        self.path = AERON_PARENT / f"tensor-pool-demo-{os.geteuid()}"
        self._lock = DirectoryLock(self.path)

    def __enter__(self) -> Workplace:
        if not self._take():
            raise DemoError("another demo of this user is running: wait for it to end")
        self._end_processes()
        self._empty()
        self._move_in()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end_processes()
        self._empty()
        self._lock.release(remove=True)
        with suppress(OSError):
            self.path.rmdir()

    def _take(self) -> bool:
        while True:
            self.path.mkdir(mode=0o700, exist_ok=True)
            try:
                self._check_owner()
                return self._lock.acquire()
            except (FileNotFoundError, RegionError):
                # a demo that ends at this moment takes the directory away
                if self.path.exists():
                    raise

    def _check_owner(self) -> None:
        """Everybody may write beside it, and everything in it will be removed."""
        status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise DemoError(f"{self.path} is no directory of this user: remove it")

    def _move_in(self) -> None:
        """From here on this process and all that it starts write here, and nowhere in the home of the user."""
        for variable, name in DIRECTORIES.items():
            (self.path / name).mkdir(mode=0o700)
            os.environ[variable] = str(self.path / name)
        # not a directory of its own: the paths of Spark's sockets are bounded
        os.environ["TMPDIR"] = str(self.path)
        # the figures that every Java leaves in /tmp, and a killed one for good
        os.environ["JDK_JAVA_OPTIONS"] = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -XX:-UsePerfData".strip()
        os.environ.pop("TENSOR_POOL_STACK", None)

    def _processes(self) -> list[psutil.Process]:
        """Whoever was started to write here. Java and Spark's workers are no children of the demo once the program between is dead."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("TMPDIR") == str(self.path):
                    found.append(process)
        return found

    def _end_processes(self) -> None:
        """With SIGKILL: who is left had its time to end, or lost the demo that it belonged to, and all that it wrote goes now."""
        began_s = time.monotonic()
        while (left := self._processes()) and time.monotonic() - began_s < END_LIMIT_S:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=0.1)

    def _empty(self) -> None:
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry != self._lock.path:
                entry.unlink(missing_ok=True)
        remove_abandoned_aeron_directories()
