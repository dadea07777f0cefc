"""The thread that writes: takes what waits, in order, to the directory of its stream and epoch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

from tensor_pool.consumer.frame import Frame
from tensor_pool.recorder.config import RecorderSettings
from tensor_pool.recorder.epoch_writer import EpochWriter, WallClock, WriterCounts
from tensor_pool.recorder.queue import Queued, QueuedFrame, RecordQueue
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
        self, root: Path, source: str, queue: RecordQueue, settings: RecorderSettings, names: Mapping[int, str], clock: WallClock
    ) -> None:
        self.counts = WriterCounts()
        self._root = root
        self._source = source
        self._queue = queue
        self._settings = settings
        self._names = names
        self._clock = clock
        self._epochs: dict[int, EpochWriter] = {}

    def run(self) -> None:
        """Write until the queue is closed and empty, then seal."""
        try:
            while not self._queue.is_drained:
                items = self._queue.take(TICK_S, largest_bytes=self._settings.chunk_bytes, largest_items=MAX_CHUNK_MESSAGES)
                self.write(items)
                for writer in self._epochs.values():
                    writer.tick()
        finally:
            self._queue.close()
            for writer in self._epochs.values():
                writer.close()

    def write(self, items: list[Queued]) -> None:
        """Frames and gaps in order; a run of small frames becomes one chunk."""
        for (stream_id, epoch, are_frames), run in groupby(items, key=_place):
            writer = self._writer(stream_id, epoch)
            if are_frames:
                frames = [pending_frame(item.frame, item.recorded_ns) for item in run if isinstance(item, QueuedFrame)]
                writer.add(frames, [])
            else:
                gaps: list[GapRow] = [item.gap for item in run if not isinstance(item, QueuedFrame)]
                writer.add([], gaps)

    def _writer(self, stream_id: int, epoch: int) -> EpochWriter:
        writer = self._epochs.get(stream_id)
        if writer is not None and writer.origin.epoch == epoch:
            return writer
        if writer is not None:
            writer.close()
        origin = Origin(self._source, stream_id, self._names.get(stream_id, ""), epoch)
        writer = EpochWriter(self._root, origin, self._settings, self._clock, self.counts)
        self._epochs[stream_id] = writer
        return writer


def _place(item: Queued) -> tuple[int, int, bool]:
    if isinstance(item, QueuedFrame):
        return item.frame.stream_id, item.frame.epoch, True
    return item.stream_id, item.epoch, False
