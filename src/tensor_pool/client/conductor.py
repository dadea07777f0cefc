"""The session's second thread: control traffic in, timers, and what follows from both."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from tensor_pool.clock import Clock
from tensor_pool.errors import ClosedError, ProtocolError, TransportError
from tensor_pool.runtime import PeriodicTimer
from tensor_pool.sbe import codec, control, driver

LOGGER = logging.getLogger("tensor_pool.client")
WAIT_NS = 20_000_000
# for a message one is woken; what is left are timers of a second, and a lease that may run out
LONGEST_WAIT_NS = 200_000_000
LOG_ERRORS_NS = 1_000_000_000

ControlMessage = (
    control.ShmPoolAnnounce
    | control.ConsumerHello
    | driver.ShmAttachResponse
    | driver.ShmDetachResponse
    | driver.ShmDriverShutdown
    | driver.ShmLeaseRevoked
)
_MODULES = {control.SCHEMA_ID: control, driver.SCHEMA_ID: driver}


class ConductorLink(Protocol):
    """What the conductor needs of the control link."""

    def drain(self) -> list[tuple[bytes, int]]: ...

    def wait(self, timeout_ns: int) -> bool: ...

    def wake(self) -> None: ...

    def log_errors(self) -> None: ...


class StreamHandle(Protocol):
    """A producer or consumer, as the conductor sees it."""

    def on_message(self, message: ControlMessage, join_ns: int, now_ns: int) -> None: ...

    def on_tick(self, now_ns: int) -> None: ...

    @property
    def is_settled(self) -> bool:
        """Whether it has what it wants, so that its ticks are not urgent."""

    def on_transport_lost(self, error: TransportError) -> None: ...


class Conductor:
    """An agent: one pass drains the control traffic and ticks every handle. Handles are touched under `lock` only."""

    name = "client-conductor"

    def __init__(self, link: ConductorLink, clock: Clock, *, longest_wait_ns: int = LONGEST_WAIT_NS) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._link = link
        self._clock = clock
        self._longest_wait_ns = longest_wait_ns
        self._handles: list[StreamHandle] = []
        self._log_errors = PeriodicTimer(LOG_ERRORS_NS, clock.monotonic_ns())
        self._malformed = 0
        self._error: TransportError | None = None
        self.runs_on_a_thread = False

    def add(self, handle: StreamHandle) -> None:
        with self.lock:
            if self._error is not None:
                raise self._error
            self._handles.append(handle)
        self._link.wake()

    def remove(self, handle: StreamHandle) -> None:
        with self.lock:
            if handle in self._handles:
                self._handles.remove(handle)

    @property
    def malformed(self) -> int:
        """Control messages that were refused by their decoder."""
        return self._malformed

    def do_work(self) -> int:
        with self.lock:
            if self._error is not None:
                return 0
            now_ns = self._clock.monotonic_ns()
            try:
                messages = self._link.drain()
                for data, join_ns in messages:
                    self._dispatch(data, join_ns, now_ns)
                for handle in list(self._handles):
                    handle.on_tick(now_ns)
                if self._log_errors.due(now_ns):
                    self._link.log_errors()
            except TransportError as error:
                self._lose_transport(error)
                return 0
            self._changed.notify_all()
            return len(messages)

    def run_once(self) -> int:
        """One pass and a nap: the body of the session's thread."""
        work = self.do_work()
        if work == 0:
            self._link.wait(WAIT_NS)
        return work

    def rest(self, longest_ns: int) -> None:
        """Wait for a message, for `longest_ns` at most; not as long while somebody waits for an answer."""
        with self.lock:
            settled = all(handle.is_settled for handle in self._handles)
        self._link.wait(min(longest_ns, self._longest_wait_ns if settled else WAIT_NS))

    def close(self) -> None:
        """Nothing of its own to close: whoever runs this owns the link."""

    def wait_until(self, done: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Wait until `done()`, driving the conductor where no thread does. False on time-out."""
        deadline_ns = None if timeout_ns is None else self._clock.monotonic_ns() + timeout_ns
        while True:
            if not self.runs_on_a_thread:
                self.run_once()
            with self.lock:
                if self._error is not None:
                    raise self._error
                if done():
                    return True
                if deadline_ns is not None and self._clock.monotonic_ns() >= deadline_ns:
                    return False
                if self.runs_on_a_thread:
                    self._changed.wait(WAIT_NS / 1e9)

    def _dispatch(self, data: bytes, join_ns: int, now_ns: int) -> None:
        try:
            message = _MODULES[codec.peek(data).schema_id].decode(data)
        except (ProtocolError, KeyError) as error:
            self._malformed += 1
            LOGGER.debug("refused a control message: %s", error)
            return
        for handle in list(self._handles):
            handle.on_message(message, join_ns, now_ns)

    def _lose_transport(self, error: TransportError) -> None:
        self._error = error
        for handle in list(self._handles):
            handle.on_transport_lost(error)
        self._changed.notify_all()

    def check_open(self) -> None:
        """Raise what ended this conductor, if anything did."""
        if self._error is not None:
            raise self._error


def closed_error(what: str) -> ClosedError:
    return ClosedError(f"this {what} is closed")


def forked_error(what: str) -> ClosedError:
    """In a child made by fork nothing of the parent's works, and nothing will. Native handles say it in the same words."""
    return ClosedError(f"this {what} belongs to the parent of this process; make a new one after fork")
