"""The thread that writes: takes what waits, in order, to the directory of its stream and epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Final

from tensor_pool.consumer.frame import Frame
from tensor_pool.errors import RecordingError
from tensor_pool.recorder.config import RecorderSettings
from tensor_pool.recorder.epoch_writer import EpochWriter, WallClock, WriterCounts
from tensor_pool.recorder.queue import Queued, QueuedFrame, RecordQueue
from tensor_pool.recorder.recovery import recover_abandoned
from tensor_pool.recorder.rows import FrameRow, GapRow, Origin
from tensor_pool.recorder.segment import MAX_CHUNK_MESSAGES, PendingFrame

LOGGER = logging.getLogger("tensor_pool.recorder")
TICK_S: Final = 0.5


def pending_frame(frame: Frame, recorded_ns: int) -> PendingFrame:
    """A consumer's frame as a segment takes it."""
    row = FrameRow(
        seq=frame.seq,
        timestamp_ns=frame.timestamp_ns,
        publish_timestamp_ns=frame.publish_timestamp_ns,
        recorded_ns=recorded_ns,
        meta_version=frame.meta_version,
        trace_id=frame.trace_id,
        dtype=int(frame.dtype),
        major_order=frame.major_order,
        shape=tuple(frame.shape),
        strides=None if frame.strides is None else tuple(frame.strides),
        offset=0,
        length=0,
        crc32c=0,
    )
    return PendingFrame(row, frame.payload)


class Writer:
    """Everything that touches the disk while recording; one thread runs it."""

    def __init__(
        self,
        root: Path,
        source: str,
        queue: RecordQueue,
        settings: RecorderSettings,
        names: Mapping[int, str],
        clock: WallClock,
        on_frame: Callable[[Frame], None] | None,
    ) -> None:
        self.counts = WriterCounts()
        self._root = root
        self._source = source
        self._queue = queue
        self._settings = settings
        self._names = names
        self._clock = clock
        self._epochs: dict[int, EpochWriter] = {}
        self._unfinished: list[EpochWriter] = []
        self._on_frame = on_frame

    def run(self) -> None:
        """Finish what others left, write until the queue is closed and empty, then seal. `RecordingError` where that cannot be."""
        try:
            recover_abandoned(self._root, self._clock.realtime_ns, fsync=self._settings.fsync_on_seal)
            while not self._queue.is_drained:
                items = self._queue.take(TICK_S, largest_bytes=self._settings.chunk_bytes, largest_items=MAX_CHUNK_MESSAGES)
                self.write(items)
                for writer in self._epochs.values():
                    writer.tick()
        finally:
            self._queue.close()
            self._close()

    def _close(self) -> None:
        with ExitStack() as ending:
            # all of them, whatever one of them says
            for writer in (*self._unfinished, *self._epochs.values()):
                ending.callback(writer.release)
                ending.callback(writer.close)

    def write(self, items: list[Queued]) -> None:
        """Frames and gaps in order; a run of small frames becomes one chunk."""
        for (stream_id, epoch, are_frames), run in groupby(items, key=_place):
            writer = self._writer(stream_id, epoch)
            if are_frames:
                arrived = [item for item in run if isinstance(item, QueuedFrame)]
                writer.add([pending_frame(item.frame, item.recorded_ns) for item in arrived], [])
                if self._on_frame is not None:
                    for item in arrived:
                        self._on_frame(item.frame)
            else:
                gaps: list[GapRow] = [item.gap for item in run if not isinstance(item, QueuedFrame)]
                writer.add([], gaps)

    def _writer(self, stream_id: int, epoch: int) -> EpochWriter:
        writer = self._epochs.get(stream_id)
        if writer is not None and writer.origin.epoch == epoch:
            return writer
        if writer is not None:
            try:
                writer.close()
            except RecordingError as error:
                # the new epoch is recorded all the same, and this one is tried again at the end
                LOGGER.error("%s", error.message)
                self._unfinished.append(writer)
        origin = Origin(self._source, stream_id, self._names.get(stream_id, ""), epoch)
        writer = EpochWriter(self._root, origin, self._settings, self._clock, self.counts)
        self._epochs[stream_id] = writer
        return writer


def _place(item: Queued) -> tuple[int, int, bool]:
    if isinstance(item, QueuedFrame):
        return item.frame.stream_id, item.frame.epoch, True
    return item.stream_id, item.epoch, False
