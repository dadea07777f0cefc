"""The way of one frame, step by step: each step is the one before and one thing more, so that differences say what that thing takes.

All in one thread of one process, on the real media driver: nothing of it waits, and no cache line has to come from another core. What that
adds is in the other measures. The same process counts allocations and bytecodes.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path as FilePath
from random import shuffle
from statistics import median
from types import FrameType
from typing import Any, Final

import numpy as np

import tensor_pool as tp
from benches import native
from benches.figures import Row, Target, row
from benches.payloads import Words, windows
from benches.plan import SIZES, Plan
from benches.report import STEP_UNIT
from benches.stage import BenchError, Stage, open_stage
from benches.worker import say
from tensor_pool import _native
from tensor_pool.runtime import StackDescription
from tensor_pool.sbe.control import Dtype
from tensor_pool.shm.layout import HEADER_SLOT_BYTES, SUPERBLOCK_BYTES
from tensor_pool.transport import TransportClient, exclusive_channel, subscription_channel

SLOTS: Final = 64
# fewer than a reader may lag behind
FRAMES: Final = 16
MEASURED: Final = ("8 KiB", "640 KiB")
STREAM: Final = 10_000
LONE_STREAM: Final = 10_001
EPOCH: Final = 1
DESCRIPTORS: Final = 7_777
BATCHES_A_ROUND: Final = 40
WARM_BATCHES: Final = 10
COUNTED_FRAMES: Final = 1000
KNOWN_ALLOCATION: Final = 1 << 20
SETTLED_S: Final = 3.0
LIMIT_S: Final = 120.0
NONE: Final = Target("median", at_most=0.0)

WRITE: Final = "publish"
BORROW: Final = "borrow"
READ: Final = "read"
WAYS: Final = {
    WRITE: (
        "memcpy",
        "slot header, commit",
        "call from Python, checks",
        "descriptor",
        "session, a look at who sleeps",
    ),
    BORROW: ("header checks", "descriptor, books, call from Python", "numpy array", "with block, last check, session"),
    READ: ("memcpy", "header checks", "descriptor, books, call from Python", "numpy array", "session"),
}
# a wake of nobody: what a publish took before it looked at who sleeps
WOKEN: Final = "publish with a wake each time"
OPERATIONS: Final = ("publish", "claim", "borrow", "read", "read_into")
Step = Callable[[], int]


class _Lone:
    """Writers, publication and reader of our own: the parts of a session, one by one, on a ring that is there."""

    def __init__(self, directory: FilePath, stack: StackDescription, frame: Words) -> None:
        self._transport = TransportClient(stack.aeron_dir)
        channel, nbytes = stack.descriptor_channel, frame.nbytes
        self._publication = self._transport.publish(exclusive_channel(channel, "16m"), DESCRIPTORS)
        subscription = self._transport.subscribe(subscription_channel(channel), DESCRIPTORS)
        # the core's ring, mapped once more: two rings of 40 MiB would differ by more than a step adds
        header, pool = (
            _native.Region.open(str(directory / name), [str(directory)], writable=True, minimum_length=SUPERBLOCK_BYTES + length * SLOTS)
            for name, length in (("header.ring", HEADER_SLOT_BYTES), ("pool", nbytes))
        )
        for region in (header, pool):
            region.prefault()
        pools = [(1, nbytes, pool)]

        def writer(publication: _native.Publication | None) -> _native.RingWriter:
            made = _native.RingWriter(header, pools, nslots=SLOTS, stream_id=LONE_STREAM, epoch=EPOCH, publication=publication)
            made.declare(frame.dtype, Dtype.UINT64, frame.shape, publish_timestamp=False)
            made.set_waiters(False)
            return made

        self.silent, self.announcing = writer(None), writer(self._publication)
        self.reader = _native.FrameReader(subscription, stream_id=LONE_STREAM)
        self.reader.map(header, pools, nslots=SLOTS, epoch=EPOCH, first_seq=0, max_outstanding_gap=SLOTS // 2)
        while not self._publication.is_connected:
            time.sleep(0.001)

    def close(self) -> None:
        for part in (self.silent, self.announcing, self.reader, self._publication):
            part.close()
        self._transport.close()


def _timed(work: Callable[[], object]) -> int:
    turns = range(FRAMES)
    began_ns = time.perf_counter_ns()
    for _ in turns:
        work()
    return time.perf_counter_ns() - began_ns


class _Way:
    """Every step of every way, as something that takes `FRAMES` frames and says how long that took."""

    def __init__(self, directory: FilePath, session: tp.Session, stack: StackDescription, nbytes: int) -> None:
        self.frame = windows(nbytes)[0]
        self.out = np.ones_like(self.frame)
        self._core = native.module().CoreRing(str(directory), nbytes, SLOTS)
        self._lone = _Lone(directory, stack, self.frame)
        self.producer = session.producer(STREAM, shape=self.frame.shape, dtype=self.frame.dtype, slots=SLOTS)
        self.consumer = session.consumer(STREAM)

    def close(self) -> None:
        self._lone.close()

    def steps(self) -> dict[str, tuple[Step, ...]]:
        core, lone, frame, address = self._core, self._lone, self.frame, self.frame.ctypes.data
        producer, consumer = self.producer, self.consumer

        def silent() -> int:
            return _timed(lambda: lone.silent.publish_declared(frame))

        def announced(*, wakes: bool) -> int:
            lone.announcing.set_waiters(wakes)
            took_ns = _timed(lambda: lone.announcing.publish_declared(frame))
            self._drop(lambda: lone.reader.borrow(0))
            return took_ns

        def published() -> int:
            took_ns = _timed(lambda: producer.publish(frame))
            self._drop(lambda: consumer.latest(0))
            return took_ns

        def native_read(work: Callable[[], object]) -> int:
            lone.announcing.set_waiters(False)
            for _ in range(FRAMES):
                lone.announcing.publish_declared(frame)
            return _timed(work)

        def read(work: Callable[[], object]) -> int:
            for _ in range(FRAMES):
                producer.publish(frame)
            return _timed(work)

        def in_core(work: Callable[[int], int]) -> int:
            core.write_ns(address, FRAMES)
            return work(FRAMES)

        def borrow() -> None:
            with consumer.borrow(0) as view:
                _ = view.array

        return {
            WRITE: (
                lambda: core.copy_in_ns(address, FRAMES),
                lambda: core.write_ns(address, FRAMES),
                silent,
                lambda: announced(wakes=False),
                published,
            ),
            WOKEN: (lambda: announced(wakes=True),),
            BORROW: (
                lambda: in_core(core.borrow_ns),
                lambda: native_read(lambda: lone.reader.borrow(0)),
                lambda: native_read(lambda: lone.reader.borrow(0).array),  # type: ignore[union-attr]
                lambda: read(borrow),
            ),
            READ: (
                lambda: in_core(core.copy_out_ns),
                lambda: in_core(core.read_ns),
                lambda: native_read(lambda: lone.reader.read(0)),
                lambda: native_read(lambda: lone.reader.read(0).array),  # type: ignore[union-attr]
                lambda: read(lambda: consumer.read(0).array),  # type: ignore[union-attr]
            ),
        }

    @staticmethod
    def _drop(read: Callable[[], object]) -> None:
        while read() is not None:
            pass

    def operations(self) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
        """(what comes before, the operation), for each that is counted."""
        producer, consumer, frame, out = self.producer, self.consumer, self.frame, self.out

        def publish() -> None:
            producer.publish(frame)

        def claim() -> None:
            with producer.claim() as slot:
                _ = slot.array

        def borrow() -> None:
            with consumer.borrow(0) as view:
                _ = view.array

        def read() -> None:
            _ = consumer.read(0).array  # type: ignore[union-attr]

        def read_into() -> None:
            if consumer.read_into(out, 0) is None:
                raise BenchError("a frame was published and none came")

        return {
            "publish": (lambda: None, publish),
            "claim": (lambda: None, claim),
            "borrow": (publish, borrow),
            "read": (publish, read),
            "read_into": (publish, read_into),
        }


class _Heap:
    """The calls of this thread to malloc and its like: this process has the counter in front of the C library's heap."""

    def __init__(self) -> None:
        process = ctypes.PyDLL(None)
        self._begin, self._end = process.allocations_begin, process.allocations_end
        self._end.restype = ctypes.c_uint64
        self._begin()
        known = bytearray(KNOWN_ALLOCATION)
        if self._end() == 0 or len(known) != KNOWN_ALLOCATION:
            raise BenchError("the counter of allocations does not see this process's heap")

    def calls(self, before: Callable[[], object], work: Callable[[], object]) -> float:
        """Calls for one `work`, in the steady state. Those of `before` are not among them."""
        made = 0
        for _ in range(COUNTED_FRAMES):
            before()
            self._begin()
            work()
            made += self._end()
        return made / COUNTED_FRAMES


