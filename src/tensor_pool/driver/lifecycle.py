"""Streams as they live: files made and retired, producers granted, leases ended. Performs the effects of `state`'s two tables."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tensor_pool.driver.announces import Announcer
from tensor_pool.driver.counters import DriverCounters
from tensor_pool.driver.leases import Lease, LeaseTable
from tensor_pool.driver.outbox import Outbox
from tensor_pool.driver.provisioning import Made, NotMade, Provisioner
from tensor_pool.driver.responses import granted, refused
from tensor_pool.driver.state import REVOKE_REASONS, LeaseEffect, LeaseEvent, LeaseState, StreamEffect, StreamEvent, StreamState
from tensor_pool.driver.streams import Stream, StreamTable
from tensor_pool.runtime import failpoints
from tensor_pool.sbe.driver import ResponseCode, Role, ShmAttachRequest, ShmLeaseRevoked
from tensor_pool.shm.epoch_files import EpochFiles

LOGGER = logging.getLogger("tensor_pool.driver")
_ENDED = {LeaseState.DETACHED: "leases_detached", LeaseState.EXPIRED: "leases_expired", LeaseState.REVOKED: "leases_revoked"}


@dataclass(frozen=True, slots=True)
class DriverRooms:
    """What the parts of one driver share."""

    streams: StreamTable
    leases: LeaseTable
    provisioner: Provisioner
    announcer: Announcer
    outbox: Outbox
    counters: DriverCounters


class StreamLifecycle:
    """Every change of a stream's state goes through here. Called from the duty cycle only."""

    def __init__(self, rooms: DriverRooms) -> None:
        self._rooms = rooms
        self._pending_clients: dict[int, ShmAttachRequest] = {}

    @property
    def pending(self) -> int:
        """Requests that wait for files."""
        return len(self._pending_clients)

    def pending_of(self, client_id: int) -> ShmAttachRequest | None:
        return self._pending_clients.get(client_id)

    # --- attaching -----------------------------------------------------------------------------------------------------

    def attach(self, stream: Stream, request: ShmAttachRequest, now_ns: int) -> None:
        """Grant, refuse, or make what is missing first. The request was checked already."""
        producer = self._rooms.leases.producer_of(stream.stream_id)
        if request.role is Role.PRODUCER and producer is not None:
            words = f"stream {stream.stream_id} has a producer already (client {producer.client_id})"
            self.refuse(request, ResponseCode.REJECTED, words, now_ns)
        elif stream.state.is_preparing:
            self._wait(stream, request)
        elif request.role is Role.PRODUCER:
            stream.candidate = request
            self._pending_clients[request.client_id] = request
            self._perform(stream, stream.advance(StreamEvent.PRODUCER_ATTACH), now_ns)
        elif stream.state is StreamState.DEFINED:
            self._wait(stream, request)
            self._perform(stream, stream.advance(StreamEvent.CONSUMER_ATTACH), now_ns)
        else:
            self._grant(stream, request, now_ns)

    def repeat(self, stream: Stream, lease: Lease, now_ns: int) -> None:
        """Answer a repeated request with the lease that was given (decision E60), unless its epoch is just being replaced."""
        if stream.files is not None and stream.state is not StreamState.PREPARING_UNOWNED:
            expiry_ns = self._rooms.leases.expiry_ns(lease.lease_id)
            self._rooms.outbox.send(granted(lease, expiry_ns, stream.files.layout), now_ns)

    def refuse(self, request: ShmAttachRequest, code: ResponseCode, words: str, now_ns: int) -> None:
        counters = self._rooms.counters
        match code:
            case ResponseCode.INVALID_PARAMS:
                counters.attach_requests_invalid += 1
            case ResponseCode.UNSUPPORTED:
                counters.attach_requests_unsupported += 1
            case ResponseCode.REJECTED:
                counters.attach_requests_rejected += 1
            case _:
                counters.attach_requests_failed += 1
        self._rooms.outbox.send(refused(request.correlation_id, code, words), now_ns)

    def _wait(self, stream: Stream, request: ShmAttachRequest) -> None:
        stream.waiting.append(request)
        self._pending_clients[request.client_id] = request

    def _grant(self, stream: Stream, request: ShmAttachRequest, now_ns: int) -> None:
        rooms = self._rooms
        assert stream.files is not None
        lease = rooms.leases.grant(stream.stream_id, request.client_id, request.role, request.correlation_id, now_ns)
        failpoints.reach("driver.lease_granted")
        rooms.counters.attach_requests_accepted += 1
        rooms.outbox.send(granted(lease, rooms.leases.expiry_ns(lease.lease_id), stream.files.layout), now_ns)
        rooms.announcer.on_interest(stream, now_ns)

    # --- ending --------------------------------------------------------------------------------------------------------

    def end_lease(self, lease_id: int, event: LeaseEvent, words: str, now_ns: int) -> None:
        """Detached, expired or revoked: say so, and begin the next epoch where a producer went."""
        rooms = self._rooms
        lease, effects = rooms.leases.end(lease_id, event)
        counter = _ENDED[lease.state]
        setattr(rooms.counters, counter, getattr(rooms.counters, counter) + 1)
        if LeaseEffect.SEND_REVOKED in effects:
            notice = ShmLeaseRevoked(
                timestamp_ns=now_ns,
                lease_id=lease.lease_id,
                stream_id=lease.stream_id,
                client_id=lease.client_id,
                role=lease.role,
                reason=REVOKE_REASONS[lease.state],
                error_message=words,
            )
            rooms.outbox.send(notice.encode(), now_ns)
        if LeaseEffect.RAISE_EPOCH in effects:
            stream = rooms.streams.get(lease.stream_id)
            assert stream is not None
            self._perform(stream, stream.advance(StreamEvent.PRODUCER_GONE), now_ns)

    def change_layout(self, stream: Stream, now_ns: int) -> None:
        """The stream's definition has new sizes; a stream that has files gets new ones."""
        if stream.state is StreamState.UNOWNED:
            self._perform(stream, stream.advance(StreamEvent.LAYOUT_CHANGE), now_ns)

    # --- files ---------------------------------------------------------------------------------------------------------

    def do_work(self, now_ns: int) -> int:
        """Take up what the worker finished."""
        finished = self._rooms.provisioner.poll()
        for result in finished:
            stream = self._rooms.streams.get(result.stream_id)
            assert stream is not None
            if isinstance(result, Made):
                self._on_made(stream, result.files, now_ns)
            else:
                self._on_not_made(stream, result, now_ns)
        return len(finished)

    def _on_made(self, stream: Stream, files: EpochFiles, now_ns: int) -> None:
        self._rooms.counters.epochs_made += 1
        files.refresh_activity(now_ns)
        previous, stream.files = stream.files, files
        self._perform(stream, stream.advance(StreamEvent.MADE), now_ns, previous)
        self._serve_waiting(stream, now_ns)

    def _on_not_made(self, stream: Stream, result: NotMade, now_ns: int) -> None:
        self._rooms.counters.epochs_failed += 1
        LOGGER.error("stream %d: the next epoch could not be made: %s", stream.stream_id, result.error)
        event = StreamEvent.FAILED_WITHOUT_EPOCH if stream.files is None else StreamEvent.FAILED_BESIDE_EPOCH
        effects = stream.advance(event)
        previous = stream.files
        if StreamEffect.RETIRE_PREVIOUS in effects:
            stream.files = None
        self._perform(stream, effects, now_ns, previous, result.error)

    def _perform(
        self,
        stream: Stream,
        effects: tuple[StreamEffect, ...],
        now_ns: int,
        previous: EpochFiles | None = None,
        error: BaseException | None = None,
    ) -> None:
        for effect in effects:
            match effect:
                case StreamEffect.MAKE_SPARSE:
                    self._rooms.provisioner.make(stream.stream_id, stream.definition.sizes, reserve=False)
                case StreamEffect.MAKE_RESERVED:
                    self._rooms.provisioner.make(stream.stream_id, stream.definition.sizes, reserve=True)
                case StreamEffect.RETIRE_PREVIOUS:
                    if previous is not None:
                        self._rooms.provisioner.retire(previous)
                case StreamEffect.GRANT:
                    candidate, stream.candidate = stream.candidate, None
                    assert candidate is not None
                    del self._pending_clients[candidate.client_id]
                    self._grant(stream, candidate, now_ns)
                case StreamEffect.ANNOUNCE:
                    self._rooms.announcer.on_new_epoch(stream, now_ns)
                    failpoints.reach("driver.announced")
                case StreamEffect.REFUSE:
                    self._refuse_all(stream, error, now_ns)

    def _refuse_all(self, stream: Stream, error: BaseException | None, now_ns: int) -> None:
        words = getattr(error, "message", None) or str(error)
        candidate, stream.candidate = stream.candidate, None
        if candidate is not None:
            del self._pending_clients[candidate.client_id]
            self.refuse(candidate, ResponseCode.INTERNAL_ERROR, words, now_ns)
        if stream.files is not None:
            self._serve_waiting(stream, now_ns)
            return
        while stream.waiting:
            request = stream.waiting.popleft()
            del self._pending_clients[request.client_id]
            self.refuse(request, ResponseCode.INTERNAL_ERROR, words, now_ns)

    def _serve_waiting(self, stream: Stream, now_ns: int) -> None:
        requests = list(stream.waiting)
        stream.waiting.clear()
        for request in requests:
            del self._pending_clients[request.client_id]
            self.attach(stream, request, now_ns)
