"""A whole driver beside a model: any order of attach, detach, keepalive, revoke, time, slow files and full storage."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tensor_pool.driver.config import DriverSettings, PolicySection, PoolSection, ProfileSection, StreamSection
from tensor_pool.errors import AttachRejectedError
from tensor_pool.sbe.control import ShmPoolAnnounce
from tensor_pool.sbe.driver import (
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)
from tensor_pool.testing.driver import InvokedDriver, PlainFileRegionFactory

PROFILE = ProfileSection(header_nslots=2, payload_pools=(PoolSection(pool_id=1, stride_bytes=64),))
SETTINGS = DriverSettings(
    policies=PolicySection(lease_keepalive_interval_ms=100, announce_period_ms=100),
    profiles={"tiny": PROFILE},
    streams={"a": StreamSection(stream_id=1, profile="tiny"), "b": StreamSection(stream_id=2, profile="tiny")},
)
STREAMS = st.sampled_from([1, 2])


class DriverMachine(RuleBasedStateMachine):
    """Nothing but what is said on the wire goes into the model."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="tensor-pool-machine-"))
        (self.directory / "shm").mkdir()
        self.factory = PlainFileRegionFactory()
        self.driver = InvokedDriver(self.directory / "shm", self.directory / "state", SETTINGS, region_factory=self.factory)
        self.next_number = 1
        self.asked: dict[int, ShmAttachRequest] = {}
        self.live: dict[int, tuple[ShmAttachRequest, ShmAttachResponse]] = {}
        self.ended: set[int] = set()
        self.highest: dict[int, int] = {1: 0, 2: 0}
        self.owned_epochs: set[tuple[int, int]] = set()

    def teardown(self) -> None:
        self.driver.close()
        assert [path for path in self.driver.root.rglob("*") if path.is_file()] == []
        shutil.rmtree(self.directory)

    # --- what happens --------------------------------------------------------------------------------------------------

    @rule(stream_id=STREAMS, role=st.sampled_from(Role))
    def attach(self, stream_id: int, role: Role) -> None:
        number, self.next_number = self.next_number, self.next_number + 1
        request = ShmAttachRequest(number, stream_id, number, role, 1, 8, None, None)
        self.asked[number] = request
        self.driver.link.deliver(request.encode())

    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        if self.live:
            lease_id = data.draw(st.sampled_from(sorted(self.live)))
            request, _ = self.live[lease_id]
            self.driver.link.deliver(ShmDetachRequest(0, lease_id, request.stream_id, request.client_id, request.role).encode())

    @rule(data=st.data())
    def keep_alive(self, data: st.DataObject) -> None:
        if self.live or self.ended:
            lease_id = data.draw(st.sampled_from(sorted(set(self.live) | self.ended)))
            request = self.live[lease_id][0] if lease_id in self.live else ShmAttachRequest(0, 1, 1, Role.PRODUCER, 1, 8, None, None)
            self.driver.link.deliver(ShmLeaseKeepalive(lease_id, request.stream_id, request.client_id, request.role, 0).encode())

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        if self.live:
            lease_id = data.draw(st.sampled_from(sorted(self.live)))
            try:
                self.driver.ask("revoke", lease_id=lease_id)
            except AttachRejectedError:
                self.hear()
                assert lease_id not in self.live
            self.hear()

    @rule(milliseconds=st.integers(1, 400))
    def time_goes_by(self, milliseconds: int) -> None:
        for _ in range(milliseconds // 10):
            self.driver.clock.advance(10_000_000)
            self.driver.agent.do_work()
        self.hear()

    @rule()
    def agent_works(self) -> None:
        self.driver.agent.do_work()
        self.hear()

    @rule()
    def one_slow_job_is_done(self) -> None:
        self.driver.executor.run(1)

    @rule(is_full=st.booleans())
    def storage_is_full(self, is_full: bool) -> None:
        self.factory.budget_bytes = 0 if is_full else 1 << 30

    @rule()
    def everything_settles(self) -> None:
        self.factory.budget_bytes = 1 << 30
        self.driver.run()
        self.hear()
        assert self.asked == {}
        leases = self.driver.ask("leases")["leases"]
        self.hear()
        assert {lease["lease_id"] for lease in leases} == set(self.live)

    # --- what must be true -----------------------------------------------------------------------------------------------

    def hear(self) -> None:
        for message in self.driver.said():
            self.take(message)

    def take(self, message: Any) -> None:
        match message:
            case ShmAttachResponse():
                request = self.asked.pop(message.correlation_id)  # exactly one answer
                if message.code is ResponseCode.OK:
                    self.take_grant(request, message)
            case ShmLeaseRevoked():
                request, _response = self.live.pop(message.lease_id)
                assert (message.stream_id, message.client_id, message.role) == (request.stream_id, request.client_id, request.role)
                self.ended.add(message.lease_id)
            case ShmPoolAnnounce():
                assert message.epoch >= self.highest[message.stream_id]
                self.highest[message.stream_id] = message.epoch
                producers = {request.client_id for request, _ in self.live.values() if self.is_producer(request, message.stream_id)}
                assert {message.producer_id} == (producers or {0})
            case _:
                assert isinstance(message, ShmDetachResponse)

    def take_grant(self, request: ShmAttachRequest, response: ShmAttachResponse) -> None:
        assert response.lease_id is not None
        assert response.epoch is not None
        assert response.lease_id not in self.live
        assert response.lease_id not in self.ended
        if request.role is Role.PRODUCER:
            assert not any(self.is_producer(other, request.stream_id) for other, _ in self.live.values())
            assert (request.stream_id, response.epoch) not in self.owned_epochs
            assert response.epoch > self.highest[request.stream_id]
            self.owned_epochs.add((request.stream_id, response.epoch))
        assert response.epoch >= self.highest[request.stream_id]
        self.highest[request.stream_id] = response.epoch
        self.live[response.lease_id] = (request, response)

    @staticmethod
    def is_producer(request: ShmAttachRequest, stream_id: int) -> bool:
        return request.role is Role.PRODUCER and request.stream_id == stream_id


TestDriver = DriverMachine.TestCase
TestDriver.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
