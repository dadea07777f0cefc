"""Which epoch is mapped, row by row of the table in `consumer/state.py`."""

from __future__ import annotations

import pytest

from tensor_pool.consumer.state import (
    Announced,
    Attached,
    CheckSuperblock,
    ConsumerPhase,
    CountLowerEpoch,
    MappingEvent,
    MappingState,
    MapRegions,
    Signal,
    UnmapRegions,
    next_mapping,
)
from tensor_pool.shm.layout import PoolLayout, PoolSpec


def layout(epoch: int, nslots: int = 8) -> PoolLayout:
    pools = (PoolSpec(1, nslots, 4096, f"shm:file?path=/p/{epoch}"),)
    return PoolLayout(5, epoch, 1, nslots, 256, f"shm:file?path=/h/{epoch}", pools)


def after(*events: MappingEvent) -> MappingState:
    state = MappingState()
    for event in events:
        state, _ = next_mapping(state, event)
    return state


MAPPED = after(Attached(layout(10)))


def test_nothing_is_mapped_without_a_lease() -> None:
    state, effects = next_mapping(MappingState(), Announced(layout(10)))
    assert state.phase is ConsumerPhase.UNMAPPED
    assert effects == ()


def test_an_attach_response_is_mapped_and_joins_the_running_epoch() -> None:
    state, effects = next_mapping(MappingState(), Attached(layout(10)))
    assert state.phase is ConsumerPhase.MAPPED
    assert effects == (MapRegions(layout(10), joined=True),)


def test_what_was_announced_since_the_request_beats_an_older_response() -> None:
    _, effects = next_mapping(after(Announced(layout(12)), Announced(layout(11))), Attached(layout(10)))
    assert effects == (MapRegions(layout(12), joined=True),)


def test_a_response_beats_older_announces() -> None:
    _, effects = next_mapping(after(Announced(layout(9))), Attached(layout(10)))
    assert effects == (MapRegions(layout(10), joined=True),)


@pytest.mark.requirement("W-15.1-3")
def test_each_further_announce_checks_the_superblock_again() -> None:
    assert next_mapping(MAPPED, Announced(layout(10))) == (MAPPED, (CheckSuperblock(),))


def test_a_higher_epoch_is_mapped_from_its_first_frame() -> None:
    _, effects = next_mapping(MAPPED, Announced(layout(11)))
    assert effects == (UnmapRegions("epoch 11 began"), MapRegions(layout(11), joined=False))


@pytest.mark.requirement("W-10.1.1-7")
def test_a_lower_epoch_is_ignored_and_counted() -> None:
    assert next_mapping(MAPPED, Announced(layout(9))) == (MAPPED, (CountLowerEpoch(),))


@pytest.mark.requirement("W-7.1-9")
def test_an_epoch_that_wrapped_is_not_taken_for_a_newer_one() -> None:
    last, _ = next_mapping(MAPPED, Announced(layout(2**64 - 1)))
    assert next_mapping(last, Announced(layout(0))) == (last, (CountLowerEpoch(),))


def test_another_layout_of_the_same_epoch_is_mapped_anew() -> None:
    _, effects = next_mapping(MAPPED, Announced(layout(10, nslots=16)))
    assert effects == (UnmapRegions("the layout changed within an epoch"), MapRegions(layout(10, nslots=16), joined=True))


def test_a_seq_that_went_back_is_mapped_again() -> None:
    _, effects = next_mapping(MAPPED, Signal.SLOTS_REGRESSED)
    assert effects == (UnmapRegions("slots regressed"), MapRegions(layout(10), joined=True))


@pytest.mark.requirement("D-4.9-8")
@pytest.mark.parametrize("signal", [Signal.PRODUCER_REVOKED, Signal.SUPERBLOCK_CHANGED])
def test_after_a_revoked_producer_or_a_changed_superblock_only_a_higher_epoch_is_mapped(signal: Signal) -> None:
    state, effects = next_mapping(MAPPED, signal)
    assert effects == (UnmapRegions(signal.value),)
    state, effects = next_mapping(state, Announced(layout(10)))
    assert effects == (CountLowerEpoch(),)
    assert next_mapping(state, Announced(layout(11)))[1] == (MapRegions(layout(11), joined=False),)


def test_a_failed_mapping_is_tried_again_at_the_next_announce() -> None:
    state, effects = next_mapping(MAPPED, Signal.MAP_FAILED)
    assert effects == (UnmapRegions("map failed"),)
    assert next_mapping(state, Announced(layout(10)))[1] == (MapRegions(layout(10), joined=True),)


def test_a_higher_epoch_that_cannot_be_mapped_does_not_lock_out_the_running_one() -> None:
    """Which is joined anew: counting it from its first frame would book every frame of its past as lost."""
    state, _ = next_mapping(MAPPED, Announced(layout(99)))
    state, _ = next_mapping(state, Signal.MAP_FAILED)
    assert next_mapping(state, Announced(layout(10)))[1] == (MapRegions(layout(10), joined=True),)


def test_a_lost_lease_forgets_everything() -> None:
    state, effects = next_mapping(MAPPED, Signal.LEASE_LOST)
    assert effects == (UnmapRegions("lease lost"),)
    assert state == MappingState()
    assert next_mapping(state, Announced(layout(11)))[1] == ()
    assert next_mapping(state, Attached(layout(3)))[1] == (MapRegions(layout(3), joined=True),)


@pytest.mark.parametrize("signal", [s for s in Signal if s is not Signal.LEASE_LOST])
def test_signals_mean_nothing_while_nothing_is_mapped(signal: Signal) -> None:
    assert next_mapping(MappingState(attached=True), signal) == (MappingState(attached=True), ())
