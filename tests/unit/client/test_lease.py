"""A lease over a control link: what it sends, what it believes, and when it gives up."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest

from tensor_pool.client.lease import Lease, LeaseCallbacks, LeaseTerms
from tensor_pool.client.lease_state import LONGEST_RETRY_NS, LeasePhase, NotifyRefused
from tensor_pool.sbe.driver import PublishMode, ResponseCode, Role, ShmAttachRequest
from tensor_pool.shm.layout import PoolLayout
from tests.unit.client.fakes import NOW, SECOND, FakeLink, refusal, success


class Holder:
    """A lease, its link, and what the holder was told."""

    def __init__(self, seed: int = 1) -> None:
        self.link = FakeLink()
        self.attached: list[tuple[PoolLayout, int, int]] = []
        self.refused: list[NotifyRefused] = []
        self.lost: list[str] = []
        callbacks = LeaseCallbacks(lambda *told: self.attached.append(told), self.refused.append, self.lost.append)
        self.lease = Lease(LeaseTerms(10000, Role.CONSUMER, SECOND), self.link, Random(seed), callbacks)

    def ask(self, now_ns: int = NOW) -> ShmAttachRequest:
        self.lease.on_tick(now_ns)
        return self.link.attach_requests[-1]

    def attach(self, now_ns: int = NOW, **changes: Any) -> None:
        request = self.ask(now_ns)
        assert self.lease.on_attach_response(now_ns, success(request, expiry_ns=now_ns + 3 * SECOND, **changes))


def test_the_request_says_what_is_wanted_and_never_leaves_the_mode_to_the_driver() -> None:
    request = Holder().ask()
    assert (request.stream_id, request.role) == (10000, Role.CONSUMER)
    assert (request.expected_layout_version, request.max_dims) == (1, 8)
    assert request.publish_mode is PublishMode.REQUIRE_EXISTING
    assert request.client_id != 0


@pytest.mark.requirement("D-4.8-4")
def test_two_clients_have_different_ids_and_correlations() -> None:
    requests = [Holder(seed).ask() for seed in range(100)]
    assert len({request.client_id for request in requests}) == 100
    assert len({request.correlation_id for request in requests}) == 100


def test_a_success_brings_the_layout_and_starts_the_keepalives_of_that_lease() -> None:
    holder = Holder()
    holder.attach(lease_id=123)
    ((layout, client_id, lease_id),) = holder.attached
    assert (layout.stream_id, layout.epoch, layout.nslots) == (10000, 9, 8)
    (keepalive,) = holder.link.keepalives
    assert (keepalive.message.lease_id, keepalive.message.client_id, keepalive.message.stream_id) == (123, client_id, 10000)
    assert (keepalive.message.role, keepalive.interval_ns, lease_id) == (Role.CONSUMER, SECOND, 123)


@pytest.mark.requirement("D-4.2-12")
@pytest.mark.parametrize("field", ["lease_id", "stream_id", "epoch", "layout_version", "header_nslots", "header_slot_bytes", "max_dims"])
def test_a_success_without_a_required_field_is_dropped_and_asked_for_anew(field: str) -> None:
    holder = Holder()
    first = holder.ask()
    absent: dict[str, Any] = {field: None}
    holder.lease.on_attach_response(NOW, dataclasses.replace(success(first), **absent))
    assert holder.attached == []
    assert holder.link.keepalives == []
    assert field in holder.refused[0].words
    second = holder.ask(NOW + LONGEST_RETRY_NS)
    assert (second.correlation_id, second.client_id) != (first.correlation_id, first.client_id)


@pytest.mark.parametrize(
    "changes",
    [
        {"stream_id": 10001},
        {"layout_version": 2},
        {"header_slot_bytes": 128},
        {"header_nslots": 6},
        {"payload_pools": ()},
        {"header_region_uri": ""},
    ],
    ids=str,
)
def test_a_success_that_describes_no_valid_regions_of_the_stream_is_dropped(changes: dict[str, Any]) -> None:
    holder = Holder()
    holder.lease.on_attach_response(NOW, dataclasses.replace(success(holder.ask()), **changes))
    assert holder.attached == []
    assert len(holder.refused) == 1


def test_answers_to_others_are_not_for_this_lease() -> None:
    holder = Holder()
    request = holder.ask()
    other = dataclasses.replace(request, correlation_id=request.correlation_id ^ 1)
    assert not holder.lease.on_attach_response(NOW, success(other))
    assert holder.lease.on_attach_response(NOW, success(request))
    assert not holder.lease.on_attach_response(NOW, success(request))
    assert len(holder.attached) == 1


def test_a_refusal_carries_the_words_of_the_driver() -> None:
    holder = Holder()
    holder.lease.on_attach_response(NOW, refusal(holder.ask(), ResponseCode.INVALID_PARAMS, "max_dims is 9"))
    assert [(told.code, told.words) for told in holder.refused] == [(ResponseCode.INVALID_PARAMS, "max_dims is 9")]


def test_keepalives_that_cannot_be_sent_are_retried_until_one_interval_is_left_and_then_fatal() -> None:
    holder = Holder()
    holder.attach()
    holder.lease.on_tick(NOW + 2 * SECOND)
    assert holder.lost == []
    holder.lease.on_tick(NOW + 2 * SECOND + 1)
    assert holder.lost == ["expired"]
    assert holder.link.keepalives[0].is_closed
    assert holder.ask(NOW + 2 * SECOND + 1 + LONGEST_RETRY_NS) is not holder.link.attach_requests[0]
    assert len(holder.link.attach_requests) == 2


def test_each_keepalive_that_was_sent_renews_the_lease_by_the_time_the_response_gave() -> None:
    holder = Holder()
    holder.attach()
    for second in range(1, 60):
        holder.link.keepalives[0].last_sent_ns = NOW + second * SECOND
        holder.lease.on_tick(NOW + (second + 2) * SECOND)
    assert holder.lost == []
    holder.lease.on_tick(NOW + 62 * SECOND)
    assert holder.lost == ["expired"]


def test_a_lease_without_an_expiry_does_not_run_out() -> None:
    holder = Holder()
    holder.lease.on_attach_response(NOW, success(holder.ask(), expiry_ns=None))
    holder.lease.on_tick(NOW + 10**9 * SECOND)
    assert holder.lease.phase is LeasePhase.ATTACHED


@pytest.mark.requirement("D-4.7-3")
@pytest.mark.requirement("D-4.8-3")
def test_after_a_lost_lease_another_is_asked_for_and_the_old_id_is_never_kept_alive_again() -> None:
    holder = Holder()
    holder.attach(lease_id=1)
    holder.lease.on_lost(NOW, "revoked")
    assert holder.lease.lease_id is None
    holder.attach(NOW + LONGEST_RETRY_NS, lease_id=2)
    assert [keepalive.message.lease_id for keepalive in holder.link.keepalives] == [1, 2]
    assert [keepalive.is_closed for keepalive in holder.link.keepalives] == [True, False]
    assert holder.link.attach_requests[0].client_id != holder.link.attach_requests[1].client_id


def test_closing_detaches_the_lease_that_is_held_and_stops_its_keepalives() -> None:
    holder = Holder()
    holder.attach(lease_id=5)
    holder.lease.close()
    holder.lease.close()
    (detach,) = holder.link.detach_requests
    assert (detach.lease_id, detach.stream_id, detach.role) == (5, 10000, Role.CONSUMER)
    assert detach.client_id == holder.link.attach_requests[0].client_id
    assert holder.link.keepalives[0].is_closed
    holder.lease.on_tick(NOW + 100 * SECOND)
    assert len(holder.link.attach_requests) == 1