def _bytecodes(before: Callable[[], object], work: Callable[[], object]) -> int:
    """Bytecodes of this package that one `work` runs through. What stands in this file is the user's."""
    before()
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode" and frame.f_code.co_filename != __file__
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def worker() -> int:
    """`directory nbytes`, then a line for each round."""
    directory, nbytes = FilePath(sys.argv[1]), int(sys.argv[2])
    heap = _Heap()
    with tp.connect() as session:
        way = _Way(directory, session, session.stack, nbytes)
        steps = way.steps()
        # until the producer has heard from everybody whether he sleeps
        time.sleep(SETTLED_S)
        for _ in range(WARM_BATCHES):
            for row_of_steps in steps.values():
                for step in row_of_steps:
                    step()
        counts = {
            name: {"allocations": heap.calls(*operation), "bytecodes": _bytecodes(*operation)}
            for name, operation in way.operations().items()
        }
        while way.consumer.latest(0) is not None:
            pass
        say({"event": "counts", **counts})
        for turn, _ in enumerate(sys.stdin):
            took: dict[str, list[list[int]]] = {name: [[] for _ in of_name] for name, of_name in steps.items()}
            order = [(step, batch) for name, batches in took.items() for step, batch in zip(steps[name], batches, strict=True)]
            for _ in range(BATCHES_A_ROUND):
                # what a step finds in the cache depends on who was there before
                shuffle(order)
                for step, batch in order:
                    batch.append(step())
            frame_ns = {name: [median(batch) / FRAMES for batch in batches] for name, batches in took.items()}
            say({"event": "took", "turn": turn, "frame_ns": frame_ns})
        way.close()
    return 0


