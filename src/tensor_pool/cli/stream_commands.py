"""`publish`, `tap` and `ls`: frames in, frames out, and what there is."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from tensor_pool import session as sessions
from tensor_pool.cli.camera import SyntheticCamera, narrowest_row, sky_bytes
from tensor_pool.cli.latency import LatencyHistogram
from tensor_pool.cli.output import StatusLine, example, print_json, print_table, stack_option
from tensor_pool.cli.pace import Pace
from tensor_pool.cli.parameters import Number, Shape, seconds_from, stream_argument, verify_option
from tensor_pool.cli.totals import EpochTotals, counted_epochs
from tensor_pool.client.consumer import Consumer
from tensor_pool.client.producer import Producer
from tensor_pool.clock import SystemClock
from tensor_pool.consumer.frame import Frame
from tensor_pool.errors import LeaseLostError
from tensor_pool.runtime import ShutdownSignal
from tensor_pool.sbe.control import Dtype
from tensor_pool.stamp import carries_seq
from tensor_pool.tensors import MAX_TENSOR_BYTES

REPORT_NS = 1_000_000_000
# so that the last frames are read before the epoch ends with its producer
LINGER_S = 0.5
# the columns of an epoch in the summary of `tap`
EPOCH = ("epoch", "delivered", "skipped", "gap", "late", "invalid", "unseen", "first_seq", "last_seq")


@click.command(epilog=example("tensor-pool publish --shape 512x640 --rate 500 --name camera-1"))
@click.option("--stream", "stream_id", type=click.IntRange(1, 2**31 - 1), default=10_000, show_default=True, help="Stream id.")
@click.option("--name", default="camera-1", show_default=True, help="Name under which consumers find the stream.")
@click.option("--shape", type=Shape(), default="512x640", show_default=True, help="Rows and columns of a frame.")
@click.option("--dtype", type=click.Choice(["uint8", "uint16", "float32"]), default="uint16", show_default=True)
@click.option("--rate", "rate_hz", type=Number(0.01, 1e6), default=100.0, show_default=True, help="Frames a second.")
@click.option("--slots", type=click.IntRange(2), default=64, show_default=True, help="Slots of the ring, a power of two.")
@click.option("--seconds", type=seconds_from(0.1), default=None, help="Stop after this long; without it on Ctrl-C.")
@click.option(
    "--wait",
    "wait_s",
    type=seconds_from(0),
    default=0.0,
    show_default=True,
    help="Seconds to wait for the stream while another producer holds it, perhaps one that was killed and whose lease runs on.",
)
@click.option("--wait-for-start", is_flag=True, help="Begin at a line on standard input; after the last frame wait for another.")
@stack_option
@click.option("--json", "as_json", is_flag=True, help="Counts as JSON lines, one a second and one at the end.")
def publish(
    stream_id: int,
    name: str,
    shape: tuple[int, int],
    dtype: str,
    rate_hz: float,
    slots: int,
    seconds: float | None,
    wait_s: float,
    wait_for_start: bool,
    stack: str | None,
    as_json: bool,
) -> None:
    """Publish a synthetic camera: stars that drift, the frame's seq at the start of every row."""
    camera = _camera(shape, dtype)
    with (
        ShutdownSignal() as shutdown,
        sessions.connect(stack) as session,
        session.producer(stream_id, shape=shape, dtype=dtype, slots=slots, name=name, wait=wait_s) as producer,
        StatusLine(quiet=as_json) as status,
    ):
        if as_json:
            print_json({"event": "attached", "stream": stream_id})
        lines = StandardInput(shutdown.event) if wait_for_start else None
        if lines is not None:
            lines.wait()

        def report() -> None:
            if as_json:
                print_json({"event": "progress", **asdict(producer.stats)})
            status.show(f"stream {stream_id}: {producer.stats.published} frames published at {rate_hz:g} Hz")

        _expose(camera, producer, Pace(rate_hz, SystemClock(), shutdown.event), seconds, report)
        final = producer.stats
        if as_json:
            print_json({"event": "summary", "stream": stream_id, **asdict(final)})
        if lines is not None:
            lines.wait()
        else:
            shutdown.event.wait(LINGER_S)
    if not as_json:
        print_table("published", [{"stream": stream_id, "frames": final.published, "descriptors": final.descriptors_sent}])


