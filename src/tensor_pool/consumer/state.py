"""The mapping of one stream as a pure state machine (wire 15.12, 15.21; driver 4.9, 10; decision E32).

| from | event | condition | to | effects |
| --- | --- | --- | --- | --- |
| any | Attached(layout) | | UNMAPPED | map the newer of the response, which is authoritative, and what was announced since the request |
| UNMAPPED | Announced(layout) | lease held, epoch >= floor | UNMAPPED | map |
| MAPPED E | Announced(layout) | same layout | MAPPED E | check the superblock |
| MAPPED E | Announced(layout) | epoch > E, or another layout of E | MAPPED E | map |
| MAPPED E | Announced(layout) | epoch < E | MAPPED E | none: counted |
| any | Mapped(layout) | its regions were opened and checked | MAPPED epoch | |
| UNMAPPED | MapFailed | an announce beat the response | UNMAPPED | map the response |
| any | MapFailed | otherwise | the same | |
| MAPPED E | SlotsRegressed | | UNMAPPED | unmap, map again |
| MAPPED E | ProducerRevoked | | UNMAPPED, floor E + 1 | unmap |
| MAPPED E | SuperblockChanged | | UNMAPPED, floor E + 1 | unmap |
| any | LeaseLost | | UNMAPPED, no lease, no floor | unmap |

To map is to try: what was mapped stays until the regions of the new layout are open and checked, because anybody can announce anything.

Where the counts of a mapping begin (`CountFrom`): those of the epoch that was mapped last go on, whatever happened between. An epoch above
it, and above the one that this consumer came to, began after it came: it counts from its first frame. Any other one is joined. A ring
that really went back within its epoch is joined too, since its seqs name other frames now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tensor_pool.shm.layout import PoolLayout


class ConsumerPhase(Enum):
    """Whether frames can be read now."""

    UNMAPPED = "unmapped"
    MAPPED = "mapped"


class CountFrom(Enum):
    """The first seq that a mapping answers for."""

    NEWEST = "after what the ring holds"
    ZERO = "the first of the epoch"
    LEFT_OFF = "where the last mapping of this epoch left off"


@dataclass(frozen=True, slots=True)
class MappingState:
    """What is mapped and what may be mapped next."""

    phase: ConsumerPhase = ConsumerPhase.UNMAPPED
    attached: bool = False
    layout: PoolLayout | None = None
    """What is mapped, or was mapped last."""
    came_at: int | None = None
    """The epoch of the first attach."""
    floor: int = 0
    announced_since_request: PoolLayout | None = None
    response: PoolLayout | None = None
    """What the driver granted, while a newer announce is tried first."""


@dataclass(frozen=True, slots=True)
class Attached:
    layout: PoolLayout


@dataclass(frozen=True, slots=True)
class Announced:
    layout: PoolLayout


@dataclass(frozen=True, slots=True)
class Mapped:
    """What was to be mapped is mapped."""

    layout: PoolLayout


@dataclass(frozen=True, slots=True)
class SlotsRegressed:
    """A descriptor named a seq from before. `ring_went_back` says that the slots agree with it."""

    ring_went_back: bool


class Signal(Enum):
    """Events without content."""

    PRODUCER_REVOKED = "producer revoked"
    SUPERBLOCK_CHANGED = "superblock changed"
    MAP_FAILED = "map failed"
    LEASE_LOST = "lease lost"


MappingEvent = Attached | Announced | Mapped | SlotsRegressed | Signal


@dataclass(frozen=True, slots=True)
class MapRegions:
    """Open `layout`, and put it in the place of what is mapped."""

    layout: PoolLayout
    count_from: CountFrom


@dataclass(frozen=True, slots=True)
class UnmapRegions:
    reason: str


@dataclass(frozen=True, slots=True)
class CheckSuperblock:
    """Compare magic and epoch in shared memory again (wire 15.1-3)."""


@dataclass(frozen=True, slots=True)
class CountLowerEpoch:
    """An announce of an older epoch was ignored."""


MappingEffect = MapRegions | UnmapRegions | CheckSuperblock | CountLowerEpoch
_Step = tuple[MappingState, tuple[MappingEffect, ...]]


def next_mapping(state: MappingState, event: MappingEvent) -> _Step:
    """One row of the table above."""
    match event:
        case Attached(layout):
            return _on_attached(state, layout)
        case Announced(layout):
            return _on_announced(state, layout)
        case Mapped(layout):
            return replace(state, phase=ConsumerPhase.MAPPED, layout=layout, response=None), ()
        case SlotsRegressed(ring_went_back):
            return _on_slots_regressed(state, ring_went_back)
        case Signal():
            return _on_signal(state, event)


def _on_attached(state: MappingState, layout: PoolLayout) -> _Step:
    newer = state.announced_since_request
    chosen = newer if newer is not None and newer.epoch > layout.epoch else layout
    attached = MappingState(
        attached=True,
        layout=state.layout,
        came_at=layout.epoch if state.came_at is None else state.came_at,
        response=layout if chosen is not layout else None,
    )
    return attached, (*_unmap(state, "attached anew"), _map(attached, chosen))


def _on_announced(state: MappingState, layout: PoolLayout) -> _Step:
    if not state.attached:
        newest = state.announced_since_request
        if newest is None or layout.epoch > newest.epoch:
            state = replace(state, announced_since_request=layout)
        return state, ()
    current = state.layout
    if state.phase is ConsumerPhase.MAPPED and current is not None:
        if layout == current:
            return state, (CheckSuperblock(),)
        lowest = current.epoch
    else:
        lowest = state.floor
    return state, (CountLowerEpoch() if layout.epoch < lowest else _map(state, layout),)


def _on_slots_regressed(state: MappingState, ring_went_back: bool) -> _Step:
    if state.phase is not ConsumerPhase.MAPPED or state.layout is None:
        return state, ()
    count_from = CountFrom.NEWEST if ring_went_back else CountFrom.LEFT_OFF
    unmapped = replace(state, phase=ConsumerPhase.UNMAPPED)
    return unmapped, (UnmapRegions("slots regressed"), MapRegions(state.layout, count_from))


def _on_signal(state: MappingState, signal: Signal) -> _Step:
    if signal is Signal.LEASE_LOST:
        return MappingState(layout=state.layout, came_at=state.came_at), _unmap(state, signal.value)
    if signal is Signal.MAP_FAILED:
        granted = state.response
        if granted is None or state.phase is ConsumerPhase.MAPPED:
            return state, ()
        state = replace(state, response=None)
        return state, (_map(state, granted),)
    if state.phase is not ConsumerPhase.MAPPED or state.layout is None:
        return state, ()
    return replace(state, phase=ConsumerPhase.UNMAPPED, floor=state.layout.epoch + 1), _unmap(state, signal.value)


def _map(state: MappingState, layout: PoolLayout) -> MapRegions:
    counted = state.layout
    if counted is not None and layout.epoch == counted.epoch:
        return MapRegions(layout, CountFrom.LEFT_OFF)
    known = [epoch for epoch in (state.came_at, counted.epoch if counted else None) if epoch is not None]
    began_since = bool(known) and layout.epoch > max(known)
    return MapRegions(layout, CountFrom.ZERO if began_since else CountFrom.NEWEST)


def _unmap(state: MappingState, reason: str) -> tuple[MappingEffect, ...]:
    return (UnmapRegions(reason),) if state.phase is ConsumerPhase.MAPPED else ()