class Path:
    """What each step takes, how often the heap is asked, and how much Python runs."""

    name = "path"

    def steps(self, plan: Plan) -> int:
        return len(MEASURED) * plan.rounds

    def run(self, plan: Plan) -> list[Row]:
        rows: list[Row] = []
        for label in MEASURED:
            with open_stage() as stage:
                rows += self._measure(plan, stage, label)
        return rows

    def _measure(self, plan: Plan, stage: Stage, label: str) -> list[Row]:
        plan.say(f"path, {label}: starting")
        stage.start_stack()
        directory = stage.directories.shm_base_dir / "path"
        directory.mkdir()
        child = stage.harness.python(
            "path", "benches.measures.path:worker", directory, SIZES[label], environment={"LD_PRELOAD": str(native.ALLOCATIONS)}
        )
        counts = child.wait_for_message(LIMIT_S, event="counts")
        rounds: list[dict[str, list[float]]] = []
        for turn in range(plan.rounds):
            plan.say(f"path, {label}")
            child.send(turn)
            rounds.append(child.wait_for_message(LIMIT_S, event="took", turn=turn)["frame_ns"])
            plan.advance()
        child.end_of_input()
        child.expect_exit(0)
        rows = []
        for name, steps in WAYS.items():
            for index, step in enumerate(steps):
                words = f"path, {label}: {name}, {'up to ' if index else ''}{step}"
                rows.append(row(words, STEP_UNIT, [measured[name][index] for measured in rounds]))
        rows.append(row(f"path, {label}: {WOKEN}", "ns", [measured[WOKEN][0] for measured in rounds]))
        for name in OPERATIONS:
            words = f"path, {label}: {name}"
            rows.append(row(words, "heap allocations a frame", [counts[name]["allocations"]], target=NONE))
            rows.append(row(words, "bytecodes a frame", [counts[name]["bytecodes"]]))
        return rows
