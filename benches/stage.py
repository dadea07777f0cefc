"""Where a measure takes place: isolated directories, a stack in a process of its own, and pairs of a writer and a reader."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benches.agreement import Access, Order, Setup, shared_memory_prefix, warm_rate_hz
from benches.native import BARE_LOOP, ROOT
from tensor_pool.testing import ChildFailedError, ChildProcess, IsolatedDirectories, ProcessHarness, isolated_directories, unused_udp_port

# both sides are at work when the run begins to count
LEAD_NS: Final = 60_000_000
START_LIMIT_S: Final = 60.0
RESULT_LIMIT_S: Final = 20.0
# half of them a reader may be late for
WARM_LAPS: Final = 4
WARM_FRAMES: Final = 100
SHARED_MEMORY: Final = Path("/dev/shm")


class BenchError(Exception):
    """A run whose figures mean nothing: frames that do not add up, or none at all."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one round of one pair came to."""

    seconds: float
    offered: int
    dropped: int
    refused: int
    accepted: int
    overwritten: int
    lost: int
    p50_ns: int
    p99_ns: int
    mean_ns: int
    writer_cpu: float
    reader_cpu: float
    stack_cpu: float
    more: dict[str, Any]

    @property
    def published_hz(self) -> float:
        """Frames that somebody was told of: what a transport does not take, or does not announce, nobody will read."""
        return (self.offered - self.dropped - self.refused) / self.seconds

    @property
    def received_hz(self) -> float:
        return self.accepted / self.seconds

    @property
    def dropped_share(self) -> float:
        """Part of the frames that the writer's transport did not take, or did not announce."""
        return (self.dropped + self.refused) / max(self.offered, 1)

    @property
    def lag_frames(self) -> float:
        """How many frames the writer is ahead when the reader gets one, on average: what it publishes in the time that a frame takes."""
        return self.mean_ns / 1e9 * self.offered / self.seconds

    @property
    def lost_share(self) -> float:
        """Part of the frames that the reader did not get, or got and lost while it looked at them."""
        return self.lost / max(self.lost + self.accepted, 1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pair to be started. `writer` is another contestant that writes in its stead; `readers` more than one read the same frames."""

    name: str
    contestant: str
    nbytes: int
    slots: int
    waits: bool = False
    writer: str | None = None
    readers: int = 1


@dataclass(frozen=True, slots=True)
class Pair:
    """A writer and a reader of one contestant, ready. `others` read what the reader reads."""

    name: str
    writer: ChildProcess
    reader: ChildProcess
    setup: Setup
    others: tuple[ChildProcess, ...] = ()

    @property
    def children(self) -> tuple[ChildProcess, ...]:
        return self.writer, self.reader, *self.others


class Stage:
    """Made by `open_stage`."""

    def __init__(self, directories: IsolatedDirectories, harness: ProcessHarness) -> None:
        self.directories = directories
        self.harness = harness
        self._numbers = itertools.count(1)
        self._stack: ChildProcess | None = None

    def start_stack(self) -> ChildProcess:
        """`tensor-pool up`, with its defaults."""
        config = self.directories.root / "stack.toml"
        config.write_text(f'[shm]\nbase_dir = "{self.directories.shm_base_dir}"\n')
        self._stack = self.harness.python("stack", "tensor_pool.cli.main:main", "up", "--json", "--config", config)
        self._stack.wait_for_message(event="ready", timeout_s=START_LIMIT_S)
        return self._stack

    def pairs(self, wanted: Sequence[Wanted]) -> list[Pair]:
        """Start a writer and a reader of each, and have them touch every slot."""
        setups = []
        for want in wanted:
            place = self._place(want.contestant, next(self._numbers))
            reader = Setup(want.contestant, "reader", want.nbytes, want.slots, place, want.waits)
            writer = Setup(want.writer or want.contestant, "writer", want.nbytes, want.slots, place, want.waits)
            setups.append({"reader": reader, "writer": writer})
        # a zenoh writer connects to its reader, everybody else's reader looks for what the writer made
        roles = [("reader", "writer") if want.contestant == "zenoh_peer" else ("writer", "reader") for want in wanted]
        started: list[dict[str, ChildProcess]] = [{} for _ in wanted]
        for step in (0, 1):
            for want, children, setup, order in zip(wanted, started, setups, roles, strict=True):
                children[order[step]] = self._start(f"{want.name}-{order[step]}".replace(" ", "-"), setup[order[step]])
            for children, order in zip(started, roles, strict=True):
                children[order[step]].wait_for_message(event="ready", timeout_s=START_LIMIT_S)
        pairs = [
            Pair(want.name, children["writer"], children["reader"], setup["reader"], self._others(want, setup["reader"]))
            for want, children, setup in zip(wanted, started, setups, strict=True)
        ]
        for pair in pairs:
            access = Access.COPY if pair.setup.contestant == "zenoh_peer" else Access.BORROW
            rate_hz = warm_rate_hz(pair.setup.nbytes)
            self.run(pair, max(WARM_LAPS * pair.setup.slots, WARM_FRAMES) / rate_hz, rate_hz=rate_hz, access=access)
        return pairs

    def _others(self, want: Wanted, setup: Setup) -> tuple[ChildProcess, ...]:
        others = tuple(self._start(f"{want.name}-reader-{number}".replace(" ", "-"), setup) for number in range(2, want.readers + 1))
        for other in others:
            other.wait_for_message(event="ready", timeout_s=START_LIMIT_S)
        return others

    def new_directory(self) -> str:
        """For a ring that belongs to no stream: on the file system that streams are on."""
        directory = self.directories.shm_base_dir / f"ring-{next(self._numbers)}"
        directory.mkdir()
        return str(directory)

    def _place(self, contestant: str, number: int) -> str:
        match contestant:
            case "bare_loop" | "bare_python":
                return self.new_directory()
            case "zenoh_peer":
                return f"tcp/127.0.0.1:{unused_udp_port()}"
            case "iceoryx2_peer":
                return f"{self.directories.root}/{number}"
            case _:
                return str(10_000 + number)

    def _start(self, name: str, setup: Setup) -> ChildProcess:
        if setup.contestant == "bare_loop":
            return self.harness.start(name, [str(BARE_LOOP), setup.role, setup.place, str(setup.nbytes), str(setup.slots)])
        return self.harness.python(name, "benches.worker:main", setup.to_json())

    def run(self, pair: Pair, seconds: float, *, rate_hz: int = 0, access: Access = Access.BORROW) -> Run:
        """One round. Nobody looks at anything while it counts."""
        begin_ns = time.monotonic_ns() + LEAD_NS
        end_ns = begin_ns + int(seconds * 1e9)
        order = Order(begin_ns, end_ns, rate_hz, access).to_list()
        for child in reversed(pair.children):
            child.send(order)
        _sleep_until(begin_ns)
        stack_s = self._stack_cpu_s()
        _sleep_until(end_ns)
        stack_s = self._stack_cpu_s() - stack_s
        results = [child.wait_for_message(RESULT_LIMIT_S, event="result", begin_ns=begin_ns) for child in pair.children]
        for found in results[1:]:
            if found["wrong"]:
                raise BenchError(f"{pair.name}: {found['wrong']} frames beside {found['accepted']} do not add up, or came in no order")
            if not found["accepted"]:
                raise BenchError(f"{pair.name}: no frame of {results[0]['offered']} was received")
        # of many readers the one that lost most
        wrote, read = results[0], max(results[1:], key=lambda found: found["lost"])
        return Run(
            seconds=seconds,
            offered=wrote["offered"],
            dropped=wrote["dropped"],
            refused=wrote.get("refused", 0),
            accepted=read["accepted"],
            overwritten=read["overwritten"],
            lost=read["lost"],
            p50_ns=read["p50_ns"],
            p99_ns=read["p99_ns"],
            mean_ns=read["mean_ns"],
            writer_cpu=wrote["cpu_s"] / wrote["wall_s"],
            reader_cpu=read["cpu_s"] / read["wall_s"],
            stack_cpu=stack_s / seconds,
            more={name: value for name, value in wrote.items() if name.startswith("beyond_")},
        )

    def _stack_cpu_s(self) -> float:
        return 0.0 if self._stack is None else cpu_s(self._stack)

    def end(self, pairs: Sequence[Pair]) -> None:
        """Have these pairs finish and close what they opened."""
        children = [child for pair in pairs for child in pair.children]
        for child in children:
            child.end_of_input()
        for child in children:
            child.expect_exit(0)


def cpu_s(child: ChildProcess) -> float:
    """Processor time of all threads of a process, in seconds."""
    # the kernel's name for the processor clock of another process (clock_getcpuclockid): /proc counts in ticks of 10 ms only
    return time.clock_gettime((~child.pid << 3) | 2)


def _sleep_until(moment_ns: int) -> None:
    time.sleep(max(moment_ns - time.monotonic_ns(), 0) / 1e9)


@contextmanager
def open_stage() -> Iterator[Stage]:
    """A stage; every process and file of it is gone afterwards."""
    with isolated_directories() as directories:
        environment = {**directories.environment(), "PYTHONPATH": str(ROOT), "RUST_BACKTRACE": "0"}
        with ProcessHarness(environment=environment, name="bench") as harness:
            try:
                yield Stage(directories, harness)
            except ChildFailedError as error:
                raise BenchError(str(error)) from error
            finally:
                for leftover in SHARED_MEMORY.glob(f"{shared_memory_prefix(str(directories.root))}*"):
                    leftover.unlink()
