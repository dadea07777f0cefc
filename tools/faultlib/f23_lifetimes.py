"""F23: things are closed, collected, forked and dropped in any order: no crash, kept frames keep their bytes, what is closed says so."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import random
import re
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import tensor_pool as tp
from faultlib.experiment import Bench, Context, Outcome
from faultlib.orders import Orders, say, settings
from faultlib.stacks import DEFAULT_PERIOD_MS, StackProcess
from faultlib.workers import ATTACH_LIMIT_S, WORD
from tensor_pool.client.consumer import Consumer
from tensor_pool.client.producer import Producer
from tensor_pool.consumer.frame import BorrowedFrame, Frame
from tensor_pool.errors import ClosedError, FrameOverwrittenError
from tensor_pool.session import Session
from tensor_pool.testing import ChildProcess, check_frame, stamp_frame

ROUNDS = 1000
JUGGLERS = 2
CAMERA_STREAM = 10_001
FRAME_BYTES = 16 << 10
SLOTS = 8
CAMERA_PAUSE_S = 0.002
READ_S = 5.0
MOST_KEPT = 24
ROUND_LIMIT_S = 120.0
SESSION_CHANCE = 0.3
FORK_CHANCE = 0.15
# what must have happened now and then, or the run shows nothing
NEEDED = ("closed", "closed twice", "dropped", "forked", "left to a thread", "collected", "overwritten while lent", "kept for many laps")
# reads of each round by the consumer that lives on: it has the pool whose buffers come round
BURST = 15
REUSES_NEEDED = 1000
RSS_GROWTH_MIB = 32.0


class Lifetimes:
    """Two processes that juggle sessions, handles, frames, views and claims while a camera of another process overwrites its small ring."""

    name = "F23"
    what = "Python lifetimes"

    def run(self, context: Context) -> Outcome:
        rounds = context.count(ROUNDS)
        with context.bench("F23") as bench:
            StackProcess(bench, announce_period_ms=DEFAULT_PERIOD_MS, lease_interval_ms=DEFAULT_PERIOD_MS)
            camera = _camera(bench)
            jugglers = [_juggler(bench, number, rounds // JUGGLERS, context.seed) for number in range(JUGGLERS)]
            for juggler in jugglers:
                _wait(juggler, bench, lambda fraction: context.progress(fraction, "rounds"))
            camera.send({"order": "stop"})
            camera.expect_exit(0)
            results = [juggler.wait_for_message(event="done") for juggler in jugglers]
        counts: Counter[str] = Counter()
        for result in results:
            counts.update(result["counts"])
        problems = [f"{result['name']}: {problem}" for result in results for problem in result["problems"]]
        void = [f"nothing was {what}" for what in NEEDED if not counts[what]] if context.scale >= 1 else []
        if counts["memory used again"] < REUSES_NEEDED * min(context.scale, 1.0):
            void.append(f"only {counts['memory used again']} frames came in memory that another one had before")
        figures = {"rounds": sum(result["rounds"] for result in results), **dict(sorted(counts.items()))}
        grown_mib = max(result["rss_growth_mib"] for result in results)
        if grown_mib > RSS_GROWTH_MIB:
            problems.append(f"memory grew by {grown_mib} MiB")
        return Outcome(
            {**figures, "rss_growth_mib": grown_mib, "left_behind": [result["left_behind"] for result in results]}, problems, void
        )


def _camera(bench: Bench) -> ChildProcess:
    options = {
        "stream_id": CAMERA_STREAM,
        "nbytes": FRAME_BYTES,
        "slots": SLOTS,
        "pause_s": CAMERA_PAUSE_S,
        "log": str(bench.log("camera")),
    }
    camera = bench.harness.python("camera", "faultlib.workers:producer_process", json.dumps(options))
    camera.send({"order": "attach"})
    camera.wait_for_message(event="attached")
    camera.send({"order": "publish"})
    return camera


def _juggler(bench: Bench, number: int, rounds: int, seed: int) -> ChildProcess:
    options = {"name": f"juggler {number}", "rounds": rounds, "seed": seed + number, "stream_id": CAMERA_STREAM + 1 + number}
    return bench.harness.python(f"juggler-{number}", "faultlib.f23_lifetimes:juggler_process", json.dumps(options))


def _wait(juggler: ChildProcess, bench: Bench, progress: Callable[[float], None]) -> None:
    """Until it has ended; a juggler that does not get on is a failure with its stacks."""
    seen, since_s = -1, time.monotonic()
    while juggler.is_running:
        bench.harness.require_running()
        done = (juggler.messages() or [{}])[-1]
        if done.get("round", seen) != seen:
            seen, since_s = done["round"], time.monotonic()
            progress(done["round"] / done["rounds"])
        if time.monotonic() - since_s > ROUND_LIMIT_S:
            juggler.wait(0.1)
        time.sleep(0.2)
    juggler.expect_exit(0)


# --- the process ---------------------------------------------------------------------------------------------------


def juggler_process() -> None:
    options = settings()
    Orders()
    # Aeron and numpy keep a few descriptors and threads of their own once they were used
    _Juggler(options, rounds=3).run()
    before, before_mib = _belongings(), _resident_mib()
    juggler = _Juggler(options, rounds=options["rounds"])
    juggler.run()
    left = dict(_belongings() - before)
    grown_mib = round(_resident_mib() - before_mib, 1)
    if left:
        juggler.problems.append(f"left behind: {left}")
    say(
        "done",
        name=options["name"],
        rounds=options["rounds"],
        counts=juggler.counts,
        problems=juggler.problems[:20],
        left_behind=left,
        rss_growth_mib=grown_mib,
    )


def _belongings() -> Counter[str]:
    """What a process holds of the system: descriptors by what they lead to, threads by name, and mapped rings."""
    # what one pass frees may be all that held on to the next
    while gc.collect():
        pass
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found[re.sub(r"\d+", "", os.readlink(descriptor))] += 1
    for task in Path("/proc/self/task").iterdir():
        found[f"thread {(task / 'comm').read_text().strip()}"] += 1
    found["mapped rings"] = sum(line.rstrip().endswith((".ring", ".pool")) for line in Path("/proc/self/maps").read_text().splitlines())
    return found


def _resident_mib() -> float:
    # what the allocator keeps for later is nobody's
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss / (1 << 20)


class _Kept:
    """What the user holds on to of a frame's bytes, and how to see whether they are still those."""

    def __init__(self, array: np.ndarray[Any, Any], seq: int) -> None:
        self.array = array
        self.seq = seq
        self._expected = array.tobytes()

    def is_whole(self) -> bool:
        return self.array.tobytes() == self._expected


