"""What producers and consumers share: one lease, the wait for it, and how often it was won back."""

from __future__ import annotations

from collections.abc import Callable

from tensor_pool.client.conductor import ControlMessage
from tensor_pool.client.lease import Lease, LeaseCallbacks, LeaseTerms
from tensor_pool.client.lease_state import LeasePhase, NotifyRefused
from tensor_pool.client.services import ClientServices
from tensor_pool.errors import AttachError, AttachRejectedError, AttachTimeoutError, BackPressuredError, UnsupportedError
from tensor_pool.sbe import driver
from tensor_pool.sbe.driver import ResponseCode
from tensor_pool.shm.layout import PoolLayout

REVOKE_WORDS = {
    driver.LeaseRevokeReason.DETACHED: "detached",
    driver.LeaseRevokeReason.EXPIRED: "expired",
    driver.LeaseRevokeReason.REVOKED: "revoked",
}


class Attachment:
    """A lease on its way, held, or lost and being won back."""

    def __init__(
        self,
        services: ClientServices,
        stream_id: int,
        role: driver.Role,
        on_attached: Callable[[PoolLayout, int], None],
        on_lost: Callable[[str], None],
        on_refused: Callable[[], None] | None = None,
        *,
        gives_up_on_refusal: bool = False,
    ) -> None:
        """`gives_up_on_refusal`: the first attach is not asked for again once it was refused, since whoever waits for it gives up."""
        self._services = services
        self._gives_up_on_refusal = gives_up_on_refusal
        self._stream_id = stream_id
        self._role = role
        self._on_attached = on_attached
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._refusal: NotifyRefused | None = None
        self._times_attached = 0
        terms = LeaseTerms(stream_id, role, services.keepalive_interval_ns)
        self._lease = Lease(terms, services.link, services.random, LeaseCallbacks(self._attached, self._refused, on_lost))

    @property
    def is_held(self) -> bool:
        return self._lease.phase is LeasePhase.ATTACHED

    @property
    def client_id(self) -> int | None:
        """This lease's identity on the wire, None while there is no lease."""
        return self._lease.client_id if self.is_held else None

    @property
    def times_attached(self) -> int:
        return self._times_attached

    @property
    def reattached(self) -> int:
        return max(0, self._times_attached - 1)

    @property
    def has_given_up(self) -> bool:
        return self._gives_up_on_refusal and self._times_attached == 0 and self._refusal is not None

    def wait(self, timeout_ns: int | None, *, ready: Callable[[], bool]) -> None:
        """Until `ready()`. Where that takes too long, or is refused for good, the driver's words are the error."""

        def done() -> bool:
            return ready() or self.has_given_up

        # not to wait for a stream still means to wait for the driver's answer to one request
        limit_ns = timeout_ns if timeout_ns != 0 else 5_000_000_000
        self._services.conductor.wait_until(done, limit_ns)
        if not ready():
            raise self._refusal_error()

    def _refusal_error(self) -> AttachError | BackPressuredError:
        role = self._role.name.lower()
        refusal = self._refusal
        if refusal is None or refusal.code is None:
            if self._lease.is_held_up:
                return BackPressuredError(
                    f"the request to attach a {role} to stream {self._stream_id} could not be sent: a reader of control messages is behind",
                    hint="a session or driver that was stopped holds it up until it goes on, or until the media driver gives it up",
                )
            return AttachTimeoutError(
                f"no driver answered for stream {self._stream_id} ({role})", hint="is the stack running? `tensor-pool up` starts one"
            )
        kind = UnsupportedError if refusal.code is ResponseCode.UNSUPPORTED else AttachRejectedError
        hint = "`tensor-pool ls` lists the streams of the stack" if self._role is driver.Role.CONSUMER else ""
        return kind(
            f"the driver refused to attach a {role} to stream {self._stream_id}: {refusal.words or refusal.code.name}",
            code=int(refusal.code),
            correlation_id=refusal.correlation_id,
            hint=hint,
        )

    def on_tick(self, now_ns: int) -> None:
        # a request that nobody waits for any more could be granted, and its lease would keep others out until it expires
        if not self.has_given_up:
            self._lease.on_tick(now_ns)

    def on_driver_seen(self, now_ns: int) -> None:
        if not self.has_given_up:
            self._lease.on_driver_seen(now_ns)

    def on_lost(self, now_ns: int, reason: str) -> None:
        self._lease.on_lost(now_ns, reason)

    def on_message(self, message: ControlMessage, now_ns: int) -> None:
        match message:
            case driver.ShmAttachResponse():
                self._lease.on_attach_response(now_ns, message)
            case driver.ShmLeaseRevoked(stream_id=self._stream_id, lease_id=lease_id, role=self._role) if lease_id == self._lease.lease_id:
                self._lease.on_lost(now_ns, REVOKE_WORDS[message.reason])
            case driver.ShmDriverShutdown():
                self._lease.on_lost(now_ns, "the driver was shut down")
            case _:
                pass

    def _attached(self, layout: PoolLayout, client_id: int, lease_id: int) -> None:
        self._times_attached += 1
        self._refusal = None
        self._on_attached(layout, client_id)

    def _refused(self, refusal: NotifyRefused) -> None:
        self._refusal = refusal
        if self._on_refused is not None:
            self._on_refused()

    def close(self) -> None:
        self._lease.close()
