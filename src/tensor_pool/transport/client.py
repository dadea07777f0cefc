"""One Aeron client of this process, whose errors go to `logging`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import TracebackType

from tensor_pool import _native

LOGGER = logging.getLogger(__name__)


class TransportClient:
    """Adds publications and subscriptions, and closes them with itself.

    Aeron's errors are logged whenever something is added, at `log_errors`, and at the end.
    """

    def __init__(self, directory: str | Path, *, driver_timeout_ms: int = 10_000, name: str = "") -> None:
        """`MediaDriverTimeoutError` when no media driver answers on `directory` in time."""
        self._native = _native.AeronClient(str(directory), driver_timeout_ms=driver_timeout_ms, name=name)
        self._process_id = os.getpid()
        self._what = f"Aeron client of {directory}"
        self._add_timeout_ns = driver_timeout_ms * 1_000_000

    @property
    def native(self) -> _native.AeronClient:
        """The native client, for what few need: its counters, its id."""
        return self._native

    @property
    def directory(self) -> str:
        return self._native.directory

    @property
    def is_closed(self) -> bool:
        """True after `close`, and once the media driver was lost."""
        return self._native.is_closed

    def publish(self, channel: str, stream_id: int) -> _native.Publication:
        """An exclusive publication. Channels come from `exclusive_channel`."""
        try:
            return self._native.add_exclusive_publication(channel, stream_id, timeout_ns=self._add_timeout_ns)
        finally:
            self.log_errors()

    def subscribe(self, channel: str, stream_id: int) -> _native.Subscription:
        """A subscription. Channels come from `subscription_channel`."""
        try:
            return self._native.add_subscription(channel, stream_id, timeout_ns=self._add_timeout_ns)
        finally:
            self.log_errors()

    def counter(self, type_id: int, key: bytes, label: str) -> _native.Counter:
        """A counter that this client owns; it goes with the client."""
        return self._native.add_counter(type_id, key, label, timeout_ns=self._add_timeout_ns)

    def log_errors(self) -> int:
        """Log what Aeron reported since the last call. Returns how many errors there were."""
        return log_errors(self._native, self._what)

    def close(self) -> None:
        """Close everything that was added, then the client. Does not hang when the media driver is gone; in a forked child: nothing."""
        was_lost = self._native.is_closed
        self._native.close()
        if os.getpid() == self._process_id:
            # of a media driver that is gone every use of this client has said so
            log_errors(self._native, self._what, logging.DEBUG if was_lost else logging.WARNING)

    def __enter__(self) -> TransportClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def log_errors(source: _native.AeronClient | _native.MediaDriver, what: str, level: int = logging.WARNING) -> int:
    """Move a native handle's errors to the log."""
    errors = source.take_errors()
    for code, text in errors:
        LOGGER.log(level, "%s: %s (code %d)", what, text, code)
    return len(errors)
