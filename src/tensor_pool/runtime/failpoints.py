"""Named places where a test can make this process fail at an exact moment.

Nothing is armed in production: `reach` is then one look into an empty dictionary. The native module has the same actions, under names
of its own.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import dataclass
from typing import Final, Literal, get_args

Action = Literal["kill", "pause", "error", "delay"]
ACTIONS: Final = get_args(Action)


@dataclass(slots=True)
class _Armed:
    action: Action
    skip: int
    delay_ns: int
    error_number: int


# Process-wide on purpose: the code that reaches a failpoint must not know who armed it.
_armed: dict[str, _Armed] = {}
_lock = threading.Lock()


def arm(name: str, action: Action, *, skip: int = 0, delay_ns: int = 0, error_number: int = errno.EIO) -> None:
    """At the (`skip` + 1)th passing of `name`: SIGKILL or SIGSTOP to this process, an OSError, or a delay."""
    if action not in ACTIONS:
        raise ValueError(f"failpoint {name!r}: unknown action {action!r}, one of {', '.join(ACTIONS)}")
    with _lock:
        _armed[name] = _Armed(action, skip, delay_ns, error_number)


def disarm(name: str | None = None) -> None:
    """Forget one failpoint, or all."""
    with _lock:
        if name is None:
            _armed.clear()
        else:
            _armed.pop(name, None)


def reach(name: str) -> None:
    """Called by the code under test at the place that `name` says."""
    if _armed:
        _fire(name)


def _fire(name: str) -> None:
    with _lock:
        armed = _armed.get(name)
        if armed is None:
            return
        if armed.skip > 0:
            armed.skip -= 1
            return
        if armed.action != "delay":
            del _armed[name]
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif armed.action == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif armed.action == "delay":
        threading.Event().wait(armed.delay_ns / 1e9)
    else:
        raise OSError(armed.error_number, f"{os.strerror(armed.error_number)} (failpoint {name})")
