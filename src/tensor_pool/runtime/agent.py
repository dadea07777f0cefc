"""What runs in a duty cycle, on a thread of its own or in the caller's loop."""

from __future__ import annotations

from typing import Protocol


class Agent(Protocol):
    """Work in small passes that never block. Everything an agent owns is touched by whoever drives it, and by nobody else."""

    @property
    def name(self) -> str: ...

    def do_work(self) -> int:
        """One pass. Returns how much there was to do; 0 lets the driver of the agent rest."""
        ...

    def close(self) -> None:
        """Called once, after the last pass, by whoever drove it."""
        ...


class AgentInvoker:
    """Drives an agent in the caller's loop: no thread, no waiting. What the agent raises reaches the caller."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._is_closed = False

    def invoke(self) -> int:
        """One pass; 0 after `close`."""
        return 0 if self._is_closed else self._agent.do_work()

    def drain(self, limit: int = 1000) -> int:
        """Passes until there is nothing to do, at most `limit`. Returns how much there was to do."""
        total = 0
        for _ in range(limit):
            work = self.invoke()
            if work <= 0:
                break
            total += work
        return total

    def close(self) -> None:
        """Close the agent, once."""
        if not self._is_closed:
            self._is_closed = True
            self._agent.close()

    def __enter__(self) -> AgentInvoker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
