"""What arrives on the control stream: gated, checked, answered. One handler a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tensor_pool.driver.config import DriverSettings, is_stream_id
from tensor_pool.driver.lifecycle import DriverRooms, StreamLifecycle
from tensor_pool.driver.responses import detached, refused
from tensor_pool.driver.state import LeaseEvent
from tensor_pool.driver.streams import Stream, StreamDefinition
from tensor_pool.errors import ProtocolError
from tensor_pool.sbe import codec, control, driver
from tensor_pool.sbe.driver import (
    Bool,
    PublishMode,
    ResponseCode,
    ShmAttachRequest,
    ShmDetachRequest,
    ShmLeaseKeepalive,
)
from tensor_pool.shm.layout import LAYOUT_VERSION, MAX_DIMS

ACCEPTED_MESSAGES: Final = (
    (driver.SCHEMA_ID, ShmAttachRequest.TEMPLATE_ID),
    (driver.SCHEMA_ID, ShmDetachRequest.TEMPLATE_ID),
    (driver.SCHEMA_ID, ShmLeaseKeepalive.TEMPLATE_ID),
    (control.SCHEMA_ID, control.ConsumerHello.TEMPLATE_ID),
)
# where a value that this driver does not know makes a request unsupported, not malformed (driver 4.6)
_UNSUPPORTED_FIELDS: Final = ("publish_mode",)
_REFUSABLE_FIELDS: Final = ("publish_mode", "role", "require_hugepages")


class DriverHandlers:
    """Dispatches by schema and template. Whatever is refused raises exactly one counter."""

    def __init__(self, settings: DriverSettings, rooms: DriverRooms, lifecycle: StreamLifecycle, *, offers_hugepages: bool) -> None:
        self._settings = settings
        self._rooms = rooms
        self._lifecycle = lifecycle
        self._offers_hugepages = offers_hugepages
        self._handlers: dict[tuple[int, int], Callable[[bytes, int], None]] = dict(
            zip(ACCEPTED_MESSAGES, (self.on_attach_request, self.on_detach_request, self.on_keepalive, self.on_hello), strict=True)
        )

    def on_message(self, data: bytes, now_ns: int) -> None:
        try:
            header = codec.peek(data)
            handler = self._handlers.get((header.schema_id, header.template_id))
            if handler is None:
                raise ProtocolError(f"template {header.template_id} of schema {header.schema_id} is not for a driver")
            handler(data, now_ns)
        except ProtocolError:
            self._rooms.counters.messages_malformed += 1

    # --- attach --------------------------------------------------------------------------------------------------------

    def on_attach_request(self, data: bytes, now_ns: int) -> None:
        try:
            request = ShmAttachRequest.decode(data)
        except ProtocolError as error:
            self._refuse_undecodable(data, error, now_ns)
            return
        if self._is_repeated(request, now_ns):
            return
        code, words = self._problem(request)
        if code is not ResponseCode.OK:
            self._lifecycle.refuse(request, code, words, now_ns)
            return
        stream = self._find_or_define(request)
        if stream is None:
            self._lifecycle.refuse(request, ResponseCode.REJECTED, self._why_not_there(request), now_ns)
            return
        self._lifecycle.attach(stream, request, now_ns)

    def _refuse_undecodable(self, data: bytes, error: ProtocolError, now_ns: int) -> None:
        """Answer where the correlation id can be trusted; drop the rest (decision E5, driver 4.6)."""
        header = codec.peek(data)
        begin = codec.HEADER_BYTES
        counters = self._rooms.counters
        is_whole = header.block_length >= ShmAttachRequest.BLOCK_LENGTH and len(data) >= begin + header.block_length
        if header.version != driver.SCHEMA_VERSION and is_whole:
            code = ResponseCode.UNSUPPORTED
        elif header.version == driver.SCHEMA_VERSION and error.field in _REFUSABLE_FIELDS:
            code = ResponseCode.UNSUPPORTED if error.field in _UNSUPPORTED_FIELDS else ResponseCode.INVALID_PARAMS
        else:
            raise error
        if code is ResponseCode.UNSUPPORTED:
            counters.attach_requests_unsupported += 1
        else:
            counters.attach_requests_invalid += 1
        correlation_id = int.from_bytes(data[begin : begin + 8], "little", signed=True)
        self._rooms.outbox.send(refused(correlation_id, code, error.message), now_ns)

    def _is_repeated(self, request: ShmAttachRequest, now_ns: int) -> bool:
        """The same client asks again with the same correlation id: it has not heard the answer, or there is none yet (decision E60)."""
        lease = self._rooms.leases.of_client(request.client_id)
        if lease is not None:
            asked = (request.correlation_id, request.role, request.stream_id or lease.stream_id)
            if asked != (lease.correlation_id, lease.role, lease.stream_id):
                return False
            stream = self._rooms.streams.get(lease.stream_id)
            assert stream is not None
            self._lifecycle.repeat(stream, lease, now_ns)
        elif self._lifecycle.pending_of(request.client_id) != request:
            return False
        self._rooms.counters.attach_requests_repeated += 1
        return True

    def _problem(self, request: ShmAttachRequest) -> tuple[ResponseCode, str]:
        """What is wrong with a request whatever its stream's state; OK where nothing is."""
        policies = self._settings.policies
        if request.client_id == 0:
            return ResponseCode.INVALID_PARAMS, "client_id is 0, which means no client"
        if request.stream_id != 0 and not is_stream_id(request.stream_id):
            return ResponseCode.INVALID_PARAMS, f"stream_id {request.stream_id} is reserved"
        if request.max_dims > MAX_DIMS:
            return ResponseCode.INVALID_PARAMS, f"max_dims is {request.max_dims}, this driver has {MAX_DIMS}"
        if request.expected_layout_version not in (0, LAYOUT_VERSION):
            return ResponseCode.REJECTED, f"expected_layout_version is {request.expected_layout_version}, this driver has {LAYOUT_VERSION}"
        if request.require_hugepages is Bool.TRUE and not self._offers_hugepages:
            return ResponseCode.REJECTED, f"hugepages are required, and {self._settings.shm.base_dir} is not on hugetlbfs"
        if self._is_client_known(request.client_id):
            return ResponseCode.REJECTED, f"client_id {request.client_id} has a lease already; every lease needs one of its own"
        if len(self._rooms.leases) + self._lifecycle.pending >= policies.max_leases:
            return ResponseCode.REJECTED, f"this driver gives at most {policies.max_leases} leases (policies.max_leases)"
        return ResponseCode.OK, ""

    def _is_client_known(self, client_id: int) -> bool:
        return self._rooms.leases.of_client(client_id) is not None or self._lifecycle.pending_of(client_id) is not None

    def _find_or_define(self, request: ShmAttachRequest) -> Stream | None:
        streams, policies = self._rooms.streams, self._settings.policies
        stream = streams.get(request.stream_id)
        if stream is not None or not self._may_define(request) or len(streams) >= policies.max_streams:
            return stream
        stream_id = request.stream_id or streams.unused_id()
        if stream_id is None:
            return None
        return streams.define(StreamDefinition(stream_id, self._settings.profiles[policies.default_profile].sizes))

    def _may_define(self, request: ShmAttachRequest) -> bool:
        policies = self._settings.policies
        return request.publish_mode is PublishMode.EXISTING_OR_CREATE and policies.allow_dynamic_streams and bool(policies.default_profile)

    def _why_not_there(self, request: ShmAttachRequest) -> str:
        policies = self._settings.policies
        if request.publish_mode is not PublishMode.EXISTING_OR_CREATE:
            return f"stream {request.stream_id} does not exist"
        if self._may_define(request):
            return f"stream {request.stream_id} does not exist, and there is no room for another (policies.max_streams)"
        reason = "policies.default_profile is not set" if policies.allow_dynamic_streams else "policies.allow_dynamic_streams is off"
        return f"stream {request.stream_id} does not exist and is not made on demand: {reason}"

    # --- keepalive, detach, hello --------------------------------------------------------------------------------------

    def on_keepalive(self, data: bytes, now_ns: int) -> None:
        keepalive = ShmLeaseKeepalive.decode(data)
        if self._rooms.leases.renew(keepalive.lease_id, keepalive.stream_id, keepalive.client_id, keepalive.role, now_ns):
            self._rooms.counters.keepalives_accepted += 1
        else:
            self._rooms.counters.keepalives_unmatched += 1

    def on_detach_request(self, data: bytes, now_ns: int) -> None:
        request = ShmDetachRequest.decode(data)
        lease = self._rooms.leases.matching(request.lease_id, request.stream_id, request.client_id, request.role)
        if lease is None:
            self._rooms.counters.detach_requests_rejected += 1
            response = detached(request.correlation_id, ResponseCode.REJECTED, "no such lease of this client, stream and role")
        else:
            self._rooms.counters.detach_requests_accepted += 1
            self._lifecycle.end_lease(lease.lease_id, LeaseEvent.DETACH, "detached by its client", now_ns)
            response = detached(request.correlation_id, ResponseCode.OK)
        self._rooms.outbox.send(response, now_ns)

    def on_hello(self, data: bytes, now_ns: int) -> None:
        hello = control.ConsumerHello.decode(data)
        stream = self._rooms.streams.get(hello.stream_id)
        if stream is None:
            self._rooms.counters.hellos_unknown_stream += 1
            return
        self._rooms.counters.hellos_accepted += 1
        self._rooms.announcer.on_interest(stream, now_ns)
