"""F8: readers that do not run (idle, stopped, killed) neither slow their producer nor take frames from readers that do."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tensor_pool as tp
from faultlib.experiment import Bench, Context, Outcome, percentile
from faultlib.orders import Orders, say, settings
from faultlib.stacks import DEFAULT_PERIOD_MS, StackProcess
from tensor_pool.client.consumer import Consumer
from tensor_pool.client.producer import Producer
from tensor_pool.testing import ChildProcess, check_frame, stamp_frame

FRAME_BYTES = 8 << 10
START_S = 120.0
ATTACH_S = 30.0
LONGEST_READ_S = 0.02
# when nothing came for this long, nothing more comes
LAST_READ_S = 0.2
# above this a sleep between frames is too coarse
SLEEP_BELOW_HZ = 2000
PERCENTS = (50, 99)
MOST_LOST_SHARE = 0.001
MOST_SLOWED = 1.05
# 3 to 5 keepalive intervals, and the driver's own look at its leases
LEASES_END_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """One part of the experiment: who reads, and how fast frames come. A round is a turn with and one without those that do not run."""

    label: str
    stream_id: int
    rate_hz: int
    slots: int
    running: int
    idle: int
    stopped: int
    spin: bool
    seconds: float


PACES = (
    Pace("50_consumers_500_hz", 10_001, 500, 64, running=20, idle=25, stopped=5, spin=False, seconds=6.0),
    Pace("100000_descriptors_a_second", 10_002, 100_000, 1 << 12, running=1, idle=0, stopped=1, spin=True, seconds=3.0),
)
ROUNDS = 15
DRAWS = 2000
# a range of ratios that is this wide would let a slower producer pass unseen
WIDEST_RANGE = 2.5


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one turn came to. `lost` is of each running reader."""

    published: int
    refused: int
    rate_hz: float
    times_us: dict[str, float]
    lost: tuple[int, ...]

    @property
    def lost_share(self) -> float:
        return max(self.lost, default=0) / self.published


@dataclass(slots=True)
class _Turns:
    alone: list[_Turn] = field(default_factory=list)
    crowded: list[_Turn] = field(default_factory=list)

    def lost_share(self, pace: Pace) -> float:
        """What a running reader lost. One that keeps up with 100,000 frames a second jumps whenever the machine stands still for 2.6 ms,
        with or without a crowd. Of that pace what the crowd adds, the median of the rounds; or what was lost in the second best round with
        the crowd, if that is more: what comes of the crowd comes in every round.
        """
        if not pace.spin:
            return max(turn.lost_share for turn in self.crowded)
        added = percentile([two.lost_share - one.lost_share for one, two in zip(self.alone, self.crowded, strict=True)], 50)
        return max(added, sorted(turn.lost_share for turn in self.crowded)[:2][-1])

    def slowed(self, name: str) -> float:
        """Publish time with the crowd against without, each in the quieter of its turns (their lower quartile). The machine disturbs some
        turns, by up to three times; what the crowd does is in every one of its turns.
        """
        return _quieter(self.crowded, name) / _quieter(self.alone, name)

    def slowed_range(self, name: str, choice: random.Random) -> tuple[float, float]:
        """Between which ratios nine of ten such experiments would end: other turns drawn from the same ones (bootstrap)."""
        ratios = [
            _quieter(choice.choices(self.crowded, k=len(self.crowded)), name)
            / _quieter(choice.choices(self.alone, k=len(self.alone)), name)
            for _ in range(DRAWS)
        ]
        return percentile(ratios, 5), percentile(ratios, 95)


def _quieter(turns: list[_Turn], name: str) -> float:
    return percentile([turn.times_us[name] for turn in turns], 25)


