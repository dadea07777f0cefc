"""One ring, two processes: torn frames, waiting, being woken, being interrupted. No Aeron: a counter stands for the descriptors."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from tensor_pool._native import FrameReader, Region
from tensor_pool.errors import ClosedError
from tests.unit.native.rings import EPOCH, Ring, balances, publish, ring

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 20.0
TORN_RUN_S = 1.0
ENOUGH_FRAMES = 200
# with fewer the reader did not lag, and the test shows nothing
LATE_DROPS_NEEDED = 1000
STRIDE = 256 * 1024
STOP = 2**64 - 1

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a function of `ring_workers`; whatever still runs after the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(function: str, *arguments: object) -> subprocess.Popen[str]:
        module = f"tests.integration.native.ring_workers:{function}"
        command = [sys.executable, "-m", "tensor_pool.testing.child", module, *(str(argument) for argument in arguments)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        started.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def heard(process: subprocess.Popen[str]) -> Any:
    stdout: IO[str] | None = process.stdout
    assert stdout is not None
    return json.loads(stdout.readline())


def wait_until(condition: Callable[[], object], *, pause_s: float = 0.001) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(pause_s)


def newest(reader: FrameReader) -> int:
    return reader.counters()["newest_committed"]


def seq_behind(reader: FrameReader, lag: int, earliest: int) -> int:
    """The seq that lies `lag` frames behind the newest one, as soon as that is `earliest` or a later one."""
    wait_until(lambda: newest(reader) - lag >= earliest, pause_s=0.0)
    return newest(reader) - lag


@pytest.mark.requirement("W-8.3-5")
@pytest.mark.requirement("W-8.3-7")
@pytest.mark.requirement("W-8.3-11")
@pytest.mark.requirement("W-15.3-2")
@pytest.mark.parametrize("how", ["read", "read_into", "borrow"])
def test_a_reader_at_the_edge_of_being_overwritten_never_accepts_a_torn_frame(start: Start, how: str) -> None:
    nslots = 8
    with ring(nslots=nslots, strides=(STRIDE,)) as made:
        reader = made.reader()
        writer = start("write_without_end", made.directory, STRIDE, nslots)
        wait_until(lambda: newest(reader) > nslots)
        out = np.empty(STRIDE // 8, np.uint64)
        next_seq = checked = 0
        started = time.monotonic()
        for lag in itertools.cycle((nslots - 1, 0, nslots - 2, 1, nslots - 1, 2)):
            if time.monotonic() > started + TORN_RUN_S and checked >= ENOUGH_FRAMES and reader.counters()["late"] >= LATE_DROPS_NEEDED:
                break
            assert time.monotonic() < started + DEADLINE_S, reader.counters()
            # nslots - 1 behind is the slot that the writer opens next
            seq = seq_behind(reader, lag, next_seq)
            next_seq = seq + 1
            reader.inject(EPOCH, seq)
            frame = reader.read_into(out, 0) if how == "read_into" else reader.borrow(0) if how == "borrow" else reader.read(0)
            if frame is None:
                continue
            values = out if how == "read_into" else np.array(frame.buffer).view(np.uint64)
            if how == "borrow" and not frame.buffer.release():
                continue
            assert (values == frame.seq).all(), "torn"
            checked += 1
        made.header.store_u64(0, STOP)
        assert heard(writer)["published"] > nslots
        counters = reader.counters()
        assert checked == counters["delivered"]
        assert counters["invalid"] == 0
        assert balances(counters)


def test_a_waiting_read_gets_every_frame_that_another_process_publishes(start: Start) -> None:
    with ring() as made:
        reader = made.reader()
        writer = start("write_on_demand", made.directory)
        for seq in range(50):
            made.header.store_u64(0, seq + 1)
            assert wait_for_seq(made, reader, seq) == seq
            assert made.header.load_u64(8) <= time.monotonic_ns()
        made.header.store_u64(0, STOP)
        assert writer.wait(DEADLINE_S) == 0
        assert reader.counters()["delivered"] == 50


def wait_for_seq(made: Ring, reader: FrameReader, seq: int) -> int:
    """Read `seq`, with its descriptor injected by another thread as soon as the frame is committed."""
    header = made.open(made.header, writable=False)

    def announce() -> None:
        wait_until(lambda: header.load_u64(made.slot_offset(seq)) == seq << 1 | 1, pause_s=0.0)
        reader.inject(EPOCH, seq)

    announcer = threading.Thread(target=announce)
    announcer.start()
    frame = reader.read(int(DEADLINE_S * 1e9))
    announcer.join()
    assert frame is not None
    return frame.seq


@pytest.mark.parametrize("mapped", ["mapped", "unmapped"])
def test_an_interrupt_ends_a_wait_and_a_wait_costs_next_to_nothing(start: Start, mapped: str) -> None:
    with ring() as made:
        waiting = start("wait_without_end", made.directory, mapped)
        assert heard(waiting) == "waiting"
        time.sleep(1.0)
        sent_ns = time.monotonic_ns()
        waiting.send_signal(signal.SIGINT)
        said = heard(waiting)
        assert waiting.wait(DEADLINE_S) == 0
        assert said["interrupted_ns"] > sent_ns
        # 1 % where it was measured; a wait that polls takes all of a core
        assert said["cpu_share"] < 0.3


def test_closing_or_forgetting_a_mapping_from_another_thread_does_not_leave_a_wait_behind() -> None:
    with ring() as made:
        reader = made.reader()
        ends: list[object] = []

        def wait() -> None:
            try:
                ends.append(reader.read(None))
            except ClosedError as error:
                ends.append(error)

        waiting = [threading.Thread(target=wait) for _ in range(3)]
        for thread in waiting:
            thread.start()
        reader.unmap()
        made.map(reader, first_seq=0)
        writer = made.writer()
        reader.inject(EPOCH, publish(writer, b"x"))
        wait_until(lambda: len(ends) == 1)
        reader.close()
        for thread in waiting:
            thread.join(DEADLINE_S)
        assert sum(isinstance(end, ClosedError) for end in ends) == 2
        with pytest.raises(ClosedError):
            reader.read(0)
        with pytest.raises(ClosedError):
            made.map(reader)
        reader.close()


def test_several_threads_read_every_frame_exactly_once() -> None:
    frames, threads_count = 2000, 4
    with ring(nslots=2048, strides=(1024,)) as made:
        reader = made.reader()
        writer = made.writer()
        seen: list[int] = []
        lock = threading.Lock()

        def read() -> None:
            while (frame := reader.read(200_000_000)) is not None:
                value = int(np.asarray(frame.buffer).view(np.uint64)[0])
                with lock:
                    seen.append(value)
                    assert value == frame.seq

        threads = [threading.Thread(target=read) for _ in range(threads_count)]
        for thread in threads:
            thread.start()
        for number in range(frames):
            reader.inject(EPOCH, publish(writer, np.full(128, number, np.uint64), (128,), dtype=7))
        for thread in threads:
            thread.join(DEADLINE_S)
        assert sorted(seen) == list(range(frames))
        counters = reader.counters()
        assert counters["delivered"] == frames
        assert balances(counters)


@pytest.mark.parametrize("spin", [False, True])
def test_a_time_out_is_kept_and_brings_nothing(spin: bool) -> None:
    with ring() as made:
        reader = made.reader()
        for timeout_ns in (0, 1, 30_000_000):
            started_ns = time.monotonic_ns()
            assert reader.read(timeout_ns, spin=spin) is None
            assert time.monotonic_ns() - started_ns >= timeout_ns
        # the longest time-out there is does not overflow
        reader.inject(EPOCH, publish(made.writer(), b"x"))
        assert reader.read(2**64 - 1, spin=spin) is not None


def test_the_eventfd_says_that_frames_may_be_waiting() -> None:
    import select

    with ring() as made:
        reader = made.reader()
        descriptor = reader.fileno()
        assert reader.fileno() == descriptor
        assert not os.get_inheritable(descriptor)

        def readable() -> bool:
            return bool(select.select([descriptor], [], [], 0)[0])

        assert readable()
        assert reader.read(0) is None
        assert not readable()
        reader.inject(EPOCH + 1, 0)
        assert not readable()
        reader.inject(EPOCH, publish(made.writer(), b"x"))
        assert readable()
        assert reader.read(0) is not None
        assert reader.read(0) is None
        assert not readable()
        reader.wake()
        assert readable()
        assert reader.read(0) is None
        reader.close()
        assert readable()


def test_regions_of_two_processes_are_the_same_memory(start: Start) -> None:
    with ring() as made:
        other = Region.open(made.header.path, [str(made.directory)], writable=True, minimum_length=1)
        other.store_u64(8, 42)
        assert made.header.load_u64(8) == 42
        assert other.identity == made.header.identity