def _camera(shape: tuple[int, int], dtype: str) -> SyntheticCamera:
    if shape[1] < narrowest_row(dtype):
        raise _bad_shape(f"rows of {dtype} need {narrowest_row(dtype)} pixels, or there is no room for the seq")
    frame_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    if frame_bytes > MAX_TENSOR_BYTES:
        raise _bad_shape(f"a frame of {frame_bytes} bytes is too large, a slot holds at most {MAX_TENSOR_BYTES}")
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    no_room = _bad_shape(f"the sky of such frames takes {sky_bytes(shape)} bytes, of the {memory_bytes} of this machine")
    # what is promised and not there would be noticed when it is written to, and end in a signal
    if sky_bytes(shape) > memory_bytes:
        raise no_room
    try:
        return SyntheticCamera(shape, dtype)
    except MemoryError:
        raise no_room from None


def _bad_shape(why: str) -> click.BadParameter:
    return click.BadParameter(why, param_hint="'--shape'")


def _expose(camera: SyntheticCamera, producer: Producer, pace: Pace, seconds: float | None, report: Callable[[], None]) -> None:
    clock = SystemClock()
    end_ns = None if seconds is None else clock.monotonic_ns() + int(seconds * 1e9)
    next_report_ns = clock.monotonic_ns() + REPORT_NS
    while pace.wait() and (end_ns is None or clock.monotonic_ns() < end_ns):
        # a lost lease is won back by itself; the camera goes on meanwhile
        with suppress(LeaseLostError), producer.claim() as slot:
            camera.expose(slot.array, slot.seq)
        if clock.monotonic_ns() >= next_report_ns:
            next_report_ns += REPORT_NS
            report()


