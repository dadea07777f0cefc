"""An agent on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from tensor_pool.clock import Clock, SystemClock
from tensor_pool.errors import ClosedError
from tensor_pool.runtime.agent import Agent

LOGGER = logging.getLogger("tensor_pool.runtime")
IDLE_NS = 1_000_000
SHORTEST_IDLE_NS = 1_000


class Idle:
    """How long to rest after passes without work: twice as long each time, up to `idle_ns`; work makes it short again."""

    def __init__(self, idle_ns: int, *, shortest_ns: int = SHORTEST_IDLE_NS) -> None:
        self._idle_ns = idle_ns
        self._shortest_ns = min(shortest_ns, idle_ns)
        self._next_ns = self._shortest_ns

    def rest_ns(self, work: int) -> int:
        """The rest after a pass that did `work`; 0 is none at all."""
        if work > 0:
            self._next_ns = self._shortest_ns
            return 0
        rest_ns = self._next_ns
        self._next_ns = min(2 * rest_ns, self._idle_ns)
        return rest_ns


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """What a runner has counted."""

    cycles_completed: int
    errors_caught: int
    longest_cycle_ns: int


class AgentRunner:
    """Runs the duty cycle of an agent on a thread until `close`, or until the agent raises: then `error` says what.

    `rest` replaces the rest between passes by something that is woken when there is work, such as the wait of a message queue: it gets
    `idle_ns` after every pass without work. An agent that rests within `do_work` is given `idle_ns=0`. Errors of the kinds in `told` are
    those that `error` is read for by whoever can put them into words: they are not printed.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        idle_ns: int = IDLE_NS,
        rest: Callable[[int], object] | None = None,
        clock: Clock | None = None,
        told: tuple[type[BaseException], ...] = (),
    ) -> None:
        self._agent = agent
        self._idle = Idle(idle_ns, shortest_ns=SHORTEST_IDLE_NS if rest is None else idle_ns)
        self._rest = rest
        self._clock = clock or SystemClock()
        self._told = told
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tensor-pool-{agent.name}", daemon=True)
        self._guard = threading.Lock()
        self._is_closed = False
        self._error: BaseException | None = None
        self._cycles_completed = 0
        self._errors_caught = 0
        self._longest_cycle_ns = 0

    @property
    def error(self) -> BaseException | None:
        """What ended the agent, if it did not end by `close`."""
        return self._error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def stats(self) -> RunnerStats:
        return RunnerStats(self._cycles_completed, self._errors_caught, self._longest_cycle_ns)

    def start(self) -> AgentRunner:
        """Start the thread, once."""
        with self._guard:
            if self._is_closed:
                raise ClosedError(f"the runner of {self._agent.name} is closed")
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop after the pass that is under way, close the agent and wait for both. Called by the agent itself it only asks for that."""
        with self._guard:
            was_closed, self._is_closed = self._is_closed, True
            was_started = self._thread.ident is not None
        self._stop.set()
        if was_started:
            if self._thread is not threading.current_thread():
                self._thread.join()
        elif not was_closed:
            self._close_agent()

    def __enter__(self) -> AgentRunner:
        return self if self._thread.ident is not None else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                begin_ns = self._clock.monotonic_ns()
                work = self._agent.do_work()
                self._longest_cycle_ns = max(self._longest_cycle_ns, self._clock.monotonic_ns() - begin_ns)
                self._cycles_completed += 1
                rest_ns = self._idle.rest_ns(work)
                if rest_ns > 0 and not self._stop.is_set():
                    if self._rest is not None:
                        self._rest(rest_ns)
                    else:
                        self._stop.wait(rest_ns / 1e9)
        except BaseException as error:  # noqa: BLE001 - the thread is all that there is above, and `_catch` logs
            self._catch(error, "failed")
        finally:
            self._close_agent()

    def _close_agent(self) -> None:
        try:
            self._agent.close()
        except Exception as error:  # noqa: BLE001 - as in `_run`
            self._catch(error, "failed to close")

    def _catch(self, error: BaseException, what: str) -> None:
        """The first error is the one that ended the agent."""
        self._errors_caught += 1
        self._error = self._error or error
        level = logging.DEBUG if isinstance(error, self._told) else logging.ERROR
        LOGGER.log(level, "agent %s %s: %s", self._agent.name, what, error, exc_info=error)
