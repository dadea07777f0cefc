"""Who may do what, until when: the leases of this driver's life."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tensor_pool.driver.state import LeaseEffect, LeaseEvent, LeaseState, next_lease_state
from tensor_pool.sbe.driver import Role

NULL_LEASE_ID = (1 << 64) - 1
_HALF_MASK = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Lease:
    """One client's right to one stream in one role (driver 4.1)."""

    lease_id: int
    stream_id: int
    client_id: int
    role: Role
    correlation_id: int
    state: LeaseState = LeaseState.ATTACHED


class LeaseIds:
    """Ids that nobody can guess and that never come twice.

    A counter goes through a keyed permutation of the 64-bit numbers (a Feistel network), so nothing has to be remembered to keep ids apart.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def next(self) -> int:
        while True:
            lease_id = self._permute(self._count)
            self._count += 1
            if lease_id not in (0, NULL_LEASE_ID):
                return lease_id

    def _permute(self, number: int) -> int:
        left, right = number >> 32, number & _HALF_MASK
        for round_number in range(4):
            block = right.to_bytes(4, "little") + bytes((round_number,))
            digest = hashlib.blake2b(block, key=self._key, digest_size=4).digest()
            left, right = right, left ^ int.from_bytes(digest, "little")
        return left << 32 | right


class LeaseTable:
    """The live leases, oldest renewal first.

    Expiries are kept in *served time*: the monotonic clock without the driver's own stalls, which `credit_stall` takes out (decision E59).
    Every grant and renewal lasts equally long, so the order of renewal is the order of expiry and nothing needs to be searched.
    """

    def __init__(self, ids: LeaseIds, *, duration_ns: int) -> None:
        self._ids = ids
        self._duration_ns = duration_ns
        self._stalled_ns = 0
        self._leases: OrderedDict[int, tuple[Lease, int]] = OrderedDict()
        self._by_client: dict[int, int] = {}
        self._by_stream: dict[int, dict[int, Role]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter([lease for lease, _ in self._leases.values()])

    def grant(self, stream_id: int, client_id: int, role: Role, correlation_id: int, now_ns: int) -> Lease:
        """A new lease. The caller has made sure that the client has none and that a producer is alone."""
        assert client_id not in self._by_client
        assert role is not Role.PRODUCER or self.producer_of(stream_id) is None
        lease = Lease(self._ids.next(), stream_id, client_id, role, correlation_id)
        self._leases[lease.lease_id] = (lease, self._expiry_from(now_ns))
        self._by_client[client_id] = lease.lease_id
        self._by_stream.setdefault(stream_id, {})[lease.lease_id] = role
        return lease

    def renew(self, lease_id: int, stream_id: int, client_id: int, role: Role, now_ns: int) -> bool:
        """Extend the lease that matches in all four (decision E60). False where there is none."""
        lease = self.matching(lease_id, stream_id, client_id, role)
        if lease is None:
            return False
        state, _ = next_lease_state(lease.state, LeaseEvent.KEEPALIVE, lease.role)
        if state is not lease.state:
            lease = replace(lease, state=state)
        self._leases[lease_id] = (lease, self._expiry_from(now_ns))
        self._leases.move_to_end(lease_id)
        return True

    def end(self, lease_id: int, event: LeaseEvent) -> tuple[Lease, tuple[LeaseEffect, ...]]:
        """Take a live lease out. Returns it in its final state, with what is to be done about it."""
        lease, _ = self._leases[lease_id]
        state, effects = next_lease_state(lease.state, event, lease.role)
        del self._leases[lease_id]
        del self._by_client[lease.client_id]
        leases_of_stream = self._by_stream[lease.stream_id]
        del leases_of_stream[lease_id]
        if not leases_of_stream:
            del self._by_stream[lease.stream_id]
        return replace(lease, state=state), effects

    def overdue(self, drained_ns: int) -> list[int]:
        """Ids of leases that ended before `drained_ns`, the moment up to which every message is known to have been handled."""
        overdue = []
        served_ns = drained_ns - self._stalled_ns
        for lease_id, (_, expiry_ns) in self._leases.items():
            if expiry_ns >= served_ns:
                break
            overdue.append(lease_id)
        return overdue

    def credit_stall(self, stall_ns: int) -> None:
        """The driver itself was away for so long: no lease runs out over that."""
        self._stalled_ns += stall_ns

    def get(self, lease_id: int) -> Lease | None:
        found = self._leases.get(lease_id)
        return found[0] if found else None

    def matching(self, lease_id: int, stream_id: int, client_id: int, role: Role) -> Lease | None:
        lease = self.get(lease_id)
        if lease is None or (lease.stream_id, lease.client_id, lease.role) != (stream_id, client_id, role):
            return None
        return lease

    def of_client(self, client_id: int) -> Lease | None:
        lease_id = self._by_client.get(client_id)
        return None if lease_id is None else self.get(lease_id)

    def producer_of(self, stream_id: int) -> Lease | None:
        for lease_id, role in self._by_stream.get(stream_id, {}).items():
            if role is Role.PRODUCER:
                return self.get(lease_id)
        return None

    def consumers_of(self, stream_id: int) -> int:
        return sum(1 for role in self._by_stream.get(stream_id, {}).values() if role is Role.CONSUMER)

    def expiry_ns(self, lease_id: int) -> int:
        """When the lease ends unless it is renewed, in CLOCK_MONOTONIC."""
        return self._leases[lease_id][1] + self._stalled_ns

    def _expiry_from(self, now_ns: int) -> int:
        return now_ns - self._stalled_ns + self._duration_ns
