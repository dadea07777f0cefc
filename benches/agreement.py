"""What coordinator and workers say to each other: who to be, when to run, what came of it."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from benches.native import Source, Tally

WARM_RATE_HZ: Final = 1000
WARM_BYTES_PER_S: Final = 2 << 30


def warm_rate_hz(nbytes: int) -> int:
    """Before its rounds a pair passes every slot a few times, slowly enough for both sides to touch each for the first time."""
    return min(WARM_RATE_HZ, max(WARM_BYTES_PER_S // nbytes, 1))


class Access(enum.IntEnum):
    """How a reader takes a frame. On the wire as the last number of an order."""

    BORROW = 0
    COPY = 1
    INTO = 2


@dataclass(frozen=True, slots=True)
class Setup:
    """Who a worker is. `waits` readers sleep between frames, the others poll. `place` is a name or directory of this pair alone."""

    contestant: str
    role: str
    nbytes: int
    slots: int
    place: str
    waits: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Setup:
        return cls(**json.loads(text))


def shared_memory_prefix(root: str) -> str:
    """How names in /dev/shm begin for a transport that takes no directory there. Short: a socket's path has at most 107 characters."""
    return f"bench-{root.rsplit('-', 1)[-1]}-"


@dataclass(frozen=True, slots=True)
class Order:
    """One run: it counts from `begin_ns` to `end_ns`. `rate_hz` 0 is as fast as possible."""

    begin_ns: int
    end_ns: int
    rate_hz: int = 0
    access: Access = Access.BORROW

    def to_list(self) -> list[int]:
        """The line that workers get: numbers only, so that the bare loop needs no parser."""
        return [self.begin_ns, self.end_ns, self.rate_hz, int(self.access)]

    @classmethod
    def from_list(cls, numbers: list[int]) -> Order:
        begin_ns, end_ns, rate_hz, access = numbers
        return cls(begin_ns, end_ns, rate_hz, Access(access))


class Writer(Protocol):
    """Publishes what its source hands out until that says stop."""

    def make_source(self) -> Source: ...
    def write(self, source: Source) -> Mapping[str, Any]:
        """Anything worth telling beside the counts of the source."""

    def close(self) -> None: ...


class Reader(Protocol):
    """Has every frame checked until the tally says stop."""

    def read(self, tally: Tally, access: Access) -> None: ...
    def close(self) -> None: ...
