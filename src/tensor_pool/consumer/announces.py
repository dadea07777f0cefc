"""Which announces a consumer believes (wire 10.1.1, decisions E27 to E30)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tensor_pool.sbe.control import ClockDomain, ShmPoolAnnounce


class AnnounceVerdict(Enum):
    """What to do with an announce, and the counter that a refused one raises."""

    ACCEPTED = "announces_accepted"
    STALE = "announces_stale"
    BEFORE_JOIN = "announces_before_join"


@dataclass(frozen=True, slots=True)
class AnnounceTimes:
    """The receiver's clocks when the announce arrived, and when its image became available."""

    monotonic_ns: int
    realtime_ns: int
    join_monotonic_ns: int
    freshness_ns: int


def judge_announce(announce: ShmPoolAnnounce, times: AnnounceTimes) -> AnnounceVerdict:
    """Announces are soft state: old ones do not count. The join rule (no replay from the log) is for the monotonic clock alone, since
    a synchronised wall clock cannot be compared with the time of joining."""
    if announce.announce_clock_domain is ClockDomain.MONOTONIC:
        if announce.announce_timestamp_ns < times.join_monotonic_ns:
            return AnnounceVerdict.BEFORE_JOIN
        now_ns = times.monotonic_ns
    else:
        now_ns = times.realtime_ns
    if now_ns - announce.announce_timestamp_ns > times.freshness_ns:
        return AnnounceVerdict.STALE
    return AnnounceVerdict.ACCEPTED
