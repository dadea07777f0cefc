"""F1: no reader accepts bytes that are not what one publish wrote, however fast the ring is overwritten."""

from __future__ import annotations

import json
import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensor_pool as tp
from faultlib.experiment import Bench, Context, Outcome
from faultlib.orders import Orders, say, settings
from faultlib.stacks import DEFAULT_PERIOD_MS, StackProcess
from tensor_pool.client.consumer import Consumer
from tensor_pool.client.producer import Producer
from tensor_pool.errors import FrameOverwrittenError
from tensor_pool.testing import ChildProcess, check_frame, stamp_frame

SLOTS = 8
LATE_DROPS_NEEDED = 1000
# copies that began when the writer was about to come round
EDGE_COPIES_NEEDED = 1000
PLANTED_FRAMES = 400
BLOCK = 64
# the writer has ended, or the machine is busy: the copy is made all the same
EDGE_WAIT_S = 0.05
# of a run that does not get on
STANDSTILL_S = 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """One run: frames of `nbytes`, many more in a long one; the slow reader holds a view for up to `hold_ms`."""

    label: str
    stream_id: int
    nbytes: int
    frames: int
    long_frames: int
    hold_ms: float


SIZES = (Size("4_kib", 10_001, 4096, 2_000_000, 100_000_000, 1.0), Size("1_mib", 10_002, 1 << 20, 100_000, 1_000_000, 12.0))
READERS = ("copy", "borrow", "slow", "edge")


class TornReads:
    """One writer flat out, a ring of eight slots, four readers: one copies, one borrows, one holds what it borrowed for too long, and one
    copies each frame out of its slot when the writer is about to come round to it."""

    name = "F1"
    what = "torn reads under overwrite"

    def run(self, context: Context) -> Outcome:
        figures: dict[str, Any] = {}
        problems: list[str] = []
        void: list[str] = []
        with context.bench("F1") as bench:
            # a machine that is kept busy by six processes must not lose leases over it
            StackProcess(bench, announce_period_ms=DEFAULT_PERIOD_MS, lease_interval_ms=DEFAULT_PERIOD_MS)
            planted = _planted(bench)
            figures["planted"] = planted
            if planted["found"] != planted["accepted_planted"] or planted["found"] == 0:
                void.append(f"the checker found {planted['found']} of {planted['accepted_planted']} planted errors")
            share = 1 / len(SIZES)
            for number, size in enumerate(SIZES):
                frames = context.count(size.frames, size.long_frames)

                def progress(fraction: float, size: Size = size, done: float = number * share) -> None:
                    context.progress(done + fraction * share, f"{size.label} frames")

                result = _overwrite(bench, size, frames, progress, goes_first=context.is_long)
                figures[size.label] = result
                problems += _problems(size, frames, result)
                if result["late"] < LATE_DROPS_NEEDED:
                    void.append(f"{size.label}: {result['late']} late drops, {LATE_DROPS_NEEDED} are needed")
                at_edge = result["readers"]["edge"]["at_edge"]
                if at_edge < EDGE_COPIES_NEEDED:
                    void.append(f"{size.label}: {at_edge} copies at the edge, {EDGE_COPIES_NEEDED} are needed")
        return Outcome(figures, problems, void)


def _problems(size: Size, frames: int, result: dict[str, Any]) -> list[str]:
    problems = [] if result["published"] == frames else [f"{size.label}: {result['published']} of {frames} frames were published"]
    for name, reader in result["readers"].items():
        if reader["bad"]:
            problems.append(f"{size.label}: the {name} reader accepted {reader['bad']} bad frames, first {reader['first_bad']}")
        if not reader["balanced"]:
            problems.append(f"{size.label}: the counts of the {name} reader do not add up: {reader}")
        if name in ("copy", "borrow") and not reader["accepted"]:
            problems.append(f"{size.label}: the {name} reader accepted no frame at all")
    return problems


