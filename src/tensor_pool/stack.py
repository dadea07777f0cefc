"""What `tensor-pool up` starts, and `embedded()` inside a program: a media driver, an SHM driver, and the file that says where they are."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Final

from tensor_pool.config import DEFAULT, load
from tensor_pool.driver import DriverSettings, DriverStack
from tensor_pool.errors import ConfigError, RegionError, TransportError
from tensor_pool.recorder import RecorderSettings
from tensor_pool.runtime import DirectoryLock, RuntimeDirectory, StackDescription, failpoints
from tensor_pool.sbe.driver import ShutdownReason
from tensor_pool.transport import EmbeddedMediaDriver, MediaDriverSettings, TransportClient

AERON_PARENT: Final = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())  # noqa: S108
AERON_DIRECTORY: Final = "aeron"
EMBEDDED_ANNOUNCE_PERIOD_MS: Final = 200
_ATTEMPTS: Final = 20


@dataclass(frozen=True)
class StackSettings(DriverSettings):
    """Everything a stack can be told, by section of its TOML file."""

    media_driver: MediaDriverSettings = field(default_factory=MediaDriverSettings)
    recorder: RecorderSettings = field(default_factory=RecorderSettings)


def _aeron_prefix() -> str:
    return f"tensor-pool-aeron-{os.geteuid()}-"


class AeronDirectory:
    """A fresh directory for a media driver, held by a lock: a killed driver keeps its own one busy for seconds, so none is used twice."""

    def __init__(self, parent: Path = AERON_PARENT) -> None:
        """`RegionError` when none could be held, which takes as many others that start at the same moment."""
        for _ in range(_ATTEMPTS):
            self._holder = Path(tempfile.mkdtemp(prefix=_aeron_prefix(), dir=parent))
            self._lock = DirectoryLock(self._holder)
            failpoints.reach("stack.aeron_directory_made")
            # until here it looks like one whose stack was killed: who removes those takes the lock first, and then it is theirs
            with suppress(RegionError):
                if self._lock.acquire():
                    return
        raise RegionError(f"no directory below {parent} could be held for a media driver", path=str(parent), hint="start again")

    @property
    def path(self) -> str:
        return str(self._holder / AERON_DIRECTORY)

    def close(self) -> None:
        shutil.rmtree(self._holder, ignore_errors=True)
        self._lock.release()


def remove_abandoned_aeron_directories(parent: Path = AERON_PARENT) -> int:
    """Remove what stacks of this user left that were killed. Returns how many directories that were."""
    removed = 0
    for holder in parent.glob(f"{_aeron_prefix()}*"):
        try:
            status = holder.stat(follow_symlinks=False)
            if holder.is_symlink() or status.st_uid != os.geteuid() or DirectoryLock.held_by_other(holder):
                continue
            lock = DirectoryLock(holder)
            # held while it goes, so that a stack that is just making this directory does not believe that it has it
            if not lock.acquire(pause=lambda _: None):
                continue
        except OSError:
            continue
        failpoints.reach("stack.abandoned_directory_locked")
        shutil.rmtree(holder, ignore_errors=True)
        lock.release()
        removed += 1
    return removed


def _state_directory(environ: Mapping[str, str]) -> Path:
    """Where epochs are remembered from one run to the next (XDG base directories)."""
    given = environ.get("XDG_STATE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "tensor-pool"


class Stack:
    """A running stack. `start` it, watch `stop_requested`, `close` it.

    With a runtime directory others find it there; without one it is this program's alone. `driver.aeron_dir` names the directory of a media
    driver that runs already, instead of one inside this process.
    """

    def __init__(
        self,
        settings: StackSettings,
        *,
        directory: RuntimeDirectory | None,
        remembers_epochs: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`remembers_epochs` keeps the last epochs in the user's state directory, so that they rise from one run to the next."""
        self._settings = settings
        self._remembers_epochs = remembers_epochs
        self._directory = directory
        self._environ = os.environ if environ is None else environ
        self._open = ExitStack()
        self._driver: DriverStack | None = None
        self._description: StackDescription | None = None
        self._process_id = os.getpid()

    @classmethod
    def embedded(cls, settings: StackSettings | None = None, *, expose: bool = False, environ: Mapping[str, str] | None = None) -> Stack:
        """A stack with a namespace of its own.

        Without settings they are the defaults and what the environment overrides, but for announces: those are made five times a second, so
        that programs start quickly.
        """
        if settings is None:
            loaded = load(StackSettings, None, environ)
            settings = loaded.settings
            if loaded.origin["policies.announce_period_ms"] == DEFAULT:
                settings = replace(settings, policies=replace(settings.policies, announce_period_ms=EMBEDDED_ANNOUNCE_PERIOD_MS))
        if settings.shm.namespace == StackSettings().shm.namespace:
            settings = replace(settings, shm=replace(settings.shm, namespace=f"embedded-{secrets.token_hex(6)}"))
        return cls(settings, directory=RuntimeDirectory.locate() if expose else None, remembers_epochs=False)

    @property
    def description(self) -> StackDescription:
        """What a session needs to join."""
        if self._description is None:
            raise ConfigError("this stack was not started", key="stack", hint="call start() first")
        return self._description

    @property
    def stop_requested(self) -> Event:
        """Set when an administrator asked for the end, or when the driver ended by itself: then `error` says why."""
        assert self._driver is not None, "start() first"
        return self._driver.stop_requested

    @property
    def error(self) -> BaseException | None:
        """What ended the driver, if it did not end by `close`."""
        return self._driver.error if self._driver is not None else None

    def start(self) -> None:
        """Start everything, and say where it is. Nothing is left where any of it fails."""
        remove_abandoned_aeron_directories()
        with ExitStack() as opened:
            directory = self._directory or _private_directory(opened)
            directory.ensure()
            _hold(directory, opened)
            external = self._settings.driver.aeron_dir
            aeron_dir = external or self._start_media_driver(opened)
            transport = self._join_media_driver(aeron_dir)
            opened.callback(transport.close)
            state_directory = _state_directory(self._environ) if self._remembers_epochs else _private_directory(opened).path
            driver = DriverStack(self._settings, transport, admin_socket=directory.admin_socket, state_directory=state_directory)
            opened.callback(driver.close)
            driver.start(listen_first=bool(external))
            self._description = driver.describe(aeron_dir)
            if self._directory is not None:
                self._description.write(directory.stack_file)
                opened.callback(_remove, directory.stack_file)
            self._driver = driver
            self._open = opened.pop_all()

    def _start_media_driver(self, opened: ExitStack) -> str:
        holder = AeronDirectory()
        opened.callback(holder.close)
        opened.enter_context(EmbeddedMediaDriver(holder.path, self._settings.media_driver))
        return holder.path

    def _join_media_driver(self, aeron_dir: str) -> TransportClient:
        timeout_ms = self._settings.media_driver.driver_timeout_ms
        try:
            return TransportClient(aeron_dir, driver_timeout_ms=timeout_ms, name="shm-driver")
        except TransportError as error:
            if not self._settings.driver.aeron_dir:
                raise
            # whoever starts both at once is not refused: this comes after the whole time-out
            raise ConfigError(
                f"driver.aeron_dir = {aeron_dir!r}: no media driver answered there within {timeout_ms / 1000:g} s",
                key="driver.aeron_dir",
                value=aeron_dir,
                hint=f"start one: tensor-pool media-driver --aeron-dir {aeron_dir}",
            ) from error

    def close(self, reason: ShutdownReason | None = None, words: str = "") -> None:
        """Tell clients, stop everything, remove every file. In a forked child: nothing."""
        if os.getpid() != self._process_id:
            return
        if self._driver is not None and reason is not None:
            self._driver.close(reason, words)
        self._open.close()

    def __enter__(self) -> Stack:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _private_directory(opened: ExitStack) -> RuntimeDirectory:
    path = Path(tempfile.mkdtemp(prefix="tensor-pool-"))
    opened.callback(shutil.rmtree, path, ignore_errors=True)
    return RuntimeDirectory(path, "a private directory")


def _hold(directory: RuntimeDirectory, opened: ExitStack) -> None:
    lock = directory.lock()
    if not lock.acquire():
        raise ConfigError(
            f"a stack runs in {directory.path} already",
            source=directory.source,
            key="runtime directory",
            value=str(directory.path),
            hint="use it, stop it with `tensor-pool down`, or set TENSOR_POOL_RUNTIME_DIR to another directory",
        )
    opened.callback(lock.release, remove=True)


def _remove(file: Path) -> None:
    with suppress(FileNotFoundError):
        file.unlink()
