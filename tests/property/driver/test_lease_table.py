"""The lease table beside a model that searches where the table remembers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from tensor_pool.driver.leases import NULL_LEASE_ID, Lease, LeaseIds, LeaseTable
from tensor_pool.driver.state import LeaseEffect, LeaseEvent, LeaseState, next_lease_state
from tensor_pool.sbe.driver import Role

DURATION_NS = 3_000
STREAMS = st.integers(1, 3)
CLIENTS = st.integers(1, 6)


@dataclass
class ModelLease:
    lease: Lease
    expiry_ns: int


class LeaseTableMachine(RuleBasedStateMachine):
    """Grants, renewals, ends, stalls and time, in any order."""

    granted = Bundle("granted")

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(LeaseIds(b"k" * 32), duration_ns=DURATION_NS)
        self.model: dict[int, ModelLease] = {}
        self.ever: set[int] = set()
        self.now_ns = 1_000_000

    @rule(target=granted, stream_id=STREAMS, client_id=CLIENTS, role=st.sampled_from(Role))
    def grant(self, stream_id: int, client_id: int, role: Role) -> int:
        producers = {one.lease.stream_id for one in self.model.values() if one.lease.role is Role.PRODUCER}
        if client_id in {one.lease.client_id for one in self.model.values()} or (role is Role.PRODUCER and stream_id in producers):
            return 0
        lease = self.table.grant(stream_id, client_id, role, 1, self.now_ns)
        assert lease.lease_id not in self.ever
        assert lease.lease_id not in (0, NULL_LEASE_ID)
        self.ever.add(lease.lease_id)
        self.model[lease.lease_id] = ModelLease(lease, self.now_ns + DURATION_NS)
        return lease.lease_id

    @rule(lease_id=granted, wrong=st.sampled_from(["", "stream", "client", "role"]))
    def renew(self, lease_id: int, wrong: str) -> None:
        one = self.model.get(lease_id)
        known = one.lease if one else Lease(lease_id, 1, 1, Role.CONSUMER, 1)
        role = known.role if wrong != "role" else (Role.CONSUMER if known.role is Role.PRODUCER else Role.PRODUCER)
        renewed = self.table.renew(
            lease_id, known.stream_id + (wrong == "stream"), known.client_id + (wrong == "client"), role, self.now_ns
        )
        assert renewed == (one is not None and not wrong)
        if one is not None and renewed:
            one.expiry_ns = self.now_ns + DURATION_NS
            found = self.table.get(lease_id)
            assert found is not None
            assert found.state is LeaseState.ACTIVE

    @rule(lease_id=consumes(granted), event=st.sampled_from([LeaseEvent.DETACH, LeaseEvent.REVOKE, LeaseEvent.TIMEOUT]))
    def end(self, lease_id: int, event: LeaseEvent) -> None:
        one = self.model.pop(lease_id, None)
        if one is None:
            return
        lease, effects = self.table.end(lease_id, event)
        assert not lease.state.is_live
        assert (LeaseEffect.RAISE_EPOCH in effects) == (lease.role is Role.PRODUCER)
        assert LeaseEffect.SEND_REVOKED in effects

    @rule(elapsed_ns=st.integers(0, 2 * DURATION_NS))
    def time_goes_by(self, elapsed_ns: int) -> None:
        self.now_ns += elapsed_ns

    @rule(stall_ns=st.integers(1, 10 * DURATION_NS))
    def driver_stalls(self, stall_ns: int) -> None:
        self.now_ns += stall_ns
        self.table.credit_stall(stall_ns)
        for one in self.model.values():
            one.expiry_ns += stall_ns

    @precondition(lambda self: self.model)
    @rule(behind_ns=st.integers(0, DURATION_NS))
    def expire(self, behind_ns: int) -> None:
        drained_ns = self.now_ns - behind_ns
        overdue = self.table.overdue(drained_ns)
        assert set(overdue) == {lease_id for lease_id, one in self.model.items() if one.expiry_ns < drained_ns}
        for lease_id in overdue:
            self.table.end(lease_id, LeaseEvent.TIMEOUT)
            del self.model[lease_id]

    @invariant()
    def they_agree(self) -> None:
        assert len(self.table) == len(self.model)
        assert {lease.lease_id for lease in self.table} == set(self.model)
        for lease_id, one in self.model.items():
            assert self.table.expiry_ns(lease_id) == one.expiry_ns
            found = self.table.of_client(one.lease.client_id)
            assert found is not None
            assert found.lease_id == lease_id
        for stream_id in (1, 2, 3):
            of_stream = [one.lease for one in self.model.values() if one.lease.stream_id == stream_id]
            producers = [lease for lease in of_stream if lease.role is Role.PRODUCER]
            assert len(producers) <= 1
            found = self.table.producer_of(stream_id)
            assert (found.lease_id if found else None) == (producers[0].lease_id if producers else None)
            assert self.table.consumers_of(stream_id) == len(of_stream) - len(producers)


TestLeaseTable = LeaseTableMachine.TestCase
TestLeaseTable.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_an_ended_lease_never_changes_again() -> None:
    for state in LeaseState:
        for event in LeaseEvent:
            for role in Role:
                following, effects = next_lease_state(state, event, role)
                if not state.is_live:
                    assert (following, effects) == (state, ())
                else:
                    assert following.is_live == (event is LeaseEvent.KEEPALIVE)
