"""Which epoch is mapped, row by row of the table in `consumer/state.py`."""

from __future__ import annotations

import pytest

from tensor_pool.consumer.state import (
    Announced,
    Attached,
    CheckSuperblock,
    ConsumerPhase,
    CountFrom,
    CountLowerEpoch,
    Mapped,
    MappingEvent,
    MappingState,
    MapRegions,
    Signal,
    SlotsRegressed,
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


MAPPED = after(Attached(layout(10)), Mapped(layout(10)))


def test_nothing_is_mapped_without_a_lease() -> None:
    state, effects = next_mapping(MappingState(), Announced(layout(10)))
    assert state.phase is ConsumerPhase.UNMAPPED
    assert effects == ()


def test_an_attach_response_is_mapped_and_joins_the_running_epoch() -> None:
    state, effects = next_mapping(MappingState(), Attached(layout(10)))
    assert effects == (MapRegions(layout(10), CountFrom.NEWEST),)
    assert state.phase is ConsumerPhase.UNMAPPED
    state, effects = next_mapping(state, Mapped(layout(10)))
    assert (state.phase, effects) == (ConsumerPhase.MAPPED, ())


def test_what_was_announced_since_the_request_beats_an_older_response_and_began_after_the_consumer_came() -> None:
    _, effects = next_mapping(after(Announced(layout(12)), Announced(layout(11))), Attached(layout(10)))
    assert effects == (MapRegions(layout(12), CountFrom.ZERO),)


def test_where_that_announce_cannot_be_mapped_the_response_is() -> None:
    state, effects = next_mapping(after(Announced(layout(99)), Attached(layout(10))), Signal.MAP_FAILED)
    assert effects == (MapRegions(layout(10), CountFrom.NEWEST),)
    assert next_mapping(state, Signal.MAP_FAILED) == (state, ())


def test_a_response_beats_older_announces() -> None:
    _, effects = next_mapping(after(Announced(layout(9))), Attached(layout(10)))
    assert effects == (MapRegions(layout(10), CountFrom.NEWEST),)


@pytest.mark.requirement("W-15.1-3")
def test_each_further_announce_checks_the_superblock_again() -> None:
    assert next_mapping(MAPPED, Announced(layout(10))) == (MAPPED, (CheckSuperblock(),))


def test_a_higher_epoch_is_mapped_from_its_first_frame_and_the_old_one_stays_until_then() -> None:
    state, effects = next_mapping(MAPPED, Announced(layout(11)))
    assert effects == (MapRegions(layout(11), CountFrom.ZERO),)
    assert state == MAPPED
    assert next_mapping(state, Mapped(layout(11)))[0].layout == layout(11)


@pytest.mark.requirement("W-10.1.1-7")
def test_a_lower_epoch_is_ignored_and_counted() -> None:
    assert next_mapping(MAPPED, Announced(layout(9))) == (MAPPED, (CountLowerEpoch(),))


@pytest.mark.requirement("W-7.1-9")
def test_an_epoch_that_wrapped_is_not_taken_for_a_newer_one() -> None:
    last, _ = next_mapping(MAPPED, Mapped(layout(2**64 - 1)))
    assert next_mapping(last, Announced(layout(0))) == (last, (CountLowerEpoch(),))


def test_another_layout_of_the_same_epoch_is_mapped_anew_and_its_counts_go_on() -> None:
    _, effects = next_mapping(MAPPED, Announced(layout(10, nslots=16)))
    assert effects == (MapRegions(layout(10, nslots=16), CountFrom.LEFT_OFF),)


@pytest.mark.parametrize(("went_back", "count_from"), [(True, CountFrom.NEWEST), (False, CountFrom.LEFT_OFF)])
def test_a_seq_that_went_back_is_mapped_again(went_back: bool, count_from: CountFrom) -> None:
    _, effects = next_mapping(MAPPED, SlotsRegressed(went_back))
    assert effects == (UnmapRegions("slots regressed"), MapRegions(layout(10), count_from))


@pytest.mark.requirement("D-4.9-8")
@pytest.mark.parametrize("signal", [Signal.PRODUCER_REVOKED, Signal.SUPERBLOCK_CHANGED])
def test_after_a_revoked_producer_or_a_changed_superblock_only_a_higher_epoch_is_mapped(signal: Signal) -> None:
    state, effects = next_mapping(MAPPED, signal)
    assert effects == (UnmapRegions(signal.value),)
    state, effects = next_mapping(state, Announced(layout(10)))
    assert effects == (CountLowerEpoch(),)
    assert next_mapping(state, Announced(layout(11)))[1] == (MapRegions(layout(11), CountFrom.ZERO),)


def test_an_epoch_that_cannot_be_mapped_changes_nothing_while_another_is_mapped() -> None:
    state = after(Attached(layout(10)), Mapped(layout(10)), Announced(layout(99)), Signal.MAP_FAILED)
    assert state == MAPPED
    assert next_mapping(state, Announced(layout(10))) == (MAPPED, (CheckSuperblock(),))


def test_a_failed_mapping_is_tried_again_at_the_next_announce() -> None:
    state = after(Attached(layout(10)), Signal.MAP_FAILED)
    assert next_mapping(state, Announced(layout(10)))[1] == (MapRegions(layout(10), CountFrom.NEWEST),)
    assert next_mapping(state, Announced(layout(11)))[1] == (MapRegions(layout(11), CountFrom.ZERO),)


def test_a_lost_lease_forgets_everything_but_what_was_counted() -> None:
    state, effects = next_mapping(MAPPED, Signal.LEASE_LOST)
    assert effects == (UnmapRegions("lease lost"),)
    assert state == MappingState(layout=layout(10), came_at=10)
    assert next_mapping(state, Announced(layout(11)))[1] == ()


@pytest.mark.parametrize(("epoch", "count_from"), [(10, CountFrom.LEFT_OFF), (11, CountFrom.ZERO), (3, CountFrom.NEWEST)])
def test_a_lease_that_was_won_back_goes_on_with_its_epoch_and_misses_nothing_of_a_later_one(epoch: int, count_from: CountFrom) -> None:
    lost, _ = next_mapping(MAPPED, Signal.LEASE_LOST)
    assert next_mapping(lost, Attached(layout(epoch)))[1] == (MapRegions(layout(epoch), count_from),)


@pytest.mark.parametrize("event", [*(s for s in Signal if s is not Signal.LEASE_LOST), SlotsRegressed(False)])
def test_signals_mean_nothing_while_nothing_is_mapped(event: MappingEvent) -> None:
    assert next_mapping(MappingState(attached=True), event) == (MappingState(attached=True), ())
