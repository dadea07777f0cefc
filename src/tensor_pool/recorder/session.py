"""Record streams: a thread per consumer reads, one thread writes, and what the disk cannot take is counted."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

from tensor_pool.client.conductor import forked_error
from tensor_pool.clock import wait_ns
from tensor_pool.consumer.frame import Frame
from tensor_pool.consumer.stats import ConsumerStats
from tensor_pool.errors import ClosedError, RecordingError, TensorPoolError
from tensor_pool.recorder.config import RecorderSettings
from tensor_pool.recorder.extra import record_extra
from tensor_pool.recorder.losses import LossTracker
from tensor_pool.recorder.queue import QueuedFrame, QueuedGap, RecordQueue
from tensor_pool.recorder.rows import GapRow

if TYPE_CHECKING:
    from tensor_pool.recorder.writer import Writer

LOGGER = logging.getLogger("tensor_pool.recorder")
READ_TIMEOUT_S: Final = 0.1
LARGEST_DRAIN_FRAMES: Final = 4096


class FrameSource(Protocol):
    """What a recorder needs of a consumer."""

    @property
    def stream_id(self) -> int: ...
    @property
    def stats(self) -> ConsumerStats: ...
    @property
    def earlier_stats(self) -> tuple[ConsumerStats, ...]: ...
    def read(self, timeout: float | None = None) -> Frame | None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RecorderStats:
    """Counts over all streams. Every frame a consumer answers for is recorded, lost, dropped, or still on its way."""

    frames_recorded: int = 0
    bytes_recorded: int = 0
    frames_lost: int = 0
    """Frames that the consumers never got, in gap rows with the consumer's cause."""
    frames_dropped_disk: int = 0
    """Frames that were there when the disk was slow or full, in gap rows of the cause `disk`."""
    frames_dropped_duplicate: int = 0
    """Frames that this directory already has."""
    gaps_recorded: int = 0
    segments_sealed: int = 0
    frames_waiting: int = 0
    """Frames in the queue to the disk."""


