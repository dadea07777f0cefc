"""A client's side of a lease as a pure state machine (driver 4.2, 4.4, 4.7 to 4.9, 4.12, 10; decisions E54, E59, E60).

| from | event | condition | to | effects |
| --- | --- | --- | --- | --- |
| IDLE, WAITING | Tick | retry time reached | ATTACHING | send attach (fresh ids) |
| WAITING | DriverSeen | | ATTACHING | send attach (fresh ids) |
| ATTACHING | Tick | resend time reached | ATTACHING | send attach (same ids) |
| ATTACHING | Tick | attempt timed out | WAITING | refused (time-out) |
| ATTACHING | Answered | OK | ATTACHED | attached |
| ATTACHING | Answered | REJECTED, first time | ATTACHING | send attach (fresh client id) |
| ATTACHING | Answered | any other code | WAITING | refused |
| ATTACHED | Lost(reason) | revoked, shutdown, stale driver, keepalive too late | WAITING | lost |
| any but CLOSED | Close | | CLOSED | detach where ATTACHED |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tensor_pool.sbe.driver import ResponseCode, ShmAttachResponse

RESEND_NS = 250_000_000
ATTEMPT_TIMEOUT_NS = 2_000_000_000
FIRST_RETRY_NS = 50_000_000
LONGEST_RETRY_NS = 1_000_000_000


class LeasePhase(Enum):
    IDLE = "idle"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    WAITING = "waiting"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LeaseIds:
    """Drawn at random for each attempt: the lease's client id (nonzero u32) and the request's correlation id (i64)."""

    client_id: int
    correlation_id: int


@dataclass(frozen=True, slots=True)
class LeaseState:
    phase: LeasePhase = LeasePhase.IDLE
    ids: LeaseIds | None = None
    lease_id: int | None = None
    attempt_deadline_ns: int = 0
    resend_at_ns: int = 0
    retry_at_ns: int = 0
    failures: int = 0
    rejected_once: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    now_ns: int
    fresh: LeaseIds


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """A driver announced the stream: no need to wait for the retry time."""

    now_ns: int
    fresh: LeaseIds


@dataclass(frozen=True, slots=True)
class Answered:
    now_ns: int
    response: ShmAttachResponse
    fresh: LeaseIds


@dataclass(frozen=True, slots=True)
class Lost:
    now_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    pass


LeaseEvent = Tick | DriverSeen | Answered | Lost | Close


@dataclass(frozen=True, slots=True)
class SendAttach:
    ids: LeaseIds


@dataclass(frozen=True, slots=True)
class NotifyAttached:
    response: ShmAttachResponse
    ids: LeaseIds


@dataclass(frozen=True, slots=True)
class NotifyRefused:
    """`code` is None when nobody answered."""

    code: ResponseCode | None
    words: str
    correlation_id: int


@dataclass(frozen=True, slots=True)
class NotifyLost:
    reason: str


@dataclass(frozen=True, slots=True)
class SendDetach:
    ids: LeaseIds
    lease_id: int


LeaseEffect = SendAttach | NotifyAttached | NotifyRefused | NotifyLost | SendDetach


def next_lease(state: LeaseState, event: LeaseEvent) -> tuple[LeaseState, tuple[LeaseEffect, ...]]:
    """One row of the table above."""
    if state.phase is LeasePhase.CLOSED:
        return state, ()
    match event:
        case Tick():
            return _on_tick(state, event)
        case DriverSeen():
            return _begin(state, event.now_ns, event.fresh) if state.phase is LeasePhase.WAITING else (state, ())
        case Answered():
            return _on_answered(state, event)
        case Lost():
            if state.phase is not LeasePhase.ATTACHED:
                return state, ()
            return LeaseState(LeasePhase.WAITING, retry_at_ns=event.now_ns + FIRST_RETRY_NS), (NotifyLost(event.reason),)
        case Close():
            closed = LeaseState(LeasePhase.CLOSED)
            if state.phase is LeasePhase.ATTACHED and state.ids is not None and state.lease_id is not None:
                return closed, (SendDetach(state.ids, state.lease_id),)
            return closed, ()


def _begin(state: LeaseState, now_ns: int, ids: LeaseIds) -> tuple[LeaseState, tuple[LeaseEffect, ...]]:
    attaching = LeaseState(
        LeasePhase.ATTACHING,
        ids=ids,
        attempt_deadline_ns=now_ns + ATTEMPT_TIMEOUT_NS,
        resend_at_ns=now_ns + RESEND_NS,
        failures=state.failures,
        rejected_once=state.rejected_once,
    )
    return attaching, (SendAttach(ids),)


def _on_tick(state: LeaseState, tick: Tick) -> tuple[LeaseState, tuple[LeaseEffect, ...]]:
    if state.phase in (LeasePhase.IDLE, LeasePhase.WAITING):
        return _begin(state, tick.now_ns, tick.fresh) if tick.now_ns >= state.retry_at_ns else (state, ())
    if state.phase is not LeasePhase.ATTACHING or state.ids is None:
        return state, ()
    if tick.now_ns >= state.attempt_deadline_ns:
        return _wait(state, tick.now_ns), (NotifyRefused(None, "no driver answered", state.ids.correlation_id),)
    if tick.now_ns >= state.resend_at_ns:
        # the same ids: the driver answers a repeated request with the lease that it gave already (E60)
        return replace(state, resend_at_ns=tick.now_ns + RESEND_NS), (SendAttach(state.ids),)
    return state, ()


def _on_answered(state: LeaseState, event: Answered) -> tuple[LeaseState, tuple[LeaseEffect, ...]]:
    response, ids = event.response, state.ids
    if state.phase is not LeasePhase.ATTACHING or ids is None or response.correlation_id != ids.correlation_id:
        return state, ()
    if response.code is ResponseCode.OK:
        return LeaseState(LeasePhase.ATTACHED, ids=ids, lease_id=response.lease_id), (NotifyAttached(response, ids),)
    if response.code is ResponseCode.REJECTED and not state.rejected_once:
        # perhaps only the client id was taken (E54)
        return _begin(replace(state, rejected_once=True), event.now_ns, event.fresh)
    return _wait(state, event.now_ns), (NotifyRefused(response.code, response.error_message, response.correlation_id),)


def _wait(state: LeaseState, now_ns: int) -> LeaseState:
    delay_ns = min(FIRST_RETRY_NS << min(state.failures, 10), LONGEST_RETRY_NS)
    return LeaseState(LeasePhase.WAITING, retry_at_ns=now_ns + delay_ns, failures=state.failures + 1)
