"""The mapping table under any order of events: what a consumer has mapped is always what the effects said, and epochs do not fall."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
    pool = PoolSpec(1, nslots, 4096, "shm:file?path=/base/1.pool")
    return PoolLayout(5, epoch, 1, nslots, 256, "shm:file?path=/base/header.ring", (pool,))


layouts = st.builds(layout, st.integers(0, 6), st.sampled_from([8, 16]))
events: st.SearchStrategy[MappingEvent] = st.one_of(layouts.map(Announced), layouts.map(Attached), st.sampled_from(Signal))


@given(history=st.lists(events, max_size=40))
def test_effects_and_state_tell_the_same_story(history: list[MappingEvent]) -> None:
    state, mapped = MappingState(), None
    for event in history:
        before = mapped
        state, effects = next_mapping(state, event)
        for effect in effects:
            match effect:
                case MapRegions(wanted):
                    assert mapped is None
                    mapped = wanted
                case UnmapRegions():
                    assert mapped is not None
                    mapped = None
                case CheckSuperblock() | CountLowerEpoch():
                    assert mapped == before
        assert (state.phase is ConsumerPhase.MAPPED) == (mapped is not None)
        if mapped is not None:
            assert state.layout == mapped
            assert state.attached


@given(history=st.lists(events, max_size=40))
def test_announces_alone_never_bring_an_older_epoch_back(history: list[MappingEvent]) -> None:
    state, highest = MappingState(), -1
    for event in history:
        # an epoch that could not be mapped was never there: whoever announces a wrong one does not lock out the right one
        if isinstance(event, Attached) or event in (Signal.LEASE_LOST, Signal.MAP_FAILED):
            highest = -1
        state, effects = next_mapping(state, event)
        for effect in effects:
            if isinstance(effect, MapRegions):
                assert effect.layout.epoch >= highest
                highest = effect.layout.epoch


@given(history=st.lists(events, max_size=40), announced=layouts)
def test_nothing_is_mapped_without_a_lease(history: list[MappingEvent], announced: PoolLayout) -> None:
    state = MappingState()
    for event in history:
        state, _ = next_mapping(state, event)
    state, _ = next_mapping(state, Signal.LEASE_LOST)
    _, effects = next_mapping(state, Announced(announced))
    assert effects == ()
