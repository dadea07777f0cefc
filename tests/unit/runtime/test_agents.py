"""Agents in the caller's loop and on threads: passes, rests, errors, ends."""

from __future__ import annotations

import logging
import threading

import pytest

from tensor_pool.errors import ClosedError
from tensor_pool.runtime import AgentInvoker, AgentRunner, PeriodicTimer
from tensor_pool.runtime.runner import Idle

WAIT_S = 20.0


class Counting:
    """Has work for a number of passes, then none; can be told to raise."""

    name = "counting"

    def __init__(self, work: int = 0, *, raises: BaseException | None = None, close_raises: Exception | None = None) -> None:
        self.work = work
        self.raises = raises
        self.close_raises = close_raises
        self.passes = 0
        self.closed = 0
        self.closed_on: threading.Thread | None = None
        self.ran_dry = threading.Event()

    def do_work(self) -> int:
        self.passes += 1
        if self.work > 0:
            self.work -= 1
            return 1
        self.ran_dry.set()
        if self.raises is not None:
            raise self.raises
        return 0

    def close(self) -> None:
        self.closed += 1
        self.closed_on = threading.current_thread()
        if self.close_raises is not None:
            raise self.close_raises


def test_an_invoker_makes_passes_when_told_and_closes_once() -> None:
    agent = Counting(work=2)
    with AgentInvoker(agent) as invoker:
        assert [invoker.invoke(), invoker.invoke(), invoker.invoke()] == [1, 1, 0]
        invoker.close()
        assert invoker.invoke() == 0
    assert (agent.passes, agent.closed) == (3, 1)


def test_an_invoker_drains_what_there_is_up_to_its_limit() -> None:
    assert AgentInvoker(Counting(work=5)).drain() == 5
    assert AgentInvoker(Counting(work=50)).drain(limit=10) == 10


def test_an_invoker_lets_errors_reach_the_caller() -> None:
    with pytest.raises(OSError, match="no"):
        AgentInvoker(Counting(raises=OSError("no"))).invoke()


def test_a_runner_runs_until_closed_and_closes_its_agent_on_the_thread() -> None:
    agent = Counting(work=100)
    runner = AgentRunner(agent, idle_ns=1000).start()
    assert agent.ran_dry.wait(WAIT_S)
    assert runner.is_running
    runner.close()
    runner.close()
    assert not runner.is_running
    assert agent.closed == 1
    assert agent.closed_on is not threading.current_thread()
    assert (runner.error, runner.stats.errors_caught) == (None, 0)
    assert runner.stats.cycles_completed == agent.passes > 100
    assert runner.stats.longest_cycle_ns > 0


def test_passes_with_work_follow_each_other_without_a_rest() -> None:
    agent, rests = Counting(work=1000), []

    def rest(duration_ns: int) -> None:
        rests.append((agent.passes, duration_ns))
        stop.wait(WAIT_S)

    stop = threading.Event()
    with AgentRunner(agent, idle_ns=5000, rest=rest) as runner:
        assert agent.ran_dry.wait(WAIT_S)
        stop.set()
        assert runner.is_running
    assert rests[0][0] == 1001


def test_rests_get_longer_up_to_the_limit_and_short_again_after_work() -> None:
    idle = Idle(5000)
    assert [idle.rest_ns(0) for _ in range(5)] == [1000, 2000, 4000, 5000, 5000]
    assert idle.rest_ns(1) == 0
    assert idle.rest_ns(0) == 1000
    assert [Idle(0).rest_ns(0), Idle(300).rest_ns(0)] == [0, 300]


def test_closing_does_not_wait_for_a_long_rest() -> None:
    agent = Counting()
    runner = AgentRunner(agent, idle_ns=3_600_000_000_000).start()
    assert agent.ran_dry.wait(WAIT_S)
    runner.close()
    assert agent.closed == 1


@pytest.mark.parametrize("error", [OSError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_ends_the_runner_is_kept_counted_and_logged(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    agent = Counting(work=3, raises=error)
    with caplog.at_level(logging.ERROR, "tensor_pool.runtime"), AgentRunner(agent) as runner:
        runner._thread.join(WAIT_S)
        assert not runner.is_running
        assert runner.error is error
    assert (agent.passes, agent.closed, runner.stats.errors_caught) == (4, 1, 1)
    assert ["agent counting failed" in record.message for record in caplog.records] == [True]


def test_an_error_that_whoever_reads_it_tells_of_is_not_printed(caplog: pytest.LogCaptureFixture) -> None:
    agent = Counting(raises=OSError("gone"), close_raises=OSError("gone"))
    with caplog.at_level(logging.INFO, "tensor_pool.runtime"), AgentRunner(agent, told=(OSError,)) as runner:
        assert agent.ran_dry.wait(WAIT_S)
    assert runner.error is agent.raises
    assert runner.stats.errors_caught == 2
    assert not caplog.records


def test_an_error_in_close_does_not_hide_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    first, second = OSError("first"), OSError("second")
    runner = AgentRunner(Counting(raises=first, close_raises=second)).start()
    runner.close()
    assert runner.error is first
    assert runner.stats.errors_caught == 2
    assert len(caplog.records) == 2


def test_a_runner_that_never_started_still_closes_its_agent() -> None:
    agent = Counting()
    runner = AgentRunner(agent)
    runner.close()
    runner.close()
    assert (agent.passes, agent.closed, agent.closed_on) == (0, 1, threading.current_thread())
    with pytest.raises(ClosedError):
        runner.start()


def test_an_agent_may_close_its_own_runner() -> None:
    class Suicidal(Counting):
        runner: AgentRunner

        def do_work(self) -> int:
            self.runner.close()
            return super().do_work()

    agent = Suicidal(work=10)
    agent.runner = AgentRunner(agent)
    agent.runner.start()
    agent.runner._thread.join(WAIT_S)
    assert (agent.passes, agent.closed, agent.runner.error) == (1, 1, None)


def test_many_threads_may_close_at_once() -> None:
    agent = Counting()
    runner = AgentRunner(agent).start()
    threads = [threading.Thread(target=runner.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert agent.closed == 1


def test_a_timer_is_due_once_a_period() -> None:
    timer = PeriodicTimer(10, 100)
    assert [now for now in range(100, 141) if timer.due(now)] == [110, 120, 130, 140]
    assert not timer.due(140)


def test_a_timer_keeps_to_its_grid_when_it_is_asked_a_little_late() -> None:
    timer = PeriodicTimer(10, 0)
    assert timer.due(13)
    assert (timer.remaining_ns(13), timer.due(19), timer.due(20)) == (7, False, True)


def test_a_timer_does_not_burst_after_a_pause() -> None:
    timer = PeriodicTimer(10, 0)
    assert timer.due(1005)
    assert not timer.due(1006)
    assert timer.remaining_ns(1006) == 9
    assert timer.due(1015)


def test_a_timer_can_be_restarted_and_refuses_a_period_of_nothing() -> None:
    timer = PeriodicTimer(10, 0)
    timer.restart(5)
    assert (timer.due(14), timer.due(15), timer.period_ns) == (False, True, 10)
    with pytest.raises(ValueError, match="period"):
        PeriodicTimer(0, 0)
