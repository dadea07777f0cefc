"""Which announces are believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensor_pool.consumer.announces import AnnounceTimes, AnnounceVerdict, judge_announce
from tensor_pool.sbe.control import ClockDomain, ShmPoolAnnounce

PERIOD = 1_000_000_000
TIMES = AnnounceTimes(monotonic_ns=100 * PERIOD, realtime_ns=5_000 * PERIOD, join_monotonic_ns=90 * PERIOD, freshness_ns=3 * PERIOD)


def announce(stamp_ns: int, domain: ClockDomain = ClockDomain.MONOTONIC) -> ShmPoolAnnounce:
    return ShmPoolAnnounce(
        stream_id=1,
        producer_id=0,
        epoch=1,
        announce_timestamp_ns=stamp_ns,
        announce_clock_domain=domain,
        layout_version=1,
        header_nslots=8,
        header_slot_bytes=256,
        payload_pools=(),
        header_region_uri="",
    )


@pytest.mark.requirement("W-10.1.1-8")
@pytest.mark.requirement("W-10.1.1-9")
@pytest.mark.requirement("W-15.1-6")
@pytest.mark.parametrize(("age_periods", "verdict"), [(2.5, AnnounceVerdict.ACCEPTED), (3.5, AnnounceVerdict.STALE)])
def test_announces_are_fresh_for_three_periods(age_periods: float, verdict: AnnounceVerdict) -> None:
    assert judge_announce(announce(TIMES.monotonic_ns - int(age_periods * PERIOD)), TIMES) is verdict


@pytest.mark.requirement("W-10.1.1-10")
def test_an_announce_from_before_the_image_is_a_replay() -> None:
    times = AnnounceTimes(TIMES.monotonic_ns, TIMES.realtime_ns, TIMES.monotonic_ns - PERIOD, TIMES.freshness_ns)
    assert judge_announce(announce(times.join_monotonic_ns - 1), times) is AnnounceVerdict.BEFORE_JOIN
    assert judge_announce(announce(times.join_monotonic_ns), times) is AnnounceVerdict.ACCEPTED


@pytest.mark.requirement("W-10.1.1-11")
def test_the_join_rule_never_applies_to_a_synchronised_wall_clock() -> None:
    times = AnnounceTimes(TIMES.monotonic_ns, 50, 10**18, TIMES.freshness_ns)
    assert judge_announce(announce(49, ClockDomain.REALTIME_SYNCED), times) is AnnounceVerdict.ACCEPTED


@pytest.mark.requirement("W-10.1.1-12")
def test_a_stale_wall_clock_stamp_is_refused_by_the_wall_clock() -> None:
    fresh, stale = TIMES.realtime_ns - PERIOD, TIMES.realtime_ns - 4 * PERIOD
    assert judge_announce(announce(fresh, ClockDomain.REALTIME_SYNCED), TIMES) is AnnounceVerdict.ACCEPTED
    assert judge_announce(announce(stale, ClockDomain.REALTIME_SYNCED), TIMES) is AnnounceVerdict.STALE


@given(st.integers(0, 2**64 - 1), st.sampled_from(ClockDomain))
def test_every_stamp_gets_a_verdict(stamp_ns: int, domain: ClockDomain) -> None:
    assert judge_announce(announce(stamp_ns, domain), TIMES) in AnnounceVerdict
