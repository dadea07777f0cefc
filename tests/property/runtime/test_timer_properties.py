"""Whatever the pauses, a timer fires at most once a look and never twice within one period of a pause."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensor_pool.runtime import PeriodicTimer


@given(st.integers(1, 1000), st.integers(0, 10**18), st.lists(st.integers(0, 5000), max_size=200))
def test_a_timer_neither_bursts_nor_starves(period_ns: int, start_ns: int, steps: list[int]) -> None:
    timer = PeriodicTimer(period_ns, start_ns)
    now_ns, fired = start_ns, [start_ns]
    for step in steps:
        now_ns += step
        remaining_ns = timer.remaining_ns(now_ns)
        is_due = timer.due(now_ns)
        assert is_due == (remaining_ns == 0)
        assert 0 < timer.remaining_ns(now_ns) <= period_ns
        if is_due:
            fired.append(now_ns)
        assert now_ns - fired[-1] < 2 * period_ns
    assert len(fired) - 1 <= (now_ns - start_ns) // period_ns
