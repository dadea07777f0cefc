"""What an experiment is: a name, what it shows, and a run that ends in an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tensor_pool.testing import IsolatedDirectories, ProcessHarness, isolated_directories

TOOLS = Path(__file__).resolve().parent.parent
ROOT = TOOLS.parent


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out. Problems make it failed; a reason to be void says that the run could not have failed and so shows nothing."""

    figures: Mapping[str, Any]
    problems: Sequence[str] = ()
    void: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        return not self.problems and not self.void


@dataclass(frozen=True, slots=True)
class Context:
    """What a run is given."""

    seed: int
    evidence_dir: Path
    scale: float = 1.0
    is_long: bool = False
    """The counts of `make soak`."""
    progress: Callable[[float, str], None] = field(default=lambda fraction, words: None)

    def count(self, check: int, long: int | None = None) -> int:
        """How often something is done: `check` times, or `long` times in a soak; fewer with a smaller scale, at least once."""
        full = long if self.is_long and long is not None else check
        return max(1, round(full * self.scale))

    @contextmanager
    def bench(self, name: str) -> Iterator[Bench]:
        """Directories and processes of one run."""
        with isolated_directories() as directories:
            environment = {**directories.environment(), "PYTHONPATH": str(TOOLS)}
            with ProcessHarness(self.evidence_dir, environment=environment, name=name) as harness:
                yield Bench(directories, harness)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a run takes place."""

    directories: IsolatedDirectories
    harness: ProcessHarness

    def log(self, name: str) -> Path:
        """A file for the history that a worker writes; kept with the evidence."""
        return self.harness.directory / f"{name}.events"


class Experiment(Protocol):
    """One row of the table in docs/reliability.md."""

    @property
    def name(self) -> str: ...

    @property
    def what(self) -> str: ...

    def run(self, context: Context) -> Outcome: ...


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0
