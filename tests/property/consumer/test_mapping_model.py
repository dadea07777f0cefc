"""The mapping table under any order of events: what a consumer has mapped is always what the effects said, and epochs do not fall."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from hypothesis import given
from hypothesis import strategies as st

from tensor_pool.consumer.state import (
    Announced,
    Attached,
    CheckSuperblock,
    ConsumerPhase,
    CountFrom,
    CountLowerEpoch,
    Mapped,
    MappingEffect,
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
    pool = PoolSpec(1, nslots, 4096, "shm:file?path=/base/1.pool")
    return PoolLayout(5, epoch, 1, nslots, 256, "shm:file?path=/base/header.ring", (pool,))


layouts = st.builds(layout, st.integers(0, 6), st.sampled_from([8, 16]))
signals = st.sampled_from([signal for signal in Signal if signal is not Signal.MAP_FAILED])
events: st.SearchStrategy[MappingEvent] = st.one_of(
    layouts.map(Announced), layouts.map(Attached), st.booleans().map(SlotsRegressed), signals
)
histories = st.lists(events, max_size=40)
# whether each attempt to map works; the first attempts are the ones that a history has
luck = st.lists(st.booleans(), max_size=80)


class Consumer:
    """Performs the effects as the real one does: mapping is tried, what was mapped stays until that worked."""

    def __init__(self, works: list[bool]) -> None:
        self.state = MappingState()
        self.mapped: PoolLayout | None = None
        self.works: Iterator[bool] = iter(works)

    def apply(self, event: MappingEvent) -> Iterator[tuple[MappingEffect, bool]]:
        """Each effect, and whether it was performed."""
        self.state, effects = next_mapping(self.state, event)
        for effect in effects:
            works = True
            follows: MappingEvent | None = None
            match effect:
                case MapRegions(wanted):
                    works = next(self.works, True)
                    self.mapped = wanted if works else self.mapped
                    follows = Mapped(wanted) if works else Signal.MAP_FAILED
                case UnmapRegions():
                    assert self.mapped is not None
                    self.mapped = None
                case CheckSuperblock():
                    assert self.mapped is not None
                case CountLowerEpoch():
                    pass
            yield effect, works
            if follows is not None:
                yield from self.apply(follows)


@given(history=histories, works=luck)
def test_effects_and_state_tell_the_same_story(history: list[MappingEvent], works: list[bool]) -> None:
    consumer = Consumer(works)
    for event in history:
        list(consumer.apply(event))
        assert (consumer.state.phase is ConsumerPhase.MAPPED) == (consumer.mapped is not None)
        if consumer.mapped is not None:
            assert consumer.state.layout == consumer.mapped
            assert consumer.state.attached


@given(history=histories, works=luck)
def test_announces_alone_never_bring_an_older_epoch_back(history: list[MappingEvent], works: list[bool]) -> None:
    consumer, highest = Consumer(works), -1
    for event in history:
        # an epoch that could not be mapped was never there: whoever announces a wrong one does not lock out the right one
        if isinstance(event, Attached) or event is Signal.LEASE_LOST:
            highest = -1
        for effect, worked in consumer.apply(event):
            if isinstance(effect, MapRegions) and worked:
                assert effect.layout.epoch >= highest or isinstance(event, Attached)
                highest = effect.layout.epoch


@given(history=histories, works=luck)
def test_the_counts_of_an_epoch_go_on_and_are_never_begun_twice(history: list[MappingEvent], works: list[bool]) -> None:
    consumer = Consumer(works)
    counted: int | None = None
    for event in history:
        for effect, worked in consumer.apply(event):
            if not isinstance(effect, MapRegions):
                continue
            epoch = effect.layout.epoch
            if epoch == counted:
                assert effect.count_from is CountFrom.LEFT_OFF or event == SlotsRegressed(ring_went_back=True)
            else:
                assert effect.count_from is not CountFrom.LEFT_OFF
                assert effect.count_from is CountFrom.NEWEST or counted is None or epoch > counted
            counted = epoch if worked else counted


@given(history=histories, works=luck, announced=st.lists(layouts, max_size=10))
def test_what_is_mapped_survives_announces_that_cannot_be_mapped(
    history: list[MappingEvent], works: list[bool], announced: list[PoolLayout]
) -> None:
    consumer = Consumer(works)
    for event in history:
        list(consumer.apply(event))
    mapped = consumer.mapped
    consumer.works = repeat(False)
    for layout in announced:
        list(consumer.apply(Announced(layout)))
        assert consumer.mapped == mapped


@given(history=histories, works=luck, announced=layouts)
def test_nothing_is_mapped_without_a_lease(history: list[MappingEvent], works: list[bool], announced: PoolLayout) -> None:
    consumer = Consumer(works)
    for event in [*history, Signal.LEASE_LOST]:
        list(consumer.apply(event))
    assert consumer.mapped is None
    assert list(consumer.apply(Announced(announced))) == []
