"""The parts of a frame's way, one by one, as steps that take a few frames and say how long that took; `path` puts them side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import tensor_pool as tp
from benches import native
from benches.payloads import Words, windows
from benches.stage import BenchError
from tensor_pool import _native
from tensor_pool.runtime import StackDescription
from tensor_pool.sbe.control import Dtype
from tensor_pool.shm.layout import HEADER_SLOT_BYTES, SUPERBLOCK_BYTES
from tensor_pool.tensors import next_stride_bytes
from tensor_pool.transport import TransportClient, exclusive_channel, subscription_channel

SLOTS: Final = 64
# fewer than a reader may lag behind
FRAMES: Final = 16
STREAM: Final = 10_000
LONE_STREAM: Final = 10_001
EPOCH: Final = 1
DESCRIPTORS: Final = 7_777
# a ring of more than this is in no cache when the writer comes round
CACHED_BYTES: Final = 16 << 20

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
CLAIM: Final = "claim, nothing filled in"
INTO: Final = "read_into"
ONLY_SEQ: Final = "read, of which only seq is used"
LATEST: Final = "latest"
ITERATION: Final = "for frame in consumer"
OTHERS: Final = (WOKEN, CLAIM, INTO, ONLY_SEQ, LATEST, ITERATION)
OPERATIONS: Final = (WRITE, CLAIM, BORROW, READ, INTO, ONLY_SEQ, LATEST, ITERATION)
"""What heap and bytecodes are counted of."""
Step = Callable[[], int]
Work = Callable[[], object]


class _Lone:
    """Writers, publication and reader of our own: the parts of a session, one by one, on the core's header ring and the session's pool."""

    def __init__(self, directory: Path, pool_file: Path, stack: StackDescription, frame: Words) -> None:
        self._transport = TransportClient(stack.aeron_dir)
        channel, stride = stack.descriptor_channel, next_stride_bytes(frame.nbytes)
        self._publication = self._transport.publish(exclusive_channel(channel, "16m"), DESCRIPTORS)
        subscription = self._transport.subscribe(subscription_channel(channel), DESCRIPTORS)
        header, pool = (
            _native.Region.open(str(file), [str(file.parent)], writable=True, minimum_length=SUPERBLOCK_BYTES + length * SLOTS)
            for file, length in ((directory / "header.ring", HEADER_SLOT_BYTES), (pool_file, stride))
        )
        for region in (header, pool):
            region.prefault()
        pools = [(1, stride, pool)]

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


def _timed(work: Work) -> int:
    turns = range(FRAMES)
    began_ns = time.perf_counter_ns()
    for _ in turns:
        work()
    return time.perf_counter_ns() - began_ns


class Way:
    """Every step of every way, as something that takes `FRAMES` frames and says how long that took.

    All frames lie in the session's pool, where nobody but this thread writes: two pieces of 40 MiB differ by more than a step adds. Header
    rings there are two, since each has its own numbers.
    """

    def __init__(self, directory: Path, session: tp.Session, stack: StackDescription, nbytes: int) -> None:
        self.frame = windows(nbytes)[0]
        self.out = self.frame.copy()
        self.producer = session.producer(STREAM, shape=self.frame.shape, dtype=self.frame.dtype, slots=SLOTS)
        self.consumer = session.consumer(STREAM)
        [pool_file] = directory.parent.rglob("*.pool")
        self._core = native.module().CoreRing(str(directory), nbytes, SLOTS, str(pool_file))
        self._lone = _Lone(directory, pool_file, stack, self.frame)

    def close(self) -> None:
        self._lone.close()

    def taken(self, step: Step) -> int:
        """What `step` takes where every step begins alike, whoever was before it and whichever memory it has.

        Either its whole ring is in the cache, or nothing is: else that alone would change its copies by more than all other parts add.
        """
        if self.frame.nbytes * SLOTS > CACHED_BYTES:
            self._core.forget()
        else:
            for _ in range(SLOTS // FRAMES):
                step()
        return step()

    def drain(self) -> None:
        """Nothing that was published is still to be read."""
        _drop(lambda: self.consumer.latest(0))

    def steps(self) -> dict[str, tuple[Step, ...]]:
        lone, operations = self._lone, self.operations()

        def of_session(name: str) -> Step:
            before, work = operations[name]
            if name in (WRITE, CLAIM):
                return lambda: self._then_drained(work)
            return lambda: self._after(before, work)

        def each(name: str) -> Step:
            return lambda: _each_timed(*operations[name])

        return {
            WRITE: (*self._core_writes(), self._silent, lambda: self._announced(wakes=False), of_session(WRITE)),
            BORROW: (
                lambda: self._in_core(self._core.borrow_ns),
                lambda: self._native_read(lambda: lone.reader.borrow(0)),
                lambda: self._native_read(lambda: lone.reader.borrow(0).array),  # type: ignore[union-attr]
                of_session(BORROW),
            ),
            READ: (
                lambda: self._in_core(self._core.copy_out_ns),
                lambda: self._in_core(self._core.read_ns),
                lambda: self._native_read(lambda: lone.reader.read(0)),
                lambda: self._native_read(lambda: lone.reader.read(0).array),  # type: ignore[union-attr]
                of_session(READ),
            ),
            WOKEN: (lambda: self._announced(wakes=True),),
            # the newest is taken sixteen times: each needs one that is newer
            LATEST: (each(LATEST),),
            **{name: (of_session(name),) for name in (CLAIM, INTO, ONLY_SEQ, ITERATION)},
        }

    def _core_writes(self) -> tuple[Step, Step]:
        core, address = self._core, self.frame.ctypes.data
        return lambda: core.copy_in_ns(address, FRAMES), lambda: core.write_ns(address, FRAMES)

    def _silent(self) -> int:
        return _timed(lambda: self._lone.silent.publish_declared(self.frame))

    def _announced(self, *, wakes: bool) -> int:
        lone, frame = self._lone, self.frame
        lone.announcing.set_waiters(wakes)
        took_ns = _timed(lambda: lone.announcing.publish_declared(frame))
        _drop(lambda: lone.reader.borrow(0))
        return took_ns

    def _native_read(self, work: Work) -> int:
        self._lone.announcing.set_waiters(False)
        for _ in range(FRAMES):
            self._lone.announcing.publish_declared(self.frame)
        return _timed(work)

    def _in_core(self, work: Callable[[int], int]) -> int:
        self._core.write_ns(self.frame.ctypes.data, FRAMES)
        return work(FRAMES)

    def _then_drained(self, work: Work) -> int:
        took_ns = _timed(work)
        self.drain()
        return took_ns

    def _after(self, before: Work, work: Work) -> int:
        for _ in range(FRAMES):
            before()
        return _timed(work)

    def operations(self) -> dict[str, tuple[Work, Work]]:
        """(what comes before, the operation), for each that a user has."""
        producer, consumer, frame, out = self.producer, self.consumer, self.frame, self.out
        frames = iter(consumer)

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

        def only_seq() -> None:
            _ = consumer.read(0).seq  # type: ignore[union-attr]

        def latest() -> None:
            _ = consumer.latest(0).array  # type: ignore[union-attr]

        def iterate() -> None:
            _ = next(frames).array

        alone: Work = lambda: None  # noqa: E731
        return {
            WRITE: (alone, publish),
            CLAIM: (alone, claim),
            BORROW: (publish, borrow),
            READ: (publish, read),
            INTO: (publish, read_into),
            ONLY_SEQ: (publish, only_seq),
            LATEST: (publish, latest),
            ITERATION: (publish, iterate),
        }


def _drop(read: Work) -> None:
    while read() is not None:
        pass


def _each_timed(before: Work, work: Work) -> int:
    took_ns = 0
    for _ in range(FRAMES):
        before()
        began_ns = time.perf_counter_ns()
        work()
        took_ns += time.perf_counter_ns() - began_ns
    return took_ns
