"""The way of one frame, step by step: each step is the one before and one thing more, so that differences say what that thing takes.

All in one thread of one process, on the real media driver: nothing of it waits, and no cache line has to come from another core. What that
adds is in the other measures. The same process counts allocations and bytecodes.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path as FilePath
from random import shuffle
from statistics import median
from types import FrameType
from typing import Any, Final

import tensor_pool as tp
from benches import native
from benches.figures import Row, Target, row
from benches.measures import way as way_of
from benches.measures.way import FRAMES, OPERATIONS, OTHERS, WAYS, Step, Way, Work
from benches.plan import SIZES, Plan
from benches.report import STEP_UNIT
from benches.stage import BenchError, Stage, open_stage
from benches.worker import say

MEASURED: Final = ("8 KiB", "640 KiB")
BATCHES_A_ROUND: Final = 20
WARM_BATCHES: Final = 10
# what the operation before has left in the pool of buffers is not of this one
WARM_FRAMES: Final = 16
COUNTED_FRAMES: Final = 200
KNOWN_ALLOCATION: Final = 1 << 20
SETTLED_S: Final = 3.0
LIMIT_S: Final = 120.0
NONE: Final = Target("median", "<=", 0.0)
# the user's side of a frame
NOT_COUNTED: Final = (__file__, way_of.__file__)


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

    def calls(self, before: Work, work: Work) -> float:
        """Calls for one `work`, in the steady state. Those of `before` are not among them."""
        made = 0
        for turn in range(-WARM_FRAMES, COUNTED_FRAMES):
            before()
            self._begin()
            work()
            calls = self._end()
            made += calls if turn >= 0 else 0
        return made / COUNTED_FRAMES


def _bytecodes(before: Work, work: Work) -> int:
    """Bytecodes of this package that one `work` runs through. What stands in the bench is the user's."""
    before()
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode" and frame.f_code.co_filename not in NOT_COUNTED
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def _frame_ns(way: Way, steps: dict[str, tuple[Step, ...]]) -> dict[str, list[float]]:
    """Nanoseconds a frame for every step, in one round."""
    took: dict[str, list[list[int]]] = {name: [[] for _ in of_name] for name, of_name in steps.items()}
    order = [(step, batch) for name, batches in took.items() for step, batch in zip(steps[name], batches, strict=True)]
    for _ in range(BATCHES_A_ROUND):
        # nobody is always the one after the same neighbour
        shuffle(order)
        for step, batch in order:
            batch.append(way.taken(step))
    return {name: [median(batch) / FRAMES for batch in batches] for name, batches in took.items()}


def _counts(way: Way, heap: _Heap) -> dict[str, dict[str, float]]:
    counts = {
        name: {"allocations": heap.calls(*operation), "bytecodes": _bytecodes(*operation)} for name, operation in way.operations().items()
    }
    way.drain()
    return counts


def worker() -> int:
    """`directory nbytes`, then a line for each round."""
    directory, nbytes = FilePath(sys.argv[1]), int(sys.argv[2])
    heap = _Heap()
    with tp.connect() as session:
        way = Way(directory, session, session.stack, nbytes)
        steps = way.steps()
        # until the producer has heard from everybody whether he sleeps
        time.sleep(SETTLED_S)
        for _ in range(WARM_BATCHES):
            for row_of_steps in steps.values():
                for step in row_of_steps:
                    step()
        _counts(way, heap)
        say({"event": "ready"})
        for turn, _ in enumerate(sys.stdin):
            say({"event": "took", "turn": turn, "frame_ns": _frame_ns(way, steps), "counts": _counts(way, heap)})
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
                rows += _rows(label, self._measure(plan, stage, label))
        return rows

    def _measure(self, plan: Plan, stage: Stage, label: str) -> list[dict[str, Any]]:
        plan.say(f"path, {label}: starting")
        stage.start_stack()
        arguments = (stage.new_directory(), SIZES[label])
        child = stage.harness.python(
            "path", "benches.measures.path:worker", *arguments, environment={"LD_PRELOAD": str(native.ALLOCATIONS)}
        )
        child.wait_for_message(LIMIT_S, event="ready")
        rounds: list[dict[str, Any]] = []
        for turn in range(plan.rounds):
            plan.say(f"path, {label}")
            child.send(turn)
            rounds.append(child.wait_for_message(LIMIT_S, event="took", turn=turn))
            plan.advance()
        child.end_of_input()
        child.expect_exit(0)
        return rounds


def _rows(label: str, rounds: list[dict[str, Any]]) -> list[Row]:
    rows = []
    for name, steps in WAYS.items():
        for index, step in enumerate(steps):
            words = f"path, {label}: {name}, {'up to ' if index else ''}{step}"
            rows.append(row(words, STEP_UNIT, [measured["frame_ns"][name][index] for measured in rounds]))
    rows += [row(f"path, {label}: {name}", "ns", [measured["frame_ns"][name][0] for measured in rounds]) for name in OTHERS]
    for name in OPERATIONS:
        words = f"path, {label}: {name}"
        allocations = [measured["counts"][name]["allocations"] for measured in rounds]
        rows.append(row(words, "heap allocations a frame", allocations, target=NONE))
        rows.append(row(words, "bytecodes a frame", [measured["counts"][name]["bytecodes"] for measured in rounds]))
    return rows
