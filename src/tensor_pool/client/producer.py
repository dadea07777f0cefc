"""The producer a user holds: the stream's exclusive lease, its regions mapped for writing, and the way out for descriptors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from tensor_pool import _native
from tensor_pool.client.admin import StreamInfo
from tensor_pool.client.attachment import Attachment
from tensor_pool.client.claimed_slot import ClaimedSlot
from tensor_pool.client.conductor import ControlMessage, closed_error, forked_error
from tensor_pool.client.provisioning import Provisioning
from tensor_pool.client.services import ClientServices
from tensor_pool.clock import SystemClock
from tensor_pool.errors import (
    ClosedError,
    LeaseLostError,
    ProtocolError,
    RegionError,
    TensorPoolError,
    TransportError,
)
from tensor_pool.producer.arrays import Array, DeclaredFrame, publishable_bytes
from tensor_pool.producer.stats import COUNTER_NAMES, ProducerState, ProducerStats
from tensor_pool.runtime import PeriodicTimer
from tensor_pool.sbe import control, driver
from tensor_pool.shm.layout import PoolLayout
from tensor_pool.shm.mapping import MappedPools
from tensor_pool.tensors import wire_dtype

LOGGER = logging.getLogger("tensor_pool.producer")
# readers wait on slots only while one of them said hello within five intervals (design 5, "Waiting")
WAITERS_EXPECTED_INTERVALS = 5
# those who read before this producer came have said it by then; until then somebody may sleep
EVERYBODY_SAID_HELLO_INTERVALS = 2


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """What the user asked for. `provision` makes the stream fit before each attach, where a stack can be asked to."""

    stream_id: int
    wait_ns: int | None
    declared: DeclaredFrame | None = None
    publish_timestamps: bool = False
    provision: Callable[[], StreamInfo] | None = None


class Producer:
    """Writes the frames of one stream. Made by `session.producer(...)`; one a stream.

    `publish` never waits for anyone. After a lost lease it raises `LeaseLostError` until the producer has attached again by itself; then it
    works in a new epoch, with seq from 0.
    """

    def __init__(self, services: ClientServices, options: ProducerOptions) -> None:
        self._services = services
        self._options = options
        self._writer: _native.RingWriter | None = None
        self._pools: MappedPools | None = None
        self._failure: TensorPoolError | None = None
        self._lost_reason = ""
        self._closed = False
        self._totals = dict.fromkeys(COUNTER_NAMES, 0)
        # a frame without a time is stamped on the way in; a clock that a test moves is asked here
        self._stamp = None if isinstance(services.clock, SystemClock) else services.clock.monotonic_ns
        self._hellos: dict[int, int] = {}
        self._attached_ns = services.clock.monotonic_ns()
        self._report = PeriodicTimer(services.report_interval_ns, services.clock.monotonic_ns())
        self._provisioning = Provisioning(options.stream_id, options.provision, services.clock)
        self._provisioning.first(options.wait_ns)
        self._attachment = Attachment(
            services,
            options.stream_id,
            driver.Role.PRODUCER,
            self._on_attached,
            self._on_lease_lost,
            self._on_refused,
            gives_up_on_refusal=options.wait_ns == 0,
        )
        self._publication = services.link.open_descriptor_publication()
        self._waiters = services.link.open_waiters(options.stream_id)
        services.link.hear_hellos()
        try:
            services.conductor.add(self)
            self._attachment.wait(options.wait_ns, ready=self._is_settled)
            if self._failure is not None:
                raise self._failure
        except BaseException:
            self.close()
            raise

    # --- publishing --------------------------------------------------------------------------------------------------

    def publish(self, array: npt.ArrayLike, timestamp_ns: int | None = None, trace_id: int = 0) -> int:
        """Copy a frame into the ring and announce it. Returns its seq. `timestamp_ns` is the time of capture, by default now."""
        writer = self._writer
        if writer is None:
            raise self.not_attached_error()
        if timestamp_ns is None and self._stamp is not None:
            timestamp_ns = self._stamp()
        try:
            # exactly what was declared: everything else happens in native code
            seq = writer.publish_declared(array, timestamp_ns, trace_id)
            if seq is not None:
                return seq
            pixels: Array = np.asarray(array)
            declared = self._options.declared
            if declared is not None:
                declared.check(pixels.shape, pixels.dtype)
            payload, order = publishable_bytes(pixels)
            return writer.publish(
                payload,
                wire_dtype(pixels.dtype),
                order,
                pixels.shape,
                timestamp_ns=self._services.clock.monotonic_ns() if timestamp_ns is None else timestamp_ns,
                meta_version=0,
                trace_id=trace_id,
                publish_timestamp=self._options.publish_timestamps,
            )
        except ClosedError:
            # the conductor let the lease go between our look and the write
            raise self.not_attached_error() from None

    def claim(
        self,
        shape: tuple[int, ...] | int | None = None,
        dtype: npt.DTypeLike | None = None,
        timestamp_ns: int | None = None,
        trace_id: int = 0,
    ) -> ClaimedSlot:
        """The next slot, to be filled in place: `with producer.claim() as slot: camera.read_into(slot.array)`.

        Commits on leaving the block, aborts on an exception. A shape or dtype that is not given is the declared one.
        """
        writer = self._writer
        if writer is None:
            raise self.not_attached_error()
        frame = self._options.declared
        if frame is None or shape is not None or dtype is not None:
            frame = self._frame_to_claim(shape, dtype)
        try:
            claim = writer.claim(frame.nbytes)
        except ClosedError:
            raise self.not_attached_error() from None
        if timestamp_ns is None:
            timestamp_ns = self._services.clock.monotonic_ns()
        return ClaimedSlot(self, claim, frame, timestamp_ns, trace_id)

    def _frame_to_claim(self, shape: tuple[int, ...] | int | None, dtype: npt.DTypeLike | None) -> DeclaredFrame:
        declared = self._options.declared
        if declared is None:
            if shape is None or dtype is None:
                raise ValueError("claim() needs shape and dtype, since the producer declared none")
            return DeclaredFrame.of(shape, dtype)
        frame = DeclaredFrame.of(declared.shape if shape is None else shape, declared.dtype if dtype is None else dtype)
        declared.check(frame.shape, frame.dtype)
        return declared

    def not_attached_error(self) -> TensorPoolError:
        """Why there is no ring to write to now."""
        if self._services.is_forked:
            return forked_error("producer")
        if self._closed:
            return closed_error("producer")
        if self._failure is not None:
            return self._failure
        return LeaseLostError(
            f"the producer lease of stream {self._options.stream_id} was lost ({self._lost_reason}); attaching again",
            reason=self._lost_reason,
            hint="publish works again, with a new epoch, as soon as the driver grants a new lease",
        )

    # --- what is known ---------------------------------------------------------------------------------------------

    @property
    def declared(self) -> DeclaredFrame | None:
        """What every frame is, where the user said so."""
        return self._options.declared

    @property
    def stamps_descriptors(self) -> bool:
        """Whether descriptors carry the time of publication."""
        return self._options.publish_timestamps

    @property
    def closed(self) -> bool:
        """Whether `close` was called, by the user or with the session."""
        return self._closed

    @property
    def stream_id(self) -> int:
        return self._options.stream_id

    @property
    def state(self) -> ProducerState:
        self._services.check_here("producer")
        return self._state

    @property
    def epoch(self) -> int | None:
        """The epoch that is written now."""
        self._services.check_here("producer")
        pools = self._pools
        return None if pools is None else pools.layout.epoch

    @property
    def stats(self) -> ProducerStats:
        self._services.check_here("producer")
        with self._services.conductor.lock:
            counters = self._writer.counters() if self._writer is not None else {}
            counts = {name: total + counters.get(COUNTER_NAMES[name], 0) for name, total in self._totals.items()}
            last_seq = self._writer.next_seq - 1 if self._writer is not None else -1
            return ProducerStats(**counts, last_seq=last_seq, epoch=self.epoch, reattached=self._attachment.reattached)

    @property
    def _state(self) -> ProducerState:
        if self._closed:
            return ProducerState.CLOSED
        return ProducerState.ATTACHED if self._writer is not None else ProducerState.WAITING

    # --- control traffic, called by the conductor --------------------------------------------------------------------

    def on_message(self, message: ControlMessage, join_ns: int, now_ns: int) -> None:
        match message:
            case control.ConsumerHello(stream_id=self._options.stream_id, consumer_id=consumer_id):
                self._on_hello(consumer_id, now_ns)
            case control.ShmPoolAnnounce(stream_id=self._options.stream_id):
                self._attachment.on_driver_seen(now_ns)
            case _:
                self._attachment.on_message(message, now_ns)

    def on_tick(self, now_ns: int) -> None:
        self._attachment.on_tick(now_ns)
        pools, writer = self._pools, self._writer
        if pools is None or writer is None:
            return
        if now_ns - pools.activity_ns > self._services.freshness_ns:
            self._attachment.on_lost(now_ns, "the driver is gone")
            return
        if self._report.due(now_ns):
            self._look_for_waiters(writer, now_ns)
            self._send_qos(pools.layout.epoch, writer)

    def _on_hello(self, consumer_id: int, now_ns: int) -> None:
        is_new = consumer_id not in self._hellos
        self._hellos[consumer_id] = now_ns
        if is_new and self._writer is not None:
            self._look_for_waiters(self._writer, now_ns)

    def _look_for_waiters(self, writer: _native.RingWriter, now_ns: int) -> None:
        """Who said hello within the last intervals, and where each of them says that it sleeps."""
        interval_ns = self._services.report_interval_ns
        since_ns = now_ns - WAITERS_EXPECTED_INTERVALS * interval_ns
        self._hellos = {consumer_id: hello_ns for consumer_id, hello_ns in self._hellos.items() if hello_ns >= since_ns}
        if now_ns - self._attached_ns < EVERYBODY_SAID_HELLO_INTERVALS * interval_ns:
            return
        writer.set_waiters(bool(self._hellos))
        try:
            self._waiters.watch(list(self._hellos))
        except (ClosedError, TransportError) as error:
            LOGGER.debug("stream %d: %s", self._options.stream_id, error)

    @property
    def is_settled(self) -> bool:
        return self._attachment.is_held

    def on_transport_lost(self, error: TransportError) -> None:
        self._failure = error
        self._let_go("the media driver is gone")

    def _is_settled(self) -> bool:
        return self._writer is not None or self._failure is not None

    def _on_attached(self, layout: PoolLayout, client_id: int) -> None:
        services, declared = self._services, self._options.declared
        if declared is not None and declared.nbytes > layout.largest_stride_bytes:
            self._failure = self._provisioning.too_small_error(declared, layout)
            return
        try:
            pools = services.map_pools(layout, writable=True)
        except (RegionError, ProtocolError) as error:
            self._failure = error
            return
        for _, _, region in pools.pools:
            region.prefault()
        self._failure = None
        self._pools = pools
        # who reads has new leases, and new counters with them: until they are found somebody may sleep
        self._waiters.close()
        self._waiters = services.link.open_waiters(layout.stream_id)
        self._writer = _native.RingWriter(
            pools.header,
            pools.pools,
            nslots=layout.nslots,
            stream_id=layout.stream_id,
            epoch=layout.epoch,
            publication=self._publication,
            waiters=self._waiters,
        )
        if declared is not None:
            code = wire_dtype(declared.dtype)
            self._writer.declare(declared.dtype, code, declared.shape, publish_timestamp=self._options.publish_timestamps)
        self._attached_ns = services.clock.monotonic_ns()
        LOGGER.debug("stream %d: producing epoch %d as client %d", layout.stream_id, layout.epoch, client_id)

    def _on_lease_lost(self, reason: str) -> None:
        LOGGER.info("stream %d: the producer lease was lost (%s)", self._options.stream_id, reason)
        self._let_go(reason)

    def _on_refused(self) -> None:
        if not self._attachment.has_given_up:
            self._provisioning.again()

    def _let_go(self, reason: str) -> None:
        writer, self._writer = self._writer, None
        self._lost_reason = reason
        if writer is not None:
            counters = writer.counters()
            for name in self._totals:
                self._totals[name] += counters[COUNTER_NAMES[name]]
            writer.close()
        if self._pools is not None:
            self._pools.close()
            self._pools = None

    def _send_qos(self, epoch: int, writer: _native.RingWriter) -> None:
        client_id, next_seq = self._attachment.client_id, writer.next_seq
        if client_id is None or next_seq == 0:
            return
        self._services.link.send_qos(
            control.QosProducer(
                stream_id=self._options.stream_id, producer_id=client_id, epoch=epoch, current_seq=next_seq - 1, watermark=None
            ).encode()
        )

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the lease back. The epoch ends here: consumers drop what they have not read yet (wire 15.21). In a forked child: nothing."""
        if self._services.is_forked:
            return
        with self._services.conductor.lock:
            if self._closed:
                return
            self._closed = True
            # from the last to the first, each whatever became of the others
            with ExitStack() as closing:
                closing.callback(self._publication.close)
                closing.callback(self._waiters.close)
                closing.callback(self._let_go, "closed")
                closing.callback(self._attachment.close)
                closing.callback(self._services.conductor.remove, self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer of stream {self._options.stream_id}, {self._state.value}>"
