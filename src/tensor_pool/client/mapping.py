"""A consumer's mapping: the table of `consumer.state`, performed on shared memory and on the reader of its frames."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tensor_pool import _native
from tensor_pool.client.services import ClientServices
from tensor_pool.consumer.announces import AnnounceTimes, AnnounceVerdict, judge_announce
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
from tensor_pool.consumer.stats import ConsumerStats, stats_from_counters
from tensor_pool.errors import ProtocolError, RegionError, TensorPoolError
from tensor_pool.sbe import control
from tensor_pool.shm.layout import PoolLayout, layout_from_announce
from tensor_pool.shm.mapping import MappedPools

LOGGER = logging.getLogger("tensor_pool.consumer")
LARGEST_OUTSTANDING_GAP = 256
EARLIER_EPOCHS_KEPT = 64


class EpochMapping:
    """What the reader reads from. Changed by the conductor alone, under its lock."""

    def __init__(
        self,
        services: ClientServices,
        reader: _native.FrameReader,
        stream_id: int,
        on_mapped: Callable[[], None],
        reattached: Callable[[], int],
    ) -> None:
        self._services = services
        self._reader = reader
        self._stream_id = stream_id
        self._on_mapped = on_mapped
        self._reattached = reattached
        self._state = MappingState()
        self._pools: MappedPools | None = None
        self._granted: PoolLayout | None = None
        self._failure: TensorPoolError | None = None
        self._missing_since_ns = 0
        self._was_told = False
        self._earlier: list[ConsumerStats] = []
        self._counters = dict.fromkeys(
            (
                AnnounceVerdict.STALE.value,
                AnnounceVerdict.BEFORE_JOIN.value,
                "announces_lower_epoch",
                "announces_malformed",
                "layouts_unmappable",
            ),
            0,
        )

    # --- what is known ---------------------------------------------------------------------------------------------

    @property
    def phase(self) -> ConsumerPhase:
        return self._state.phase

    @property
    def failure(self) -> TensorPoolError | None:
        """Why there will be no frames, None while there is hope."""
        return self._failure

    @property
    def activity_ns(self) -> int | None:
        """When the driver last said in shared memory that it is alive. None while nothing is mapped."""
        return None if self._pools is None else self._pools.activity_ns

    @property
    def stats(self) -> ConsumerStats:
        """Of the epoch that is mapped, or was mapped last."""
        return stats_from_counters(self._reader.counters(), reattached=self._reattached())

    @property
    def earlier_stats(self) -> tuple[ConsumerStats, ...]:
        """The final counts of the epochs before that."""
        return tuple(self._earlier)

    @property
    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    # --- what happens ------------------------------------------------------------------------------------------------

    def on_attached(self, layout: PoolLayout) -> None:
        self._granted = layout
        self._apply(Attached(layout))

    def on_announce(self, announce: control.ShmPoolAnnounce, join_ns: int, now_ns: int) -> bool:
        """Whether the announce is believed, as far as it can be without opening a file."""
        clock = self._services.clock
        verdict = judge_announce(announce, AnnounceTimes(now_ns, clock.realtime_ns(), join_ns, self._services.freshness_ns))
        if verdict is not AnnounceVerdict.ACCEPTED:
            self._counters[verdict.value] += 1
            return False
        try:
            layout = layout_from_announce(announce)
        except ProtocolError as error:
            self._counters["announces_malformed"] += 1
            self._put_up_with(error)
            return False
        self._apply(Announced(layout))
        return True

    def on_signal(self, signal: Signal) -> None:
        self._apply(signal)

    def look_for_regress(self) -> None:
        """A seq from before within the epoch: map anew (wire 15.2)."""
        if self._reader.needs_remap():
            counters = self._reader.counters()
            # where the slots know nothing of it, a descriptor was sent twice, or was not true
            self._apply(SlotsRegressed(ring_went_back=counters["newest_committed"] < counters["last_seq"]))

    def fail(self, error: TensorPoolError) -> None:
        self._failure = error
        # whoever waits on the fileno finds it by reading
        self._reader.wake()

    def close(self) -> None:
        if self._pools is not None:
            self._pools.close()
            self._pools = None

    # --- effects -----------------------------------------------------------------------------------------------------

    def _apply(self, event: MappingEvent) -> None:
        self._state, effects = next_mapping(self._state, event)
        for effect in effects:
            match effect:
                case UnmapRegions(reason):
                    self._unmap(reason)
                case MapRegions(layout, count_from):
                    self._map(layout, count_from)
                case CheckSuperblock():
                    self._check_superblock()
                case CountLowerEpoch():
                    self._counters["announces_lower_epoch"] += 1

    def _map(self, layout: PoolLayout, count_from: CountFrom) -> None:
        try:
            pools = self._services.map_pools(layout, writable=False)
        except (RegionError, ProtocolError) as error:
            self._counters["layouts_unmappable"] += 1
            # files that are missing belong to an epoch that is over by now; whatever else the driver itself granted will not become right
            self._put_up_with(error, for_good=layout == self._granted and type(error) is not RegionError)
            self._apply(Signal.MAP_FAILED)
            return
        self._unmap(f"epoch {layout.epoch} takes its place")
        counters = self._reader.counters()
        resume = count_from is CountFrom.LEFT_OFF and counters.get("epoch") == layout.epoch
        if not resume and "epoch" in counters:
            self._earlier.append(stats_from_counters(counters, reattached=self._reattached()))
            del self._earlier[:-EARLIER_EPOCHS_KEPT]
        self._reader.map(
            pools.header,
            pools.pools,
            nslots=layout.nslots,
            epoch=layout.epoch,
            first_seq=0 if count_from is CountFrom.ZERO else None,
            max_outstanding_gap=min(LARGEST_OUTSTANDING_GAP, max(1, layout.nslots // 2)),
            resume=resume,
        )
        self._pools = pools
        self._failure = None
        self._missing_since_ns = 0
        self._was_told = False
        LOGGER.debug("stream %d: mapped epoch %d, counted from %s", layout.stream_id, layout.epoch, count_from.value)
        self._apply(Mapped(layout))
        self._on_mapped()

    def _unmap(self, reason: str) -> None:
        if self._pools is not None:
            LOGGER.debug("stream %d: unmapped epoch %d (%s)", self._stream_id, self._pools.layout.epoch, reason)
        self._reader.unmap()
        self.close()

    def _check_superblock(self) -> None:
        if self._pools is None:
            return
        try:
            self._pools.check_unchanged()
        except RegionError as error:
            LOGGER.info("stream %d: %s", self._stream_id, error.message)
            self._apply(Signal.SUPERBLOCK_CHANGED)
            self.fail(error)

    def _put_up_with(self, error: TensorPoolError, *, for_good: bool = False) -> None:
        """Anybody can announce anything: frames that are mapped go on, and whoever has none is told once nothing better came for three
        announces.
        """
        if not self._was_told:
            self._was_told = True
            LOGGER.info("stream %d: what was announced cannot be mapped: %s", self._stream_id, error.message)
        if self._pools is not None:
            return
        now_ns = self._services.clock.monotonic_ns()
        self._missing_since_ns = self._missing_since_ns or now_ns
        if for_good or now_ns - self._missing_since_ns > self._services.freshness_ns:
            self.fail(error)