class RecordingSession:
    """Records until it is closed. It takes the consumers over and closes them.

    `names` gives stream ids the names that readers find them under. `on_frame` is called with each frame that is written, by the thread
    that writes; an error in it ends the recording.
    """

    def __init__(
        self,
        consumers: Iterable[FrameSource],
        path: str | Path,
        *,
        source: str | int,
        settings: RecorderSettings | None = None,
        names: Mapping[int, str] | None = None,
        on_frame: Callable[[Frame], None] | None = None,
        realtime_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        with record_extra():
            from tensor_pool.recorder.epoch_writer import WallClock
            from tensor_pool.recorder.writer import Writer
        self._settings = settings or RecorderSettings()
        self.path = Path(path)
        self._realtime_ns = realtime_ns
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(
                f"{path} cannot be made: {error.strerror}", path=str(path), hint="give a directory you may write"
            ) from error
        self._queue = RecordQueue(frames=self._settings.queue_frames, bytes_=self._settings.queue_bytes)
        self._writer: Writer = Writer(
            self.path, str(source), self._queue, self._settings, dict(names or {}), WallClock(realtime_ns, monotonic_ns), on_frame
        )
        self._readers = [_Reader(self, consumer, self._queue) for consumer in consumers]
        self._stopping = threading.Event()
        self._failed = threading.Event()
        self._failure: BaseException | None = None
        self._closed = False
        self._process_id = os.getpid()
        self._write_thread = threading.Thread(target=self._run, args=(self._writer.run,), name="tensor-pool-record-write", daemon=True)
        self._read_threads = [
            threading.Thread(
                target=self._run,
                args=(lambda reader=reader: reader.run(self._stopping),),
                name=f"tensor-pool-record-{reader.stream_id}",
                daemon=True,
            )
            for reader in self._readers
        ]
        for thread in (self._write_thread, *self._read_threads):
            thread.start()

    @property
    def streams(self) -> Sequence[int]:
        """The ids of the streams that are recorded."""
        return [reader.stream_id for reader in self._readers]

    def _check_here(self) -> None:
        if os.getpid() != self._process_id:
            raise forked_error("recording")

    @property
    def stats(self) -> RecorderStats:
        self._check_here()
        counts = self._writer.counts
        return RecorderStats(
            frames_recorded=counts.frames_recorded,
            bytes_recorded=counts.bytes_recorded,
            frames_lost=counts.frames_lost,
            frames_dropped_disk=counts.frames_dropped_disk + sum(reader.frames_dropped for reader in self._readers),
            frames_dropped_duplicate=counts.frames_dropped_duplicate,
            gaps_recorded=counts.gaps_recorded,
            segments_sealed=counts.segments_sealed,
            frames_waiting=self._queue.frames,
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called, by the user or with the session."""
        return self._closed

    @property
    def failure(self) -> BaseException | None:
        """What ended the recording before it was closed, the media driver is gone for example, or kept it from being finished then."""
        return self._failure

    def wait(self, timeout: float | None = None) -> None:
        """Return after `timeout` seconds (None: never); raise at once when the recording has failed."""
        self._check_here()
        limit_ns = wait_ns(timeout)
        if self._failed.wait(None if limit_ns is None else min(limit_ns / 1e9, threading.TIMEOUT_MAX)) and self._failure is not None:
            raise self._failure

    def realtime_ns(self) -> int:
        return self._realtime_ns()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # a thread has nobody else to tell
            if not isinstance(error, TensorPoolError):
                LOGGER.exception("the recorder failed")
            else:
                LOGGER.error("the recording ends: %s", error)
            self._failure = self._failure or error
            self._failed.set()

    def close(self) -> None:
        """Take what has arrived, write what waits, seal the segments, close the consumers. In a forked child: nothing.

        Raises what goes wrong meanwhile: frames that wait in a segment which cannot be sealed, for example.
        """
        if self._closed or os.getpid() != self._process_id:
            return
        self._closed = True
        failure = self._failure
        self._stopping.set()
        with ExitStack() as ending:
            # whatever goes wrong with a consumer, what has arrived is written
            ending.callback(self._write_thread.join)
            ending.callback(self._queue.close)
            for reader in self._readers:
                ending.callback(reader.close)
            for thread in self._read_threads:
                thread.join()
        if self._failure is not None and self._failure is not failure:
            raise self._failure

    def __enter__(self) -> RecordingSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except TensorPoolError:
            # never in place of an exception of the body; `failure` has it
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"<RecordingSession of streams {list(self.streams)} in {self.path}{', closed' if self._closed else ''}>"


class _Reader:
    """Takes one consumer's frames to the queue, and says what is missing between them."""

    def __init__(self, session: RecordingSession, consumer: FrameSource, queue: RecordQueue) -> None:
        self._session = session
        self._consumer = consumer
        self._queue = queue
        self._losses = LossTracker()
        self.stream_id = consumer.stream_id
        self.frames_dropped = 0

    def run(self, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                self._take(READ_TIMEOUT_S)
            for _ in range(LARGEST_DRAIN_FRAMES):
                if not self._take(0):
                    break
        except ClosedError:
            if not stopping.is_set():
                raise
        finally:
            self._put_gaps(self._losses.ended(self._known()))

    def _take(self, timeout: float) -> bool:
        frame = self._consumer.read(timeout)
        if frame is None:
            return False
        epoch, seq = frame.epoch, frame.seq
        known = () if self._losses.expects(epoch, seq) else self._known()
        self._put_gaps(self._losses.arrived(epoch, seq, known))
        now_ns = self._session.realtime_ns()
        if not self._queue.offer(QueuedFrame(frame, now_ns)):
            self.frames_dropped += 1
            self._queue.put(QueuedGap(self.stream_id, epoch, GapRow(seq, seq, "disk", now_ns)))
        return True

    def _known(self) -> tuple[ConsumerStats, ...]:
        return (*self._consumer.earlier_stats, self._consumer.stats)

    def _put_gaps(self, gaps: Iterable[tuple[int, GapRow]]) -> None:
        for epoch, gap in gaps:
            self._queue.put(QueuedGap(self.stream_id, epoch, gap._replace(recorded_ns=self._session.realtime_ns())))

    def close(self) -> None:
        self._consumer.close()