class StandardInput:
    """Lines from whoever started this process. Its end counts as a line, so that nobody waits for a parent that is gone."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._lines = 0
        self._waited_for = 0
        self._has_ended = False
        threading.Thread(target=self._read, name="tensor-pool-stdin", daemon=True).start()

    def _read(self) -> None:
        for _ in sys.stdin:
            self._lines += 1
        self._has_ended = True

    def wait(self) -> None:
        """Until the next line, or until told to stop."""
        self._waited_for += 1
        while self._lines < self._waited_for and not self._has_ended and not self._stop.wait(0.02):
            pass


class StampCheck:
    """`--verify`: how many frames were looked at, and how many of them had the pixels of another."""

    def __init__(self) -> None:
        self.frames = 0
        self.bad_pixels = 0

    def __call__(self, frame: Frame) -> None:
        self.frames += 1
        # a frame of bytes has no rows that could say anything
        if frame.dtype in (Dtype.BYTES, Dtype.BIT) or not carries_seq(frame.array, frame.seq):
            self.bad_pixels += 1

    def expect_good(self) -> None:
        """End the command with words when there was a bad one."""
        if self.bad_pixels:
            raise click.ClickException(f"{self.bad_pixels} of {self.frames} frames did not carry their seq in every row")


class Tap:
    """What `tap` has seen, and how to say it."""

    def __init__(self, consumer: Consumer, *, verify: bool) -> None:
        self._consumer = consumer
        self._verify = verify
        self.stamps = StampCheck()
        self._latencies = LatencyHistogram()
        self._totals = EpochTotals()
        self._begin_ns: int | None = None
        self._last_ns = 0
        self.frames = 0

    def take(self, timeout: float) -> bool:
        frame = self._consumer.read(timeout)
        if frame is None:
            return False
        now_ns = time.monotonic_ns()
        self._latencies.record(now_ns - frame.timestamp_ns)
        self._begin_ns = self._begin_ns or now_ns
        self._last_ns = now_ns
        self.frames += 1
        if self._verify:
            self.stamps(frame)
        return True

    def report(self, event: str) -> dict[str, Any]:
        """Everything, for JSON. The counts by themselves are those of the current epoch; `total` has all epochs."""
        earlier, current = counted_epochs(self._consumer)
        elapsed_s = (self._last_ns - (self._begin_ns or 0)) / 1e9
        return {
            "event": event,
            "stream": self._consumer.stream_id,
            "frames": self.frames,
            "rate_hz": round((self.frames - 1) / elapsed_s, 1) if elapsed_s > 0 else 0.0,
            **asdict(current),
            "balanced": current.balanced,
            "verified": self._verify,
            "bad_pixels": self.stamps.bad_pixels,
            "total": asdict(self._totals.with_current(earlier, current)),
            "earlier_epochs": [asdict(epoch) for epoch in earlier if epoch.published],
            **self._latencies.summary_us(),
        }


def _live_line(report: dict[str, Any]) -> str:
    lost = sum(report["total"][name] for name in ("gap", "late", "invalid"))
    return "stream {stream}: {frames} frames, {rate_hz} Hz, lost {lost}, latency p50 {p50_us} us, p99 {p99_us} us".format(
        lost=lost, **report
    )


def _print_summary(report: dict[str, Any]) -> None:
    """One table over all epochs, and where there were several one with a line for each."""
    before, after = ("stream", "frames", "rate_hz"), ("reattached", "verified", "bad_pixels", "p50_us", "p99_us", "p999_us")
    print_table("read", [{name: report[name] for name in before} | report["total"] | {name: report[name] for name in after}])
    if report["total"]["epochs"] > 1:
        epochs = [epoch for epoch in (*report["earlier_epochs"], report) if epoch["unseen"] or epoch["last_seq"] >= epoch["first_seq"]]
        print_table("epochs", [{name: epoch[name] for name in EPOCH} for epoch in epochs])


@click.command(epilog=example("tensor-pool tap camera-1"))
@click.argument("stream")
@click.option("--seconds", type=seconds_from(0.1), default=None, help="Stop after this long.")
@click.option("--frames", type=click.IntRange(1), default=None, help="Stop after this many frames.")
@click.option("--wait", type=seconds_from(0), default=None, help="Seconds to wait for the stream; without it for ever.")
@verify_option
@click.option("--spin", is_flag=True, help="Poll instead of sleeping: shortest latency, a whole core.")
@stack_option
@click.option("--json", "as_json", is_flag=True, help="Counts as JSON lines, one a second and one at the end.")
def tap(
    stream: str, seconds: float | None, frames: int | None, wait: float | None, verify: bool, spin: bool, stack: str | None, as_json: bool
) -> None:
    """Read a stream (id or name) and show frames, rate, loss and latency."""
    wanted = stream_argument(stream)
    with (
        ShutdownSignal() as shutdown,
        sessions.connect(stack) as session,
        session.consumer(wanted, wait=wait, spin=spin) as consumer,
        StatusLine(quiet=as_json) as status,
    ):
        seen = Tap(consumer, verify=verify)
        if as_json:
            print_json({"event": "attached", "stream": consumer.stream_id})
        _run_tap(seen, shutdown.event, status, seconds=seconds, frames=frames, as_json=as_json)
        final = seen.report("summary")
        if as_json:
            print_json(final)
        else:
            _print_summary(final)
    seen.stamps.expect_good()


def _run_tap(seen: Tap, stop: threading.Event, status: StatusLine, *, seconds: float | None, frames: int | None, as_json: bool) -> None:
    clock = SystemClock()
    end_ns = None if seconds is None else clock.monotonic_ns() + int(seconds * 1e9)
    next_report_ns = clock.monotonic_ns() + REPORT_NS
    while not stop.is_set() and (frames is None or seen.frames < frames):
        now_ns = clock.monotonic_ns()
        if end_ns is not None and now_ns >= end_ns:
            return
        if now_ns >= next_report_ns:
            next_report_ns = now_ns + REPORT_NS
            report = seen.report("progress")
            if as_json:
                print_json(report)
            status.show(_live_line(report))
        seen.take(0.1)


@click.command(name="ls", epilog=example("tensor-pool ls --json"))
@click.option("--name", default=None, help="Only the stream of this name.")
@click.option("--tag", "tags", multiple=True, help="Only streams with this tag (may be repeated).")
@stack_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def list_streams(name: str | None, tags: tuple[str, ...], stack: str | None, as_json: bool) -> None:
    """List the streams of the running stack."""
    with sessions.connect(stack) as session:
        rows = [asdict(stream) for stream in session.discover(name=name, tags=tags)]
    if as_json:
        print_json(rows)
    else:
        print_table("streams", rows)
