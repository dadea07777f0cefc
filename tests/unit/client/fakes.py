"""A control link and a clock without Aeron: what is sent is kept, what is received is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensor_pool.sbe import driver
from tensor_pool.sbe.driver import (
    PayloadPool,
    ResponseCode,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmLeaseKeepalive,
)

SECOND = 1_000_000_000
NOW = 5_000 * SECOND


@dataclass
class FakeKeepalive:
    message: ShmLeaseKeepalive
    interval_ns: int
    last_sent_ns: int = NOW
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class FakeLink:
    """Takes everything that is sent; `drain` gives the inbox once, or raises `error`."""

    sent: list[driver.Message] = field(default_factory=list)
    keepalives: list[FakeKeepalive] = field(default_factory=list)
    inbox: list[tuple[bytes, int]] = field(default_factory=list)
    error: Exception | None = None
    is_back_pressured: bool = False

    def send_control(self, message: bytes) -> bool:
        if self.is_back_pressured:
            return False
        self.sent.append(driver.decode(message))
        return True

    def keep_alive(self, message: ShmLeaseKeepalive, interval_ns: int) -> FakeKeepalive:
        self.keepalives.append(FakeKeepalive(message, interval_ns))
        return self.keepalives[-1]

    def drain(self) -> list[tuple[bytes, int]]:
        if self.error is not None:
            raise self.error
        messages, self.inbox = self.inbox, []
        return messages

    def wait(self, timeout_ns: int) -> bool:
        return bool(self.inbox)

    def wake(self) -> None:
        """Nobody waits in these tests."""

    @property
    def attach_requests(self) -> list[ShmAttachRequest]:
        return [message for message in self.sent if isinstance(message, ShmAttachRequest)]

    @property
    def detach_requests(self) -> list[ShmDetachRequest]:
        return [message for message in self.sent if isinstance(message, ShmDetachRequest)]


def success(request: ShmAttachRequest, *, lease_id: int = 77, expiry_ns: int | None = NOW + 3 * SECOND) -> ShmAttachResponse:
    return ShmAttachResponse(
        correlation_id=request.correlation_id,
        code=ResponseCode.OK,
        lease_id=lease_id,
        lease_expiry_timestamp_ns=expiry_ns,
        stream_id=request.stream_id,
        epoch=9,
        layout_version=1,
        header_nslots=8,
        header_slot_bytes=256,
        max_dims=8,
        payload_pools=(PayloadPool(1, 8, 4096, "shm:file?path=/base/1.pool"),),
        header_region_uri="shm:file?path=/base/header.ring",
        error_message="",
    )


def refusal(request: ShmAttachRequest, code: ResponseCode, words: str) -> ShmAttachResponse:
    return ShmAttachResponse(request.correlation_id, code, None, None, None, None, None, None, None, None, (), "", words)