class _Juggler:
    """One round: make things, use them, let go of them in random order and manner. Some live on into later rounds."""

    def __init__(self, options: dict[str, Any], rounds: int) -> None:
        self._options = options
        self._rounds = rounds
        self._choice = random.Random(options["seed"])  # noqa: S311 - not a secret
        self._session: Session | None = None
        self._kept: list[_Kept] = []
        self._held: list[Any] = []
        self._addresses: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self) -> None:
        with tp.connect() as session, session.consumer(CAMERA_STREAM, wait=ATTACH_LIMIT_S) as steady:
            for number in range(self._rounds):
                self._round()
                self._burst(steady)
                if number % 10 == 0:
                    say("progress", round=number, rounds=self._rounds)
        self._check()
        self._kept.clear()
        self._held.clear()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _round(self) -> None:
        choice = self._choice
        if self._session is None or choice.random() < SESSION_CHANCE:
            self._replace_session()
        session = self._session
        assert session is not None
        handles: list[Any] = [session.consumer(CAMERA_STREAM, wait=ATTACH_LIMIT_S)]
        if choice.random() < 0.5:
            handles.append(session.producer(self._options["stream_id"], shape=FRAME_BYTES, dtype="uint8", slots=SLOTS))
        uses = [self._use(handle) for handle in handles for _ in range(choice.randint(1, 3))]
        choice.shuffle(uses)
        for use in uses:
            # a block may have closed its own consumer, and a claim may still be open
            with suppress(ClosedError, RuntimeError):
                use()
        if choice.random() < FORK_CHANCE:
            self._fork(handles)
        for handle in choice.sample(handles, len(handles)):
            self._let_go(handle, handles)
        self._check()

    def _replace_session(self) -> None:
        """The old one is closed, or forgotten with everything that it gave out."""
        old, self._session = self._session, tp.connect()
        if old is not None and self._choice.random() < 0.5:
            old.close()
            self.counts["closed"] += 1
            self._expect_closed(lambda: old.consumer(CAMERA_STREAM), "session")
        elif old is not None:
            self.counts["dropped"] += 1
            # a session that nobody holds has to go without its conductor's help
            old.close() if self._choice.random() < 0.5 else self._held.append(old)

    # --- use -------------------------------------------------------------------------------------------------------

    def _use(self, handle: Any) -> Callable[[], None]:
        if isinstance(handle, Producer):
            return self._choice.choice([lambda: self._publish(handle), lambda: self._claim(handle)])
        ways = [self._read, self._read, self._read_into, self._borrow, self._borrow]
        way = self._choice.choice(ways)
        return lambda: way(handle)

    def _publish(self, producer: Producer) -> None:
        producer.publish(np.zeros(FRAME_BYTES, dtype=np.uint8))

    def _claim(self, producer: Producer) -> None:
        slot = producer.claim()
        slot.array[:] = 1
        end = self._choice.random()
        if end < 0.4:
            slot.commit()
        elif end < 0.7:
            self._hold(slot.array)
        else:
            self._hold(slot)

    def _read(self, consumer: Consumer) -> None:
        frame = consumer.read(READ_S)
        if frame is not None:
            self._keep(frame)

    def _read_into(self, consumer: Consumer) -> None:
        frame = consumer.read_into(np.empty(FRAME_BYTES, dtype=np.uint8), READ_S)
        if frame is not None:
            self._keep(frame)

    def _burst(self, steady: Consumer) -> None:
        """Read on and on, and keep now and then what was made of a frame: while it lives, nobody else may get its memory."""
        for _ in range(BURST):
            frame = steady.read(READ_S)
            if frame is None:
                self.problems.append("the camera's frames stopped")
                return
            if self._choice.random() < 0.3:
                continue  # nobody ever looks at its bytes
            address = frame.array.ctypes.data
            self.counts["memory used again"] += address in self._addresses
            self._addresses.add(address)
            if self._choice.random() < 0.3:
                self._keep(frame)

    def _keep(self, frame: Frame) -> None:
        choice, array = self._choice, frame.array
        if not check_frame(array, frame.epoch * WORD + frame.seq):
            self.problems.append(f"frame {frame.seq} was not whole when it came")
        if choice.random() < 0.5:
            # it is the user's to change: whoever got the same memory would see it
            stamp_frame(array, choice.getrandbits(40))
        ways: list[Callable[[], np.ndarray[Any, Any]]] = [
            lambda: array,
            lambda: array[100:-100].view(np.uint16)[::3],
            lambda: np.frombuffer(memoryview(frame.payload)[64:], dtype=np.uint8),
            lambda: np.from_dlpack(frame),
            lambda: np.from_dlpack(array[::2]),
        ]
        self._kept.append(_Kept(choice.choice(ways)(), frame.seq))
        if choice.random() < 0.3:
            self._hold(frame)
        if len(self._kept) > MOST_KEPT:
            self._kept.pop(choice.randrange(len(self._kept)))

    def _borrow(self, consumer: Consumer) -> None:
        try:
            view = consumer.borrow(READ_S)
        except TimeoutError:
            return
        if self._choice.random() < 0.3:
            self._hold(view)
            return
        try:
            with view:
                self._hold(view.array)
                if self._choice.random() < 0.3:
                    time.sleep(2 * SLOTS * CAMERA_PAUSE_S)
                if self._choice.random() < 0.2:
                    consumer.close()
        except FrameOverwrittenError:
            self.counts["overwritten while lent"] += 1

    def _hold(self, thing: Any) -> None:
        self._held.append(thing)
        if len(self._held) > MOST_KEPT:
            self._held.pop(self._choice.randrange(len(self._held)))

    # --- the end of things -----------------------------------------------------------------------------------------

    def _let_go(self, handle: Any, handles: list[Any]) -> None:
        manner = self._choice.choice(["close", "close twice", "drop", "thread", "collect"])
        match manner:
            case "close":
                handle.close()
                self.counts["closed"] += 1
                self._expect_closed(*_a_use(handle))
            case "close twice":
                handle.close()
                handle.close()
                self.counts["closed twice"] += 1
            case "drop":
                # the session keeps it, and closes it with itself; a producer has to make room for the next round's
                handle.close() if isinstance(handle, Producer) else None
                handles.remove(handle)
                self.counts["dropped"] += 1
            case "thread":
                thread = threading.Thread(target=handle.close)
                thread.start()
                self._held = self._choice.sample(self._held, len(self._held))
                thread.join()
                self.counts["left to a thread"] += 1
            case "collect":
                handle.close()
                gc.collect()
                self.counts["collected"] += 1

    def _expect_closed(self, use: Callable[[], object], what: str) -> None:
        try:
            use()
        except ClosedError:
            return
        self.problems.append(f"a {what} worked after it was closed")

    def _check(self) -> None:
        for kept in self._kept:
            if not kept.is_whole():
                self.problems.append(f"the array of frame {kept.seq} lost its bytes")
        self.counts["kept for many laps"] += len(self._kept) > MOST_KEPT // 2
        bounds = sorted(np.lib.array_utils.byte_bounds(kept.array) for kept in self._kept)
        if any(first[1] > second[0] for first, second in itertools.pairwise(bounds)):
            self.problems.append("two arrays share memory")
        for thing in self._held:
            if isinstance(thing, BorrowedFrame):
                thing.still_valid()
            elif isinstance(thing, np.ndarray):
                thing.sum()

    def _fork(self, handles: list[Any]) -> None:
        """In the child everything is dead, says so, and may be let go of in any order. The parent does not notice."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = self._in_the_child(handles)
            except BaseException:  # noqa: BLE001 - a child that raised on would go on as its parent
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        self.counts["forked"] += 1
        if os.waitstatus_to_exitcode(status) != 0:
            self.problems.append(f"a forked child ended with {os.waitstatus_to_exitcode(status)}")

    def _in_the_child(self, handles: list[Any]) -> int:
        problems = len(self.problems)
        for handle in [self._session, *handles]:
            self._expect_closed(*_a_use(handle))
        if not all(kept.is_whole() for kept in self._kept):
            return 2
        things = [*handles, *self._held, *self._kept, self._session]
        handles.clear()
        self._held.clear()
        self._kept.clear()
        self._session = None
        self._choice.shuffle(things)
        while things:
            thing = things.pop()
            if self._choice.random() < 0.3 and hasattr(thing, "close"):
                thing.close()
            del thing
            gc.collect()
        return 3 if len(self.problems) > problems else 0


def _a_use(handle: Any) -> tuple[Callable[[], object], str]:
    match handle:
        case Consumer():
            return lambda: handle.read(0), "consumer"
        case Producer():
            return lambda: handle.publish(np.zeros(FRAME_BYTES, dtype=np.uint8)), "producer"
        case _:
            return lambda: handle.consumer(CAMERA_STREAM), "session"
