"""Make a process fail at a named step: `with failpoint("ring.after_payload", "kill"): ...`, or in a child by its environment.

Names of the native module (`tensor_pool._native.failpoint_names()`) and of Python code (`tensor_pool.runtime.failpoints.reach`) live in one
space.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import cast

from tensor_pool.environment import FAILPOINTS
from tensor_pool.runtime import failpoints


def _native() -> ModuleType:
    """Loaded where it is needed: the pytest plugin comes before any native code."""
    from tensor_pool import _native as native

    return native


@dataclass(frozen=True, slots=True)
class Failpoint:
    """Where, what, and after how many passings. `error_number` names an errno (`ENOSPC`) for the action `error` in Python code."""

    name: str
    action: failpoints.Action
    skip: int = 0
    delay_ns: int = 0
    error_number: str = "EIO"

    def __str__(self) -> str:
        return f"{self.name}={self.action}:{self.skip}:{self.delay_ns}:{self.error_number}"

    @classmethod
    def parse(cls, text: str) -> Failpoint:
        name, _, rest = text.partition("=")
        parts = rest.split(":")
        if not name or len(parts) > 4 or parts[0] not in failpoints.ACTIONS:
            raise ValueError(f"not a failpoint: {text!r}, expected name=action[:skip[:delay_ns[:errno]]]")
        action = cast("failpoints.Action", parts[0])
        numbers = [int(part) for part in parts[1:3]] + [0, 0][len(parts[1:3]) :]
        return cls(name, action, numbers[0], numbers[1], parts[3] if len(parts) == 4 else "EIO")

    def arm(self) -> None:
        native = _native()
        if self.name in native.failpoint_names():
            native.failpoint_arm(self.name, self.action, skip=self.skip, delay_ns=self.delay_ns)
        else:
            error_number = getattr(errno, self.error_number)
            failpoints.arm(self.name, self.action, skip=self.skip, delay_ns=self.delay_ns, error_number=error_number)

    def disarm(self) -> None:
        native = _native()
        if self.name in native.failpoint_names():
            native.failpoint_disarm(self.name)
        else:
            failpoints.disarm(self.name)


@contextmanager
def failpoint(name: str, action: failpoints.Action, *, skip: int = 0, delay_ns: int = 0, error_number: str = "EIO") -> Iterator[Failpoint]:
    """Armed inside the block, disarmed after it whatever happened."""
    point = Failpoint(name, action, skip, delay_ns, error_number)
    point.arm()
    try:
        yield point
    finally:
        point.disarm()


def failpoint_environment(points: Iterable[Failpoint]) -> dict[str, str]:
    """What a child process needs in its environment; `tensor_pool.testing.child` arms them before anything else runs."""
    text = ";".join(str(point) for point in points)
    return {FAILPOINTS: text} if text else {}


def arm_from_environment(environ: Mapping[str, str] = os.environ) -> list[Failpoint]:
    """Arm what the parent asked for."""
    points = [Failpoint.parse(text) for text in environ.get(FAILPOINTS, "").split(";") if text]
    for point in points:
        point.arm()
    return points