class Isolation:
    """Readers of which some run, some never poll, and some are stopped: turns with and without those that do not run."""

    name = "F8"
    what = "isolation of readers"

    def run(self, context: Context) -> Outcome:
        figures: dict[str, Any] = {}
        problems: list[str] = []
        void: list[str] = []
        for number, pace in enumerate(PACES):

            def progress(fraction: float, words: str, number: int = number, label: str = pace.label) -> None:
                context.progress((number + fraction) / len(PACES), f"{label}: {words}")

            with context.bench("F8") as bench:
                crowd = _Crowd(bench, pace, progress)
                turns = crowd.take_turns(context.count(ROUNDS))
                leases_ended_s = crowd.kill()
            low, high = turns.slowed_range("p99", random.Random(context.seed))  # noqa: S311 - to be repeated, not to be secret
            figures[pace.label] = {
                **_figures(turns, leases_ended_s),
                "publish_p99_slowed_low": round(low, 3),
                "publish_p99_slowed_high": round(high, 3),
                **crowd.figures,
            }
            problems += [f"{pace.label}: {problem}" for problem in [*crowd.problems, *_problems(pace, turns, low, leases_ended_s)]]
            void += [f"{pace.label}: {reason}" for reason in _void(pace, turns, high / low)]
        return Outcome(figures, problems, void)


def _figures(turns: _Turns, leases_ended_s: float) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "rounds": len(turns.alone),
        "leases_ended_s": round(leases_ended_s, 2),
    }
    for percent in PERCENTS:
        name = f"p{percent}"
        figures[f"publish_{name}_slowed"] = round(turns.slowed(name), 3)
        for label, some in (("alone", turns.alone), ("crowded", turns.crowded)):
            figures[f"publish_us_{name}_{label}"] = round(percentile([turn.times_us[name] for turn in some], 50), 2)
    for label, some in (("alone", turns.alone), ("crowded", turns.crowded)):
        figures[f"lost_share_{label}"] = max(turn.lost_share for turn in some)
        figures[f"publish_us_p99_{label}_by_round"] = [round(turn.times_us["p99"], 2) for turn in some]
        figures[f"lost_share_{label}_by_round"] = [round(turn.lost_share, 5) for turn in some]
        figures[f"descriptors_refused_{label}"] = sum(turn.refused for turn in some)
        figures[f"rate_hz_{label}"] = round(percentile([turn.rate_hz for turn in some], 50))
    return figures


def _problems(pace: Pace, turns: _Turns, least_slowed: float, leases_ended_s: float) -> list[str]:
    problems = []
    if least_slowed > MOST_SLOWED:
        problems.append(
            f"publish took {turns.slowed('p99'):.2f} times as long (p99) beside readers that do not run, {least_slowed:.2f} at least"
        )
    share = turns.lost_share(pace)
    if share >= MOST_LOST_SHARE:
        problems.append(f"a running reader lost {share:.2%} of the frames")
    if any(turn.refused for turn in turns.crowded):
        problems.append(f"{sum(turn.refused for turn in turns.crowded)} descriptors were refused")
    if leases_ended_s > LEASES_END_WITHIN_S:
        problems.append(f"the leases of killed readers lived for {leases_ended_s:.1f} s")
    return problems


def _void(pace: Pace, turns: _Turns, width: float) -> list[str]:
    slow = [turn for turn in turns.alone if turn.rate_hz < 0.9 * pace.rate_hz]
    reasons = [f"without a crowd the producer reached {slow[0].rate_hz:.0f} frames/s only"] if slow else []
    if width > WIDEST_RANGE:
        reasons.append(f"turns differ so much that a producer {width:.1f} times as slow would not be noticed")
    return reasons


