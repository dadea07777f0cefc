"""Waiting for what other threads and processes bring about."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from tensor_pool.errors import TransportError

_Driver = TypeVar("_Driver")
DEADLINE_S = 20.0


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "did not come about in time"
        time.sleep(0.002)


def once_it_is_free(start: Callable[[], _Driver]) -> _Driver:
    """A media driver on a directory that a killed one keeps busy for its driver time-out, and that nothing but this may be wrong with."""
    started: list[_Driver] = []

    def starts() -> bool:
        try:
            started.append(start())
        except TransportError as error:
            if error.code != errno.EBUSY:
                raise
        return bool(started)

    wait_until(starts)
    return started[0]
