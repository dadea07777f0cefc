"""F4: a producer that is killed at any step of a publish leaves no bad frame behind, and its successor is at work soon."""

from __future__ import annotations

import json
import random
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faultlib.experiment import Bench, Context, Outcome, percentile
from faultlib.stacks import ANNOUNCE_PERIOD_MS, LEASE_DURATION_MS, StackProcess
from faultlib.stalls import StallWatch
from tensor_pool.testing import ChildProcess, check_accounting, check_no_bad_frames, read_events
from tensor_pool.testing.events import ATTEMPT, PUBLISH
from tensor_pool.testing.failpoints import Failpoint

STEPS = (
    "write.before_in_progress",
    "write.after_in_progress",
    "write.mid_payload",
    "write.after_payload",
    "write.after_header",
    "write.before_committed",
    "write.after_committed",
    "write.after_descriptor",
)
KILLS_PER_STEP = 10
CONSUMERS = 2
STREAM_ID = 10_000
NBYTES = 64 << 10
SLOTS = 8
PAUSE_S = 0.001
LARGEST_SKIP = 150
# repetitions for each kill that is wanted; with more the machine is too busy for bounds of milliseconds
MOST_REPEATED = 1
ATTACH_BOUND_MS = LEASE_DURATION_MS + ANNOUNCE_PERIOD_MS
REMAP_BOUND_MS = ANNOUNCE_PERIOD_MS


@dataclass(slots=True)
class _Seen:
    """What was measured over all kills."""

    attached_ns: dict[int, int] = field(default_factory=dict)
    """When the successor was in, by the epoch of the one that was killed."""
    remap_ms: list[float] = field(default_factory=list)
    killed_before_commit: int = 0
    repeated: int = 0
    problems: list[str] = field(default_factory=list)


class KilledProducer:
    """SIGKILL by a failpoint inside the native publish, at each of its eight steps; a successor that is connected already attaches."""

    name = "F4"
    what = "kill -9 producer at step N"

    def run(self, context: Context) -> Outcome:
        choice = random.Random(context.seed)  # noqa: S311 - to be repeated, not to be secret
        points = [Failpoint(step, "kill", choice.randint(20, LARGEST_SKIP)) for step in STEPS for _ in range(context.count(KILLS_PER_STEP))]
        choice.shuffle(points)
        seen = _Seen()
        with context.bench("F4") as bench, StallWatch() as watch:
            StackProcess(bench)
            consumers = _kill_at(points, seen, bench, watch, context)
            for consumer in consumers:
                consumer.send({"order": "stop"})
                consumer.expect_exit(0)
            _note_remaps(seen, bench, consumers, watch)
            figures = {**_judge(seen, bench, len(points)), "machine_stalls": watch.count}
        void = [] if seen.killed_before_commit else ["every kill landed after the commit"]
        if len(seen.remap_ms) < len(points):
            void.append(f"only {len(seen.remap_ms)} times from attach to mapping were measured, half of what {len(points)} kills give")
        if seen.repeated >= MOST_REPEATED * len(points):
            void.append(f"other work kept this machine busy: {seen.repeated} kills had to be repeated")
        return Outcome(figures, seen.problems, void)


def _kill_at(points: list[Failpoint], seen: _Seen, bench: Bench, watch: StallWatch, context: Context) -> list[ChildProcess]:
    """One producer after the other, each killed at its point; a kill is repeated when a core stood still, as its times say nothing."""
    log = bench.log("producers")
    waiting = deque(points)
    point = waiting.popleft()
    current = _producer(bench, log, point)
    current.send({"order": "attach"})
    consumers = [_consumer(bench, number) for number in range(CONSUMERS)]
    while True:
        context.progress(1 - len(waiting) / len(points), point.name)
        attached = current.wait_for_message(event="attached")
        # without another kill to come it is there for a repetition of this one
        following = waiting[0] if waiting else point
        successor = _producer(bench, log, following)
        began_ns = time.monotonic_ns()
        # it tries to attach from now on; the driver refuses it as long as the lease of the other one lives
        successor.send({"order": "attach"})
        current.send({"order": "publish"})
        code = current.wait(30)
        if code != -9:
            seen.problems.append(f"{point}: the producer ended with {code}, not by the failpoint")
        next_attached = successor.wait_for_message(event="attached")
        current = successor
        _check_epochs(seen, point, attached["epoch"], next_attached["epoch"])
        if watch.stalled_between(began_ns, next_attached["time_ns"]) and seen.repeated < MOST_REPEATED * len(points):
            seen.repeated += 1
            waiting.append(point)
        else:
            seen.attached_ns[attached["epoch"]] = next_attached["time_ns"]
            seen.killed_before_commit += STEPS.index(point.name) < STEPS.index("write.after_committed")
        if not waiting:
            break
        point = waiting.popleft()
    current.send({"order": "publish"})
    for consumer in consumers:
        consumer.wait_for_message(event="mapped", epoch=next_attached["epoch"])
    current.send({"order": "stop"})
    current.expect_exit(0)
    return consumers