class _Crowd:
    """The processes of one pace."""

    def __init__(self, bench: Bench, pace: Pace, progress: Callable[[float, str], None]) -> None:
        self._bench = bench
        self._pace = pace
        self._progress = progress
        self.problems: list[str] = []
        self.figures: dict[str, Any] = {}
        self._stack = StackProcess(bench, announce_period_ms=DEFAULT_PERIOD_MS, lease_interval_ms=DEFAULT_PERIOD_MS)
        self._producer = self._child("producer", "producer_process")
        self.figures["real_time"] = self._producer.wait_for_message(START_S, event="attached")["real_time"]
        self._running: list[ChildProcess] = []
        progress(0, "nobody reads")
        # not compared with anything: a publish that wakes nobody is another one
        nobody = self._publish("nobody")
        self.figures |= {f"publish_us_{name}_nobody": round(value, 2) for name, value in nobody.times_us.items()}
        progress(0, "starting everybody")
        self._running = [self._child(f"running-{number}", "running_process") for number in range(pace.running)]
        self._idle = [self._child(f"idle-{number}", "idle_process") for number in range(pace.idle)]
        self._stopped = [self._child(f"stopped-{number}", "reading_process") for number in range(pace.stopped)]
        for child in [*self._running, *self._idle, *self._stopped]:
            child.wait_for_message(START_S, event="ready")

    def _child(self, name: str, function: str) -> ChildProcess:
        pace = self._pace
        options = {"stream_id": pace.stream_id, "rate_hz": pace.rate_hz, "slots": pace.slots, "spin": pace.spin}
        return self._bench.harness.python(name, f"faultlib.f08_isolation:{function}", json.dumps(options))

    def take_turns(self, rounds: int) -> _Turns:
        turns = _Turns()
        for number in range(rounds):
            self._progress(number / (rounds + 1), f"round {number + 1} of {rounds}")
            # who begins changes: the second of a round must not always be the warmer one
            for crowded in (False, True) if number % 2 == 0 else (True, False):
                if not crowded:
                    turns.alone.append(self._publish(f"alone-{number}"))
                    continue
                self._enter(number)
                turns.crowded.append(self._publish(f"crowded-{number}"))
                self._leave(number)
        return turns

    def _enter(self, number: int) -> None:
        for child in [*self._idle, *self._stopped]:
            child.send({"order": "open", "turn": number})
        for child in [*self._idle, *self._stopped]:
            child.wait_for_message(START_S, event="attached", turn=number)
        for child in self._stopped:
            # wherever it is: asleep, woken, in the middle of a frame
            time.sleep(random.random() / self._pace.rate_hz)  # noqa: S311 - not a secret
            child.stop()

    def _leave(self, number: int) -> None:
        for child in self._stopped:
            child.cont()
        for child in [*self._idle, *self._stopped]:
            child.send({"order": "close"})
        for child in [*self._idle, *self._stopped]:
            child.wait_for_message(START_S, event="closed", turn=number)

    def _publish(self, label: str) -> _Turn:
        before = self._reports(f"before-{label}", until=-1)
        self._producer.send({"order": "publish", "label": label, "seconds": self._pace.seconds})
        done = self._producer.wait_for_message(START_S, event="published", label=label)
        after = self._reports(f"after-{label}", until=done["last_seq"])
        self.problems += [
            f"{label}: {child.name} took a bad frame" for child, report in zip(self._running, after, strict=True) if report["bad"]
        ]
        lost = tuple(late["lost"] - early["lost"] for early, late in zip(before, after, strict=True))
        return _Turn(done["published"], done["refused"], done["published"] / done["elapsed_s"], done["times_us"], lost)

    def _reports(self, label: str, until: int) -> list[dict[str, Any]]:
        for child in self._running:
            child.send({"order": "report", "label": label, "until": until})
        return [child.wait_for_message(START_S, event="report", label=label) for child in self._running]

    def kill(self) -> float:
        """SIGKILL for half of the idle and for all that are stopped. How long their leases lived on."""
        self._progress(0.95, "killing readers")
        self._enter(-1)
        doomed = [*self._idle[: len(self._idle) // 2], *self._stopped]
        with self._stack.admin() as admin:

            def leases() -> int:
                return sum(lease.role == "consumer" for lease in admin.leases())

            expected = leases() - len(doomed)
            for child in doomed:
                child.kill()
            killed_s = time.monotonic()
            while leases() > expected and time.monotonic() - killed_s < START_S:
                time.sleep(0.02)
            return time.monotonic() - killed_s


# --- the processes -------------------------------------------------------------------------------------------------


def producer_process() -> None:
    """Publishes at the pace for as long as it is told to, and says how long each publish took."""
    options = settings()
    orders = Orders()
    with (
        tp.connect() as session,
        session.producer(options["stream_id"], shape=FRAME_BYTES, dtype="uint8", slots=options["slots"]) as producer,
    ):
        say("attached", real_time=options["rate_hz"] < SLEEP_BELOW_HZ and _take_precedence())
        while (order := orders.next()) is not None and order["order"] == "publish":
            say("published", label=order["label"], **_publish(producer, options["rate_hz"], order["seconds"]))


def _take_precedence() -> bool:
    """Where it is allowed this thread goes before others: fifty processes on a few cores would measure the scheduler, and not `publish`."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


def _publish(producer: Producer, rate_hz: int, seconds: float) -> dict[str, Any]:
    frame = np.empty(FRAME_BYTES, dtype=np.uint8)
    refused = _refused(producer)
    seq = producer.stats.last_seq + 1
    period_ns, sleeps = 1_000_000_000 // rate_hz, rate_hz < SLEEP_BELOW_HZ
    took_ns: list[int] = []
    began_ns = due_ns = time.perf_counter_ns()
    end_ns = began_ns + int(seconds * 1e9)
    while due_ns < end_ns:
        stamp_frame(frame, seq)
        if sleeps:
            time.sleep(max(due_ns - time.perf_counter_ns(), 0) / 1e9)
        while (now_ns := time.perf_counter_ns()) < due_ns:
            pass
        producer.publish(frame)
        took_ns.append(time.perf_counter_ns() - now_ns)
        seq += 1
        due_ns += period_ns
    return {
        "published": len(took_ns),
        "refused": _refused(producer) - refused,
        "last_seq": producer.stats.last_seq,
        "elapsed_s": (time.perf_counter_ns() - began_ns) / 1e9,
        "times_us": {f"p{percent}": percentile(took_ns, percent) / 1e3 for percent in PERCENTS},
    }


def _refused(producer: Producer) -> int:
    stats = producer.stats
    return stats.descriptors_back_pressured + stats.descriptors_not_connected + stats.descriptors_closed


def running_process() -> None:
    """Reads and checks every frame; on the order `report` reads on to the seq that it names, then says what was lost so far."""
    options = settings()
    orders = Orders()
    bad = 0
    with tp.connect() as session, session.consumer(options["stream_id"], wait=ATTACH_S, spin=options["spin"]) as consumer:
        say("ready")
        while not orders.stop.is_set():
            if orders.has_waiting():
                order = orders.next()
                if order is None or order["order"] != "report":
                    break
                while (frame := consumer.read(LAST_READ_S)) is not None:
                    bad += not check_frame(frame.array, frame.seq)
                say("report", label=order["label"], lost=_lost(consumer, order["until"]), bad=bad)
            frame = consumer.read(LONGEST_READ_S)
            bad += frame is not None and not check_frame(frame.array, frame.seq)


def _lost(consumer: Consumer, until: int) -> int:
    stats = consumer.stats
    return stats.gap + stats.late + stats.invalid + max(until - stats.last_seq, 0)


def idle_process() -> None:
    """On `open` joins the stack and attaches, on `close` leaves; in between it reads nothing."""
    _visit(lambda consumer, orders: None)


def reading_process() -> None:
    """The same, and reads in between, unless it is stopped."""

    def read(consumer: Consumer, orders: Orders) -> None:
        while not orders.has_waiting() and not orders.stop.is_set():
            consumer.read(LONGEST_READ_S)

    _visit(read)


def _visit(work: Callable[[Consumer, Orders], None]) -> None:
    options = settings()
    orders = Orders()
    say("ready")
    while (order := orders.next()) is not None and order["order"] == "open":
        with tp.connect() as session, session.consumer(options["stream_id"], wait=ATTACH_S) as consumer:
            say("attached", turn=order["turn"])
            work(consumer, orders)
            orders.wait_for("close")
        say("closed", turn=order["turn"])