def _overwrite(bench: Bench, size: Size, frames: int, progress: Any, *, goes_first: bool) -> dict[str, Any]:
    """The real thing: everybody flat out until every frame is written. In a long run the writer goes before its readers where that is
    allowed: they would take half of its core."""
    writer = _writer(bench, size, frames=frames, plant_every=0, pause_ms=0.0, goes_first=goes_first)
    readers = {mode: _reader(bench, size, mode) for mode in READERS}
    for reader in readers.values():
        reader.wait_for_message(event="attached")
    writer.send({"order": "go"})
    done, since_s = 0, time.monotonic()
    while writer.is_running and (newest := writer.messages()[-1])["event"] != "published":
        bench.harness.require_running()
        if newest.get("frames", 0) > done:
            done, since_s = newest["frames"], time.monotonic()
            progress(done / frames)
        if time.monotonic() - since_s > STANDSTILL_S:
            writer.wait(0.1)
        time.sleep(0.5)
    published = writer.wait_for_message(event="published")
    elapsed_s = published["elapsed_s"]
    results = _end(writer, readers)
    return {
        "published": published["frames"],
        "elapsed_s": round(elapsed_s, 1),
        "frames_per_s": round(published["frames"] / elapsed_s),
        "words_verified": sum(result["accepted"] for result in results.values()) * size.nbytes // 8,
        "late": sum(result["late"] for result in results.values()),
        "readers": results,
    }


def _planted(bench: Bench) -> dict[str, int]:
    """The checker itself: some frames are published with one flipped bit, and each of those that is accepted must be found."""
    size = Size("planted", 10_003, 4096, PLANTED_FRAMES, PLANTED_FRAMES, 0.0)
    writer = _writer(bench, size, frames=PLANTED_FRAMES, plant_every=10, pause_ms=1.0)
    readers = {"copy": _reader(bench, size, "copy", plant_every=10)}
    readers["copy"].wait_for_message(event="attached")
    writer.send({"order": "go"})
    writer.wait_for_message(event="published")
    result = _end(writer, readers)["copy"]
    return {"accepted": result["accepted"], "accepted_planted": result["accepted_planted"], "found": result["bad"]}


def _end(writer: ChildProcess, readers: dict[str, ChildProcess]) -> dict[str, dict[str, Any]]:
    for reader in readers.values():
        reader.send({"order": "stop"})
    results = {}
    for mode, reader in readers.items():
        results[mode] = {key: value for key, value in reader.wait_for_message(event="read").items() if key != "event"}
        reader.expect_exit(0)
    writer.send({"order": "stop"})
    writer.expect_exit(0)
    return results


def _writer(bench: Bench, size: Size, **options: Any) -> ChildProcess:
    writer = bench.harness.python(
        f"writer-{size.label}",
        "faultlib.f01_torn_reads:writer_process",
        json.dumps({"stream_id": size.stream_id, "nbytes": size.nbytes, **options}),
    )
    writer.wait_for_message(event="attached")
    return writer


def _reader(bench: Bench, size: Size, mode: str, plant_every: int = 0) -> ChildProcess:
    hold_ms = size.hold_ms if mode == "slow" else 0.0
    options = {"stream_id": size.stream_id, "nbytes": size.nbytes, "mode": mode, "hold_ms": hold_ms, "plant_every": plant_every}
    return bench.harness.python(f"{mode}-{size.label}", "faultlib.f01_torn_reads:reader_process", json.dumps(options))


# --- the processes -------------------------------------------------------------------------------------------------


def writer_process() -> None:
    """Publishes stamped frames as fast as it can: a block from an array of its own, then a block filled in place."""
    options = settings()
    orders = Orders()
    with tp.connect() as session, session.producer(options["stream_id"], shape=options["nbytes"], dtype="uint8", slots=SLOTS) as producer:
        say("attached")
        orders.wait_for("go")
        if options.get("goes_first"):
            with suppress(PermissionError):
                os.nice(-10)
        began_s = time.monotonic()
        _write(producer, options)
        say("published", frames=options["frames"], elapsed_s=time.monotonic() - began_s)
        orders.stop.wait()


