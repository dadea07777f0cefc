"""What a run consists of: sizes, depths, rounds, who is there, and how far it is."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from benches.figures import Row

KIB: Final = 1024
SIZES: Final = {"8 KiB": 8 * KIB, "640 KiB": 640 * KIB, "8 MiB": 8 * KIB * KIB}
DEPTHS: Final = (8, 64)
IOX: Final = "iceoryx2"
ZENOH: Final = "eclipse-zenoh"


@dataclass(frozen=True, slots=True)
class Peers:
    """Which peers are installed, and the sentences about those that are not."""

    versions: dict[str, str]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def find(cls, packages: Sequence[str] = (IOX, ZENOH)) -> Peers:
        versions, notes = {}, []
        for package in packages:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                notes.append(f"{package} is not installed: its rows, and the targets held against it, are missing.")
        return cls(versions, notes)

    def has(self, package: str) -> bool:
        return package in self.versions


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int
    seconds: float
    latency_seconds: float
    peers: Peers
    is_quick: bool
    """Whoever has no target, and is nobody's, is left out, and a depth where the other says as much."""
    say: Callable[[str], None]
    """What is being done now."""
    advance: Callable[[], None]
    """One step of `Measure.steps` is done."""


class Measure(Protocol):
    """One part of the bench."""

    @property
    def name(self) -> str: ...
    def steps(self, plan: Plan) -> int:
        """How many times `plan.advance` will be called."""

    def run(self, plan: Plan) -> list[Row]: ...
