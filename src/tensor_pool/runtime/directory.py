"""The directory where a user's stack says that it runs."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensor_pool import environment
from tensor_pool.errors import ConfigError
from tensor_pool.runtime.lock import DirectoryLock

STACK_FILE: Final = "stack.json"
ADMIN_SOCKET: Final = "admin.sock"
# sizeof(sockaddr_un.sun_path) less the NUL
LONGEST_SOCKET_PATH_BYTES: Final = 107
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class RuntimeDirectory:
    """A directory that only this user writes to. `source` is what chose it, for errors."""

    path: Path
    source: str = ""
    user_id: int | None = None

    @classmethod
    def locate(
        cls, environ: Mapping[str, str] | None = None, *, user_id: int | None = None, temporary: str | os.PathLike[str] | None = None
    ) -> RuntimeDirectory:
        """TENSOR_POOL_RUNTIME_DIR, else $XDG_RUNTIME_DIR/tensor-pool, else a directory of this user below the temporary one."""
        environ = os.environ if environ is None else environ
        user_id = os.geteuid() if user_id is None else user_id
        chosen = environ.get(environment.RUNTIME_DIR, "")
        if chosen:
            if not os.path.isabs(chosen):
                raise ConfigError(
                    f"environment {environment.RUNTIME_DIR} = {chosen!r} is not an absolute path",
                    source=f"environment {environment.RUNTIME_DIR}",
                    key=environment.RUNTIME_DIR,
                    value=chosen,
                    hint="every process has to find the same directory, wherever it was started",
                )
            return cls(Path(chosen), f"environment {environment.RUNTIME_DIR}", user_id)
        given = environ.get("XDG_RUNTIME_DIR", "")
        # the XDG specification: a relative path is to be ignored
        if os.path.isabs(given):
            return cls(Path(given) / "tensor-pool", "environment XDG_RUNTIME_DIR", user_id)
        base = Path(temporary if temporary is not None else tempfile.gettempdir())
        return cls(base / f"tensor-pool-{user_id}", "the temporary directory", user_id)

    @property
    def stack_file(self) -> Path:
        return self.path / STACK_FILE

    @property
    def admin_socket(self) -> Path:
        return self.path / ADMIN_SOCKET

    def lock(self) -> DirectoryLock:
        """The lock that the one stack of this directory holds."""
        return DirectoryLock(self.path)

    def ensure(self) -> RuntimeDirectory:
        """Make the directory where it is missing, mode 0700, then `check` it."""
        if len(os.fsencode(self.admin_socket)) > LONGEST_SOCKET_PATH_BYTES:
            raise self._refused(f"is too long: {self.admin_socket} has to fit the {LONGEST_SOCKET_PATH_BYTES} bytes of a socket's path")
        try:
            self.path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            pass
        except OSError as error:
            raise self._refused(f"cannot be made: {error.strerror}") from error
        self.check()
        return self

    def check(self) -> None:
        """`ConfigError` unless this is a directory of this user that nobody else may write to. A missing one is `FileNotFoundError`."""
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._refused(f"cannot be looked at: {error.strerror}") from error
        user_id = os.geteuid() if self.user_id is None else self.user_id
        if not stat.S_ISDIR(status.st_mode):
            raise self._refused("is a link or no directory")
        if status.st_uid != user_id:
            raise self._refused(f"belongs to user {status.st_uid}, not to user {user_id}")
        if status.st_mode & _OTHERS_MAY_WRITE:
            raise self._refused(f"may be written to by others (mode {stat.S_IMODE(status.st_mode):04o})", f"chmod 700 {self.path}")

    def _refused(self, why: str, hint: str = "") -> ConfigError:
        return ConfigError(
            f"the runtime directory {self.path} {why}",
            source=self.source,
            key="runtime directory",
            value=str(self.path),
            hint=hint or f"set {environment.RUNTIME_DIR} to a directory of your own",
        )