def _write(producer: Producer, options: dict[str, Any]) -> None:
    frames, plant_every, pause_s = options["frames"], options["plant_every"], options["pause_ms"] / 1000
    own = np.empty(options["nbytes"], dtype=np.uint8)
    report_every = max(1, frames // 100)
    for seq in range(frames):
        if (seq // BLOCK) % 2:
            with producer.claim() as slot:
                stamp_frame(slot.array, slot.seq)
        else:
            stamp_frame(own, seq)
            if plant_every and seq % plant_every == plant_every - 1:
                own[seq * 7919 % own.size] ^= 1 << seq % 8
            if producer.publish(own) != seq:
                raise AssertionError(f"frame {seq} got another seq")
        if seq % report_every == 0:
            say("progress", frames=seq)
        if pause_s:
            time.sleep(pause_s)


def reader_process() -> None:
    """Checks every word of every frame that it accepts, until it is told to stop and nothing is left."""
    options = settings()
    orders = Orders()
    tally = _Tally(options["plant_every"])
    own = np.empty(options["nbytes"], dtype=np.uint8)
    with tp.connect() as session, session.consumer(options["stream_id"], wait=30.0) as consumer:
        say("attached")
        choice = random.Random(options["stream_id"])  # noqa: S311 - not a secret
        while True:
            if options["mode"] == "copy":
                frame = consumer.read(0.1)
                if frame is not None:
                    tally.accept(frame.seq, check_frame(frame.array, frame.seq))
                idle = frame is None
            elif options["mode"] == "edge":
                idle = not _copy_at_the_edge(consumer, tally, own)
            else:
                # mostly short, sometimes many laps of the ring
                idle = not _borrow(consumer, tally, choice.random() ** 3 * options["hold_ms"] / 1000)
            if idle and orders.stop.is_set():
                break
        every = (*consumer.earlier_stats, consumer.stats)
        say(
            "read",
            accepted=tally.accepted,
            accepted_planted=tally.planted,
            bad=tally.bad,
            first_bad=tally.first_bad,
            withdrawn=tally.withdrawn,
            at_edge=tally.at_edge,
            balanced=all(stats.balanced for stats in every) and sum(stats.delivered for stats in every) == tally.accepted,
            epochs=sum(stats.epoch is not None for stats in every),
            **{name: sum(getattr(stats, name) for stats in every) for name in ("delivered", "skipped", "gap", "late", "invalid")},
        )


class _Tally:
    """What one reader saw."""

    def __init__(self, plant_every: int) -> None:
        self._plant_every = plant_every
        self.accepted = 0
        self.planted = 0
        self.bad = 0
        self.withdrawn = 0
        self.at_edge = 0
        self.first_bad: int | None = None

    def accept(self, seq: int, good: bool) -> None:
        self.accepted += 1
        if self._plant_every and seq % self._plant_every == self._plant_every - 1 and (seq // BLOCK) % 2 == 0:
            self.planted += 1
        if not good:
            self.bad += 1
            self.first_bad = seq if self.first_bad is None else self.first_bad


def _borrow(consumer: Consumer, tally: _Tally, hold_s: float) -> bool:
    """Whether a frame came. What a view showed counts only when the library says on leaving that it was whole to the end."""
    try:
        with consumer.borrow(0.1) as view:
            seq = view.seq
            good = check_frame(view.array, seq)
            if hold_s:
                time.sleep(hold_s)
                good = good and check_frame(view.array, seq)
    except TimeoutError:
        return False
    except FrameOverwrittenError:
        tally.withdrawn += 1
        return True
    tally.accept(seq, good)
    return True


def _copy_at_the_edge(consumer: Consumer, tally: _Tally, own: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    """Whether a frame came. It is copied while its slot is the next to be written, and looked at when the library has called it whole."""
    try:
        with consumer.borrow(0.1) as view:
            seq = view.seq
            deadline_s = time.monotonic() + EDGE_WAIT_S
            while (is_early := consumer.counters["newest_committed"] < seq + SLOTS - 1) and time.monotonic() < deadline_s:
                pass
            tally.at_edge += not is_early
            np.copyto(own, view.array)
    except TimeoutError:
        return False
    except FrameOverwrittenError:
        tally.withdrawn += 1
        return True
    tally.accept(seq, check_frame(own, seq))
    return True
