"""The consumer a user holds: a lease, the mapping of the stream's epoch, and the reader of its frames."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from tensor_pool import _native
from tensor_pool.client.attachment import Attachment
from tensor_pool.client.conductor import ControlMessage
from tensor_pool.client.mapping import EpochMapping
from tensor_pool.client.readable import Readable
from tensor_pool.client.services import ClientServices
from tensor_pool.clock import wait_ns
from tensor_pool.consumer.frame import BorrowedFrame, Frame
from tensor_pool.consumer.state import ConsumerPhase, Signal
from tensor_pool.consumer.stats import ConsumerStats
from tensor_pool.errors import ClosedError, TransportError
from tensor_pool.runtime import PeriodicTimer
from tensor_pool.sbe import control, driver
from tensor_pool.sbe.control import Mode
from tensor_pool.shm.layout import LAYOUT_VERSION, PoolLayout

_Read = TypeVar("_Read")

LOGGER = logging.getLogger("tensor_pool.consumer")
LARGEST_BATCH = 64
# a waiting read comes back this often to see whether the consumer failed
SLICE_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What the user asked for."""

    stream_id: int
    wait_ns: int | None
    spin: bool = False


class Consumer:
    """Reads the frames of one stream. Made by `session.consumer(...)`.

    Frames arrive in order of seq; what did not arrive is in `stats`. When the lease or the driver is lost the consumer goes on by itself
    as soon as the stream is back, in a new epoch. Iterating ends when the consumer is closed.
    """

    def __init__(self, services: ClientServices, options: ConsumerOptions) -> None:
        self._services = services
        self._options = options
        self._stream_id = options.stream_id
        self._sleeping: tuple[int, _native.Counter] | None = None
        self._closed = False
        self._report = PeriodicTimer(services.report_interval_ns, services.clock.monotonic_ns())
        self._reader = services.link.open_reader(options.stream_id)
        self._mapping = EpochMapping(
            services, self._reader, options.stream_id, on_mapped=self._send_hello, reattached=lambda: self._attachment.reattached
        )
        self._attachment = Attachment(
            services,
            options.stream_id,
            driver.Role.CONSUMER,
            self._on_attached,
            self._on_lease_lost,
            gives_up_on_refusal=options.wait_ns == 0,
        )
        try:
            services.conductor.add(self)
            self._attachment.wait(options.wait_ns, ready=self._is_settled)
            if self._mapping.failure is not None:
                raise self._mapping.failure
        except BaseException:
            self.close()
            raise

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, timeout: float | None = None) -> Frame | None:
        """The next frame as a copy. None after `timeout` seconds (0 polls, None waits)."""
        return self._reader.read(0) or self._wait_for(self._reader.read, timeout)

    def latest(self, timeout: float | None = None) -> Frame | None:
        """The newest frame there is; those passed over count as skipped, not as lost."""
        return self._wait_for(self._reader.read, timeout, newest=True)

    def read_into(self, out: Any, timeout: float | None = None) -> Frame | None:
        """Copy the next frame into `out` (writable, contiguous, large enough). The result's array is over `out`."""
        return self._reader.read_into(out, 0) or self._wait_for(partial(self._reader.read_into, out), timeout)

    def borrow(self, timeout: float | None = None) -> BorrowedFrame:
        """The slot itself, read-only, for a `with` block. Raises `TimeoutError` when no frame comes in time."""
        frame = self._reader.borrow(0) or self._wait_for(self._reader.borrow, timeout)
        if frame is None:
            raise TimeoutError(f"no frame of stream {self._stream_id} within {timeout} s")
        return frame

    def __iter__(self) -> Iterator[Frame]:
        while True:
            try:
                frame = self.read()
            except ClosedError:
                if self._closed:
                    return
                raise
            if frame is not None:
                yield frame

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Wakes the event loop when frames are there and never blocks it. Tasks may share a consumer: each frame goes to one of them."""
        batch = 0
        with Readable(self.fileno()) as readable:
            try:
                while not self._closed:
                    if (frame := self.read(0)) is None:
                        batch = 0
                        await readable.wait()
                        continue
                    yield frame
                    batch += 1
                    if batch % LARGEST_BATCH == 0:
                        # a stream that never pauses must not keep the loop to itself
                        await asyncio.sleep(0)
            except ClosedError:
                if not self._closed:
                    raise

    def fileno(self) -> int:
        """A file descriptor that is readable while frames may be waiting (for select, poll, asyncio). `read(0)` until None clears it."""
        return self._reader.fileno()

    def _wait_for(self, read: Callable[..., _Read | None], timeout: float | None, *, newest: bool = False) -> _Read | None:
        spin = self._options.spin
        if timeout == 0:
            self._check()
            return read(0, newest=newest, spin=spin)
        clock = self._services.clock
        timeout_ns = wait_ns(timeout)
        deadline_ns = None if timeout_ns is None else clock.monotonic_ns() + timeout_ns
        while True:
            self._check()
            slice_ns = SLICE_NS if deadline_ns is None else min(SLICE_NS, deadline_ns - clock.monotonic_ns())
            if not self._services.conductor.runs_on_a_thread:
                # in invoker mode nobody else moves the control traffic
                self._services.conductor.do_work()
                slice_ns = min(slice_ns, 1_000_000)
            fields = read(max(slice_ns, 0), newest=newest, spin=spin)
            if fields is not None:
                return fields
            if deadline_ns is not None and clock.monotonic_ns() >= deadline_ns:
                return None

    def _check(self) -> None:
        failure = self._mapping.failure
        if failure is not None and not self._closed:
            raise failure

    # --- what is known ---------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called, by the user or with the session."""
        return self._closed

    @property
    def stream_id(self) -> int:
        return self._options.stream_id

    @property
    def state(self) -> ConsumerPhase:
        """`MAPPED` while frames can be read, `UNMAPPED` while the stream is away."""
        self._services.check_here("consumer")
        return self._mapping.phase

    @property
    def stats(self) -> ConsumerStats:
        """Counts of the current epoch, which is the last one while the stream is away."""
        self._services.check_here("consumer")
        # an epoch is here or in `earlier_stats`, and never in both
        with self._services.conductor.lock:
            return self._mapping.stats

    @property
    def earlier_stats(self) -> tuple[ConsumerStats, ...]:
        """The final counts of the epochs before, oldest first (the last 64)."""
        self._services.check_here("consumer")
        return self._mapping.earlier_stats

    @property
    def counters(self) -> dict[str, int]:
        """Everything that was counted, by name: refused announces, layouts that cannot be mapped, malformed descriptors and the rest."""
        return {**self._reader.counters(), **self._mapping.counters}

    # --- control traffic, called by the conductor --------------------------------------------------------------------

    def on_message(self, message: ControlMessage, join_ns: int, now_ns: int) -> None:
        match message:
            case control.ShmPoolAnnounce(stream_id=self._options.stream_id):
                if self._mapping.on_announce(message, join_ns, now_ns):
                    self._attachment.on_driver_seen(now_ns)
            case driver.ShmLeaseRevoked(stream_id=self._options.stream_id, role=driver.Role.PRODUCER):
                self._mapping.on_signal(Signal.PRODUCER_REVOKED)
            case _:
                self._attachment.on_message(message, now_ns)

    def on_tick(self, now_ns: int) -> None:
        self._attachment.on_tick(now_ns)
        activity_ns = self._mapping.activity_ns
        if activity_ns is None:
            return
        if now_ns - activity_ns > self._services.freshness_ns:
            self._attachment.on_lost(now_ns, "the driver is gone")
            return
        self._mapping.look_for_regress()
        if self._report.due(now_ns):
            self._send_hello()
            self._send_qos()

    @property
    def is_settled(self) -> bool:
        return self._attachment.is_held

    def on_transport_lost(self, error: TransportError) -> None:
        self._mapping.on_signal(Signal.LEASE_LOST)
        self._mapping.fail(error)

    def _is_settled(self) -> bool:
        return self._mapping.phase is ConsumerPhase.MAPPED or self._mapping.failure is not None

    def _on_attached(self, layout: PoolLayout, client_id: int) -> None:
        self._mapping.on_attached(layout)

    def _on_lease_lost(self, reason: str) -> None:
        LOGGER.info("stream %d: the lease was lost (%s)", self._options.stream_id, reason)
        self._mapping.on_signal(Signal.LEASE_LOST)

    def _open_sleeping_counter(self, client_id: int) -> None:
        """Its key is the client id, and a new lease may bring another one."""
        if self._sleeping is not None and self._sleeping[0] == client_id:
            return
        self._close_sleeping_counter()
        try:
            counter = self._services.link.open_sleeping_counter(self._stream_id, client_id)
        except (ClosedError, TransportError) as error:
            # the producer wakes whom it knows nothing of
            LOGGER.info("stream %d: no counter for sleeping reads: %s", self._stream_id, error)
            return
        self._sleeping = (client_id, counter)
        self._reader.set_sleeping_counter(counter)

    def _close_sleeping_counter(self) -> None:
        if self._sleeping is not None:
            self._reader.set_sleeping_counter(None)
            self._sleeping[1].close()
            self._sleeping = None

    # --- reports ---------------------------------------------------------------------------------------------------

    def _send_hello(self) -> None:
        client_id = self._attachment.client_id
        if client_id is None:
            return
        # the producer looks for the counter when it hears the Hello
        self._open_sleeping_counter(client_id)
        self._services.link.send_control(
            control.ConsumerHello(
                stream_id=self._options.stream_id,
                consumer_id=client_id,
                supports_shm=control.Bool.TRUE,
                supports_progress=control.Bool.FALSE,
                mode=Mode.STREAM,
                max_rate_hz=0,
                expected_layout_version=LAYOUT_VERSION,
                progress_interval_us=None,
                progress_bytes_delta=None,
                progress_major_delta_units=None,
                descriptor_stream_id=0,
                control_stream_id=0,
                descriptor_channel="",
                control_channel="",
            ).encode()
        )

    def _send_qos(self) -> None:
        client_id, stats = self._attachment.client_id, self.stats
        if client_id is None or stats.epoch is None:
            return
        self._services.link.send_qos(
            control.QosConsumer(
                stream_id=self._options.stream_id,
                consumer_id=client_id,
                epoch=stats.epoch,
                last_seq_seen=max(stats.last_seq, 0),
                drops_gap=stats.gap,
                drops_late=stats.late,
                mode=Mode.STREAM,
            ).encode()
        )

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the lease back and end waiting reads. Frames that were read stay valid. In a forked child: nothing."""
        if self._services.is_forked:
            return
        with self._services.conductor.lock:
            if self._closed:
                return
            self._closed = True
            # from the last to the first, each whatever became of the others
            with ExitStack() as closing:
                closing.callback(self._services.link.close_reader, self._reader)
                closing.callback(self._close_sleeping_counter)
                closing.callback(self._mapping.close)
                closing.callback(self._attachment.close)
                closing.callback(self._services.conductor.remove, self)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer of stream {self._options.stream_id}, {'closed' if self._closed else self._mapping.phase.value}>"
