"""A lease, held: the state machine of `lease_state`, performed over the session's control link."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from tensor_pool.client.lease_state import (
    Answered,
    Close,
    DriverSeen,
    LeaseEvent,
    LeaseIds,
    LeasePhase,
    LeaseState,
    Lost,
    NotifyAttached,
    NotifyLost,
    NotifyRefused,
    SendAttach,
    SendDetach,
    Tick,
    next_lease,
)
from tensor_pool.client.link import Keepalive
from tensor_pool.errors import ProtocolError, TensorPoolError
from tensor_pool.sbe.driver import (
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmLeaseKeepalive,
)
from tensor_pool.shm.layout import LAYOUT_VERSION, MAX_DIMS, PoolLayout, layout_from_response


class LeaseLink(Protocol):
    """What a lease needs of the control link."""

    def send_control(self, message: bytes) -> bool: ...

    @property
    def is_back_pressured(self) -> bool: ...

    def keep_alive(self, message: ShmLeaseKeepalive, interval_ns: int) -> Keepalive: ...


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What the lease is for, and how often it is renewed."""

    stream_id: int
    role: Role
    keepalive_interval_ns: int


@dataclass(frozen=True, slots=True)
class LeaseCallbacks:
    """What the holder does about it. Called from the conductor."""

    attached: Callable[[PoolLayout, int, int], None]
    """layout, client id, lease id"""
    refused: Callable[[NotifyRefused], None]
    lost: Callable[[str], None]


class Lease:
    """One lease of one stream in one role. Every call comes from the conductor."""

    def __init__(self, terms: LeaseTerms, link: LeaseLink, random: Random, callbacks: LeaseCallbacks) -> None:
        self._terms = terms
        self._link = link
        self._random = random
        self._callbacks = callbacks
        self._state = LeaseState()
        self._keepalive: Keepalive | None = None
        self._duration_ns = 0
        self._is_held_up = False
        self._renewed_ns = 0

    @property
    def phase(self) -> LeasePhase:
        return self._state.phase

    @property
    def lease_id(self) -> int | None:
        return self._state.lease_id

    @property
    def client_id(self) -> int | None:
        return self._state.ids.client_id if self._state.ids else None

    @property
    def is_held_up(self) -> bool:
        """Whether the last request could not be sent, because somebody who hears the control stream is behind."""
        return self._is_held_up

    def on_tick(self, now_ns: int) -> None:
        """Ask, ask again, or notice that the last renewal is too long ago."""
        if self._state.phase is LeasePhase.ATTACHED:
            if self._keepalive is not None:
                self._renewed_ns = max(self._renewed_ns, self._keepalive.last_sent_ns)
            # refused sends are repeated by the pump until one interval is left; only then is the lease given up (E59)
            if now_ns > self._renewed_ns + self._duration_ns - self._terms.keepalive_interval_ns:
                self.on_lost(now_ns, "expired")
            return
        self._apply(Tick(now_ns, self._fresh_ids()))

    def on_driver_seen(self, now_ns: int) -> None:
        """The stream was announced."""
        if self._state.phase is LeasePhase.WAITING:
            self._apply(DriverSeen(now_ns, self._fresh_ids()))

    def on_attach_response(self, now_ns: int, response: ShmAttachResponse) -> bool:
        """Whether the answer was for this lease."""
        ids = self._state.ids
        if self._state.phase is not LeasePhase.ATTACHING or ids is None or response.correlation_id != ids.correlation_id:
            return False
        if response.code is ResponseCode.OK:
            try:
                layout = layout_from_response(response)
                if layout.stream_id != self._terms.stream_id:
                    raise ProtocolError(f"attach response names stream {layout.stream_id}", name="ShmAttachResponse", rule="D-4.2-5")
            except ProtocolError as error:
                # a success without its fields is no success: drop it and ask anew (D-4.2-12)
                response = replace(response, code=ResponseCode.INTERNAL_ERROR, error_message=error.message)
        self._renewed_ns = now_ns
        expiry_ns = response.lease_expiry_timestamp_ns
        # without an expiry the driver does not enforce one; the stale-driver check still applies
        self._duration_ns = expiry_ns - now_ns if expiry_ns is not None else 1 << 62
        self._apply(Answered(now_ns, response, self._fresh_ids()))
        return True

    def on_lost(self, now_ns: int, reason: str) -> None:
        self._apply(Lost(now_ns, reason))

    def close(self) -> None:
        self._apply(Close())

    def _apply(self, event: LeaseEvent) -> None:
        self._state, effects = next_lease(self._state, event)
        for effect in effects:
            match effect:
                case SendAttach(ids):
                    was_sent = self._link.send_control(self._attach_request(ids).encode())
                    self._is_held_up = not was_sent and self._link.is_back_pressured
                case NotifyAttached(response, ids):
                    layout = layout_from_response(response)
                    self._keepalive = self._start_keepalive(ids, layout.stream_id)
                    self._callbacks.attached(layout, ids.client_id, int(response.lease_id or 0))
                case NotifyRefused():
                    self._callbacks.refused(effect)
                case NotifyLost(reason):
                    self._stop_keepalive()
                    self._callbacks.lost(reason)
                case SendDetach(ids, lease_id):
                    self._stop_keepalive()
                    # a goodbye: where nobody can hear it, the lease expires
                    with suppress(TensorPoolError):
                        self._link.send_control(self._detach_request(ids, lease_id).encode())

    def _attach_request(self, ids: LeaseIds) -> ShmAttachRequest:
        return ShmAttachRequest(
            correlation_id=ids.correlation_id,
            stream_id=self._terms.stream_id,
            client_id=ids.client_id,
            role=self._terms.role,
            expected_layout_version=LAYOUT_VERSION,
            max_dims=MAX_DIMS,
            publish_mode=PublishMode.REQUIRE_EXISTING,
            require_hugepages=None,
        )

    def _detach_request(self, ids: LeaseIds, lease_id: int) -> ShmDetachRequest:
        return ShmDetachRequest(
            correlation_id=self._fresh_ids().correlation_id,
            lease_id=lease_id,
            stream_id=self._terms.stream_id,
            client_id=ids.client_id,
            role=self._terms.role,
        )

    def _start_keepalive(self, ids: LeaseIds, stream_id: int) -> Keepalive:
        message = ShmLeaseKeepalive(
            lease_id=int(self._state.lease_id or 0),
            stream_id=stream_id,
            client_id=ids.client_id,
            role=self._terms.role,
            client_timestamp_ns=0,
        )
        return self._link.keep_alive(message, self._terms.keepalive_interval_ns)

    def _stop_keepalive(self) -> None:
        if self._keepalive is not None:
            self._keepalive.close()
            self._keepalive = None

    def _fresh_ids(self) -> LeaseIds:
        return LeaseIds(self._random.randrange(1, 1 << 32), self._random.randrange(1, 1 << 63))
