"""Control messages on their way out, in order, each until its deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from tensor_pool.driver.counters import DriverCounters

DEADLINE_NS: Final = 2_000_000_000
"""Whoever asked has asked again by then."""
MOST_WAITING: Final = 32_768


class Outbox:
    """Sends at once where Aeron takes it; otherwise keeps the order and tries again each cycle."""

    def __init__(self, send: Callable[[bytes], bool], counters: DriverCounters) -> None:
        self._send = send
        self._counters = counters
        self._waiting: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, message: bytes, now_ns: int) -> None:
        if not self._waiting and self._send(message):
            self._counters.messages_sent += 1
        elif len(self._waiting) < MOST_WAITING:
            self._waiting.append((now_ns + DEADLINE_NS, message))
        else:
            self._counters.messages_unsent += 1

    def do_work(self, now_ns: int) -> int:
        sent = 0
        while self._waiting:
            deadline_ns, message = self._waiting[0]
            if self._send(message):
                self._counters.messages_sent += 1
                sent += 1
            elif now_ns > deadline_ns:
                self._counters.messages_unsent += 1
            else:
                break
            self._waiting.popleft()
        return sent
