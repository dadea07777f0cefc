"""Aeron's media driver on threads of this process: inside a program, or as the whole of one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tensor_pool import _native
from tensor_pool.errors import TransportError
from tensor_pool.transport.client import log_errors
from tensor_pool.transport.config import MediaDriverSettings
from tensor_pool.transport.directory import media_driver_directory

LOGGER = logging.getLogger(__name__)

ERROR_LOG_INTERVAL_S = 1.0
ACTIVE_DRIVER_CODE = 16


class EmbeddedMediaDriver:
    """A running media driver. Its directory is private to it, and gone when it is closed."""

    def __init__(self, directory: str | Path, settings: MediaDriverSettings | None = None) -> None:
        """`TransportError` when a live driver has the directory already, `ConfigError` when it holds what is not a media driver's."""
        self._settings = settings or MediaDriverSettings()
        path = media_driver_directory(directory)
        try:
            self._native = _native.MediaDriver(path, self._settings.as_native())
        except TransportError as error:
            if error.code == ACTIVE_DRIVER_CODE:
                error.hint = "use another directory, or wait for driver_timeout_ms after a driver that was killed"
            raise
        LOGGER.debug("media driver on %s", path)

    @property
    def directory(self) -> str:
        return self._native.directory

    @property
    def settings(self) -> MediaDriverSettings:
        return self._settings

    def log_errors(self) -> int:
        """Log what the driver reported since the last call. Returns how many errors there were."""
        return log_errors(self._native, f"media driver of {self.directory}")

    def close(self) -> None:
        """Stop the driver and remove its directory. Its clients hear of it within half a second."""
        self._native.close()

    def __enter__(self) -> EmbeddedMediaDriver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def run_media_driver(
    directory: str | Path,
    settings: MediaDriverSettings | None = None,
    *,
    stop: threading.Event,
    on_ready: Callable[[str], None] = lambda directory: None,
) -> None:
    """Run a media driver until `stop` is set. `on_ready` is told the directory once clients may come."""
    with EmbeddedMediaDriver(directory, settings) as driver:
        on_ready(driver.directory)
        while not stop.wait(ERROR_LOG_INTERVAL_S):
            driver.log_errors()
        driver.log_errors()
