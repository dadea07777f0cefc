"""Waiting for a file descriptor in an event loop, for as many waiters as like."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType


class Readable:
    """Waits for a descriptor by a duplicate of its own: a loop keeps one watcher for each descriptor, and others wait for the same.

    The loop watches it only while somebody waits. A descriptor that stays readable would wake the loop in every turn otherwise.
    """

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = os.dup(descriptor)

    async def wait(self) -> None:
        """Until it is readable."""
        ready = self._loop.create_future()

        def on_ready() -> None:
            self._loop.remove_reader(self._descriptor)
            # the waiter may have been cancelled in this very turn
            if not ready.done():
                ready.set_result(None)

        self._loop.add_reader(self._descriptor, on_ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(self._descriptor)

    def __enter__(self) -> Readable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._descriptor)
