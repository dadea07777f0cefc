"""The client's side of a lease, row by row of its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensor_pool.client.lease_state import (
    ATTEMPT_TIMEOUT_NS,
    RESEND_NS,
    Answered,
    Close,
    DriverSeen,
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
from tensor_pool.sbe.driver import ResponseCode, ShmAttachResponse

FIRST, SECOND = LeaseIds(1, 11), LeaseIds(2, 22)
NOW = 1_000_000_000_000


def answer(ids: LeaseIds, code: ResponseCode = ResponseCode.OK, words: str = "") -> ShmAttachResponse:
    return ShmAttachResponse(
        correlation_id=ids.correlation_id,
        code=code,
        lease_id=77,
        lease_expiry_timestamp_ns=NOW + 3,
        stream_id=5,
        epoch=9,
        layout_version=1,
        header_nslots=8,
        header_slot_bytes=256,
        max_dims=8,
        payload_pools=(),
        header_region_uri="shm:file?path=/x",
        error_message=words,
    )


def attaching() -> LeaseState:
    state, _ = next_lease(LeaseState(), Tick(NOW, FIRST))
    return state


def attached() -> LeaseState:
    state, _ = next_lease(attaching(), Answered(NOW, answer(FIRST), SECOND))
    return state


def test_the_first_tick_asks_for_a_lease() -> None:
    state, effects = next_lease(LeaseState(), Tick(NOW, FIRST))
    assert state.phase is LeasePhase.ATTACHING
    assert effects == (SendAttach(FIRST),)


def test_an_unanswered_request_is_repeated_with_the_same_ids() -> None:
    state, effects = next_lease(attaching(), Tick(NOW + RESEND_NS, SECOND))
    assert effects == (SendAttach(FIRST),)
    assert next_lease(state, Tick(NOW + RESEND_NS + 1, SECOND)) == (state, ())


def test_silence_is_a_refusal_and_the_next_attempt_has_fresh_ids() -> None:
    state, effects = next_lease(attaching(), Tick(NOW + ATTEMPT_TIMEOUT_NS, SECOND))
    assert effects == (NotifyRefused(None, "no driver answered", FIRST.correlation_id),)
    later = state.retry_at_ns
    assert next_lease(state, Tick(later - 1, SECOND))[1] == ()
    assert next_lease(state, Tick(later, SECOND))[1] == (SendAttach(SECOND),)


def test_an_answer_to_another_request_changes_nothing() -> None:
    assert next_lease(attaching(), Answered(NOW, answer(SECOND), SECOND)) == (attaching(), ())


def test_success_attaches() -> None:
    state, effects = next_lease(attaching(), Answered(NOW, answer(FIRST), SECOND))
    assert state.phase is LeasePhase.ATTACHED
    assert effects == (NotifyAttached(answer(FIRST), FIRST),)


def test_the_first_rejection_is_tried_again_with_another_client_id_and_the_second_is_final() -> None:
    rejected = answer(FIRST, ResponseCode.REJECTED, "client id in use")
    state, effects = next_lease(attaching(), Answered(NOW, rejected, SECOND))
    assert effects == (SendAttach(SECOND),)
    state, effects = next_lease(state, Answered(NOW, replace(rejected, correlation_id=SECOND.correlation_id), FIRST))
    assert state.phase is LeasePhase.WAITING
    assert effects == (NotifyRefused(ResponseCode.REJECTED, "client id in use", SECOND.correlation_id),)


@pytest.mark.parametrize("code", [ResponseCode.UNSUPPORTED, ResponseCode.INVALID_PARAMS, ResponseCode.INTERNAL_ERROR])
@pytest.mark.requirement("W-15.17-2")
def test_other_refusals_are_reported_at_once_and_retried_only_after_a_pause(code: ResponseCode) -> None:
    state, effects = next_lease(attaching(), Answered(NOW, answer(FIRST, code, "why"), SECOND))
    assert effects == (NotifyRefused(code, "why", FIRST.correlation_id),)
    assert next_lease(state, Tick(NOW, SECOND))[1] == ()
    assert next_lease(state, Tick(state.retry_at_ns, SECOND))[1] == (SendAttach(SECOND),)


def test_pauses_between_attempts_grow_and_are_bounded() -> None:
    state, pauses, now = LeaseState(), [], NOW
    for _ in range(12):
        state, _ = next_lease(state, Tick(max(now, state.retry_at_ns), FIRST))
        now = state.attempt_deadline_ns
        state, _ = next_lease(state, Tick(now, FIRST))
        pauses.append(state.retry_at_ns - now)
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] <= 1_000_000_000


def test_a_lost_lease_is_asked_for_again_by_itself() -> None:
    state, effects = next_lease(attached(), Lost(NOW, "revoked"))
    assert effects == (NotifyLost("revoked"),)
    assert next_lease(state, Tick(state.retry_at_ns, SECOND))[1] == (SendAttach(SECOND),)


def test_an_announce_ends_the_pause() -> None:
    state, _ = next_lease(attached(), Lost(NOW, "expired"))
    assert next_lease(state, DriverSeen(NOW, SECOND))[1] == (SendAttach(SECOND),)


def test_losing_what_is_not_held_is_nothing() -> None:
    assert next_lease(attaching(), Lost(NOW, "revoked")) == (attaching(), ())


def test_closing_gives_the_lease_back_once_and_ends_everything() -> None:
    state, effects = next_lease(attached(), Close())
    assert effects == (SendDetach(FIRST, 77),)
    for event in (Close(), Tick(NOW * 2, SECOND), Lost(NOW, "x"), DriverSeen(NOW, SECOND), Answered(NOW, answer(FIRST), SECOND)):
        assert next_lease(state, event) == (state, ())


def test_closing_while_asking_has_nothing_to_give_back() -> None:
    assert next_lease(attaching(), Close())[1] == ()
