"""The driver's state machines, pure. The rooms beside this one perform the effects.

Lease (driver 4.7; decision E93):

| from | event | to | effects |
| --- | --- | --- | --- |
| - | granted | ATTACHED | (see `leases`) |
| ATTACHED, ACTIVE | KEEPALIVE | ACTIVE | EXTEND |
| ATTACHED, ACTIVE | DETACH | DETACHED | SEND_REVOKED, and for a producer RAISE_EPOCH |
| ATTACHED, ACTIVE | TIMEOUT | EXPIRED | SEND_REVOKED, and for a producer RAISE_EPOCH |
| ATTACHED, ACTIVE | REVOKE | REVOKED | SEND_REVOKED, and for a producer RAISE_EPOCH |
| DETACHED, EXPIRED, REVOKED | any | the same | none: a lease is never revived |

Stream (driver 4.2, 6, 7; decisions E56 and E94). An epoch is *owned* while a producer holds the lease it was made for:

| from | event | to | effects |
| --- | --- | --- | --- |
| DEFINED | CONSUMER_ATTACH | PREPARING_UNOWNED | MAKE_SPARSE |
| DEFINED, UNOWNED | PRODUCER_ATTACH | PREPARING_OWNED | MAKE_RESERVED |
| UNOWNED | LAYOUT_CHANGE | PREPARING_UNOWNED | MAKE_SPARSE |
| OWNED | PRODUCER_GONE | PREPARING_UNOWNED | MAKE_SPARSE |
| PREPARING_OWNED | MADE | OWNED | RETIRE_PREVIOUS, GRANT, ANNOUNCE |
| PREPARING_UNOWNED | MADE | UNOWNED | RETIRE_PREVIOUS, ANNOUNCE |
| PREPARING_OWNED | FAILED | UNOWNED, or DEFINED where there was no epoch | REFUSE |
| PREPARING_UNOWNED | FAILED | DEFINED | RETIRE_PREVIOUS, REFUSE |

Whatever else arrives while files are being made waits for MADE or FAILED. Any other pair is a mistake of ours and raises `LookupError`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tensor_pool.sbe.driver import LeaseRevokeReason, Role


class LeaseState(Enum):
    ATTACHED = "attached"
    ACTIVE = "active"
    DETACHED = "detached"
    EXPIRED = "expired"
    REVOKED = "revoked"

    @property
    def is_live(self) -> bool:
        return self in (LeaseState.ATTACHED, LeaseState.ACTIVE)


class LeaseEvent(Enum):
    KEEPALIVE = "keepalive"
    DETACH = "detach"
    TIMEOUT = "timeout"
    REVOKE = "revoke"


class LeaseEffect(Enum):
    EXTEND = "extend"
    SEND_REVOKED = "send revoked"
    RAISE_EPOCH = "raise epoch"


_LEASE_TABLE: Final[dict[LeaseEvent, tuple[LeaseState, tuple[LeaseEffect, ...]]]] = {
    LeaseEvent.KEEPALIVE: (LeaseState.ACTIVE, (LeaseEffect.EXTEND,)),
    LeaseEvent.DETACH: (LeaseState.DETACHED, (LeaseEffect.SEND_REVOKED,)),
    LeaseEvent.TIMEOUT: (LeaseState.EXPIRED, (LeaseEffect.SEND_REVOKED,)),
    LeaseEvent.REVOKE: (LeaseState.REVOKED, (LeaseEffect.SEND_REVOKED,)),
}

REVOKE_REASONS: Final = {
    LeaseState.DETACHED: LeaseRevokeReason.DETACHED,
    LeaseState.EXPIRED: LeaseRevokeReason.EXPIRED,
    LeaseState.REVOKED: LeaseRevokeReason.REVOKED,
}


def next_lease_state(state: LeaseState, event: LeaseEvent, role: Role) -> tuple[LeaseState, tuple[LeaseEffect, ...]]:
    """One row of the lease table."""
    if not state.is_live:
        return state, ()
    following, effects = _LEASE_TABLE[event]
    if not following.is_live and role is Role.PRODUCER:
        effects = (*effects, LeaseEffect.RAISE_EPOCH)
    return following, effects


class StreamState(Enum):
    DEFINED = "defined"
    PREPARING_UNOWNED = "preparing unowned"
    UNOWNED = "unowned"
    PREPARING_OWNED = "preparing owned"
    OWNED = "owned"

    @property
    def is_preparing(self) -> bool:
        return self in (StreamState.PREPARING_UNOWNED, StreamState.PREPARING_OWNED)


class StreamEvent(Enum):
    CONSUMER_ATTACH = "consumer attach"
    PRODUCER_ATTACH = "producer attach"
    LAYOUT_CHANGE = "layout change"
    PRODUCER_GONE = "producer gone"
    MADE = "made"
    FAILED_WITHOUT_EPOCH = "failed, and there is no epoch"
    FAILED_BESIDE_EPOCH = "failed, and the epoch before is still there"


class StreamEffect(Enum):
    MAKE_SPARSE = "make sparse"
    MAKE_RESERVED = "make reserved"
    RETIRE_PREVIOUS = "retire previous"
    ANNOUNCE = "announce"
    GRANT = "grant"
    REFUSE = "refuse"


_SPARSE: Final = (StreamState.PREPARING_UNOWNED, (StreamEffect.MAKE_SPARSE,))
_RESERVED: Final = (StreamState.PREPARING_OWNED, (StreamEffect.MAKE_RESERVED,))
_STREAM_TABLE: Final = {
    (StreamState.DEFINED, StreamEvent.CONSUMER_ATTACH): _SPARSE,
    (StreamState.DEFINED, StreamEvent.PRODUCER_ATTACH): _RESERVED,
    (StreamState.UNOWNED, StreamEvent.PRODUCER_ATTACH): _RESERVED,
    (StreamState.UNOWNED, StreamEvent.LAYOUT_CHANGE): _SPARSE,
    (StreamState.OWNED, StreamEvent.PRODUCER_GONE): _SPARSE,
    (StreamState.PREPARING_OWNED, StreamEvent.MADE): (
        StreamState.OWNED,
        (StreamEffect.RETIRE_PREVIOUS, StreamEffect.GRANT, StreamEffect.ANNOUNCE),
    ),
    (StreamState.PREPARING_UNOWNED, StreamEvent.MADE): (StreamState.UNOWNED, (StreamEffect.RETIRE_PREVIOUS, StreamEffect.ANNOUNCE)),
    (StreamState.PREPARING_OWNED, StreamEvent.FAILED_WITHOUT_EPOCH): (StreamState.DEFINED, (StreamEffect.REFUSE,)),
    (StreamState.PREPARING_OWNED, StreamEvent.FAILED_BESIDE_EPOCH): (StreamState.UNOWNED, (StreamEffect.REFUSE,)),
    (StreamState.PREPARING_UNOWNED, StreamEvent.FAILED_WITHOUT_EPOCH): (StreamState.DEFINED, (StreamEffect.REFUSE,)),
    (StreamState.PREPARING_UNOWNED, StreamEvent.FAILED_BESIDE_EPOCH): (
        StreamState.DEFINED,
        (StreamEffect.RETIRE_PREVIOUS, StreamEffect.REFUSE),
    ),
}


def next_stream_state(state: StreamState, event: StreamEvent) -> tuple[StreamState, tuple[StreamEffect, ...]]:
    """One row of the stream table."""
    return _STREAM_TABLE[state, event]