def _check_epochs(seen: _Seen, point: Failpoint, epoch: int, following: int) -> None:
    if following - epoch != 2:
        seen.problems.append(f"{point}: epoch {epoch} was followed by {following}, not by expiry + 1 and attach + 1")


def _judge(seen: _Seen, bench: Bench, kills: int) -> dict[str, Any]:
    producers = list(read_events(bench.log("producers")))
    accepted = losses = 0
    for number in range(CONSUMERS):
        history = list(read_events(bench.log(f"consumer-{number}")))
        for verdict in (check_no_bad_frames(producers, history), check_accounting(history)):
            seen.problems += [f"consumer {number}: {problem}" for problem in verdict.problems]
            accepted += verdict.figures.get("accepted", 0) if "written" in verdict.figures else 0
            losses += verdict.figures.get("losses", 0)
    # a killed producer dies within the publish whose attempt it wrote down last
    killed_ns = {event.epoch: event.time_ns for event in producers if event.event == ATTEMPT}
    attach_ms = [(attached_ns - killed_ns[epoch]) / 1e6 for epoch, attached_ns in seen.attached_ns.items()]
    attach_p99, remap_p99 = percentile(attach_ms, 99), percentile(seen.remap_ms, 99)
    if attach_p99 > ATTACH_BOUND_MS:
        seen.problems.append(f"the next attach took {attach_p99:.0f} ms (p99), the bound is {ATTACH_BOUND_MS} ms")
    if remap_p99 > REMAP_BOUND_MS:
        seen.problems.append(f"consumers mapped the new epoch after {remap_p99:.0f} ms (p99), the bound is {REMAP_BOUND_MS} ms")
    return {
        "kills": kills,
        "kills_before_commit": seen.killed_before_commit,
        "kills_repeated": seen.repeated,
        "attempts": sum(event.event == ATTEMPT for event in producers),
        "published": sum(event.event == PUBLISH for event in producers),
        "accepted": accepted,
        "losses": losses,
        "attach_ms_p50": round(percentile(attach_ms, 50), 1),
        "attach_ms_p99": round(attach_p99, 1),
        "attach_bound_ms": ATTACH_BOUND_MS,
        "remap_ms_p50": round(percentile(seen.remap_ms, 50), 1),
        "remap_ms_p99": round(remap_p99, 1),
        "remap_bound_ms": REMAP_BOUND_MS,
    }


def _note_remaps(seen: _Seen, bench: Bench, consumers: list[ChildProcess], watch: StallWatch) -> None:
    """How long each consumer took to map each epoch that came while it ran. No time is noted where a core stood still meanwhile."""
    attached_ns = {
        message["epoch"]: message["time_ns"]
        for child in bench.harness.children
        if child.name.startswith("producer")
        for message in child.messages()
        if message["event"] == "attached"
    }
    # consumers were started beside the first one
    following = sorted(attached_ns)[1:]
    for consumer in consumers:
        mapped_ns = {message["epoch"]: message["time_ns"] for message in consumer.messages() if message["event"] == "mapped"}
        for epoch in following:
            if epoch not in mapped_ns:
                seen.problems.append(f"{consumer.name} never mapped epoch {epoch}, which lived for a lease at least")
            elif not watch.stalled_between(attached_ns[epoch], mapped_ns[epoch]):
                seen.remap_ms.append(max(0.0, (mapped_ns[epoch] - attached_ns[epoch]) / 1e6))


def _producer(bench: Bench, log: Path, *points: Failpoint) -> ChildProcess:
    options = {"stream_id": STREAM_ID, "nbytes": NBYTES, "slots": SLOTS, "pause_s": PAUSE_S, "log": str(log)}
    child = bench.harness.python("producer", "faultlib.workers:producer_process", json.dumps(options), failpoints=points)
    child.wait_for_message(event="connected")
    return child


def _consumer(bench: Bench, number: int) -> ChildProcess:
    options = {"stream_id": STREAM_ID, "log": str(bench.log(f"consumer-{number}"))}
    child = bench.harness.python(f"consumer-{number}", "faultlib.workers:consumer_process", json.dumps(options))
    child.wait_for_message(event="attached")
    return child
