"""The mapping of one stream as a pure state machine (wire 15.12, 15.21; driver 4.9, 10; decision E32).

| from | event | condition | to | effects |
| --- | --- | --- | --- | --- |
| any | Attached(layout) | the response is authoritative | MAPPED | map the newer of the response and what was announced since the request |
| UNMAPPED | Announced(layout) | lease held, epoch >= floor | MAPPED | map |
| MAPPED E | Announced(layout) | epoch == E | MAPPED E | check the superblock |
| MAPPED E | Announced(layout) | epoch > E | MAPPED epoch | unmap, map |
| MAPPED E | Announced(layout) | epoch < E | MAPPED E | none: counted |
| MAPPED E | SlotsRegressed | | MAPPED E | unmap, map again |
| MAPPED E | ProducerRevoked | | UNMAPPED, floor E + 1 | unmap |
| MAPPED E | SuperblockChanged | | UNMAPPED, floor E + 1 | unmap |
| MAPPED | MapFailed, DriverLost | | UNMAPPED | unmap |
| any | LeaseLost | | UNMAPPED, no lease, no floor | unmap |

A mapping made after the consumer was attached belongs to an epoch that it saw begin: its first frame counts from 0. The mapping that an
attach response brings starts after what the ring holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tensor_pool.shm.layout import PoolLayout


class ConsumerPhase(Enum):
    """Whether frames can be read now."""

    UNMAPPED = "unmapped"
    MAPPED = "mapped"


@dataclass(frozen=True, slots=True)
class MappingState:
    """What is mapped and what may be mapped next."""

    phase: ConsumerPhase = ConsumerPhase.UNMAPPED
    attached: bool = False
    layout: PoolLayout | None = None
    floor: int = 0
    announced_since_request: PoolLayout | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    layout: PoolLayout


@dataclass(frozen=True, slots=True)
class Announced:
    layout: PoolLayout


class Signal(Enum):
    """Events without content."""

    SLOTS_REGRESSED = "slots regressed"
    PRODUCER_REVOKED = "producer revoked"
    SUPERBLOCK_CHANGED = "superblock changed"
    MAP_FAILED = "map failed"
    LEASE_LOST = "lease lost"


MappingEvent = Attached | Announced | Signal


@dataclass(frozen=True, slots=True)
class MapRegions:
    """Map `layout`. `joined` says that the consumer joins a running epoch, not one that it saw begin."""

    layout: PoolLayout
    joined: bool


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


def next_mapping(state: MappingState, event: MappingEvent) -> tuple[MappingState, tuple[MappingEffect, ...]]:
    """One row of the table above."""
    if isinstance(event, Attached):
        return _on_attached(state, event.layout)
    if isinstance(event, Announced):
        return _on_announced(state, event.layout)
    return _on_signal(state, event)


def _on_attached(state: MappingState, layout: PoolLayout) -> tuple[MappingState, tuple[MappingEffect, ...]]:
    newer = state.announced_since_request
    chosen = newer if newer is not None and newer.epoch > layout.epoch else layout
    mapped = MappingState(ConsumerPhase.MAPPED, attached=True, layout=chosen)
    return mapped, (*_unmap(state, "attached anew"), MapRegions(chosen, joined=True))


def _on_announced(state: MappingState, layout: PoolLayout) -> tuple[MappingState, tuple[MappingEffect, ...]]:
    if not state.attached:
        newest = state.announced_since_request
        if newest is None or layout.epoch > newest.epoch:
            state = replace(state, announced_since_request=layout)
        return state, ()
    current = state.layout
    if state.phase is ConsumerPhase.MAPPED and current is not None:
        if layout.epoch == current.epoch:
            return (state, (CheckSuperblock(),)) if layout == current else _remap(state, layout, "the layout changed within an epoch")
        if layout.epoch < current.epoch:
            return state, (CountLowerEpoch(),)
        return _remap(state, layout, f"epoch {layout.epoch} began")
    if layout.epoch < state.floor:
        return state, (CountLowerEpoch(),)
    # only an epoch above the last one was seen to begin; the same one, or a lower one after a higher that could not be mapped, runs already
    joined = current is not None and layout.epoch <= current.epoch
    return replace(state, phase=ConsumerPhase.MAPPED, layout=layout), (MapRegions(layout, joined=joined),)


def _remap(state: MappingState, layout: PoolLayout, reason: str) -> tuple[MappingState, tuple[MappingEffect, ...]]:
    same_epoch = state.layout is not None and state.layout.epoch == layout.epoch
    return replace(state, layout=layout), (UnmapRegions(reason), MapRegions(layout, joined=same_epoch))


def _on_signal(state: MappingState, signal: Signal) -> tuple[MappingState, tuple[MappingEffect, ...]]:
    if signal is Signal.LEASE_LOST:
        return MappingState(), _unmap(state, signal.value)
    if state.phase is not ConsumerPhase.MAPPED or state.layout is None:
        return state, ()
    if signal is Signal.SLOTS_REGRESSED:
        return state, (UnmapRegions(signal.value), MapRegions(state.layout, joined=True))
    unmapped = replace(state, phase=ConsumerPhase.UNMAPPED)
    if signal in (Signal.PRODUCER_REVOKED, Signal.SUPERBLOCK_CHANGED):
        unmapped = replace(unmapped, floor=state.layout.epoch + 1)
    return unmapped, _unmap(state, signal.value)


def _unmap(state: MappingState, reason: str) -> tuple[MappingEffect, ...]:
    return (UnmapRegions(reason),) if state.phase is ConsumerPhase.MAPPED else ()
