"""One epoch of one stream on disk: a directory of segments, the newest of which grows."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tensor_pool.errors import RecordingError
from tensor_pool.recorder.config import RecorderSettings
from tensor_pool.recorder.container import Preamble
from tensor_pool.recorder.index import IndexRows, write_index
from tensor_pool.recorder.messages import Layout
from tensor_pool.recorder.recovery import recover_directory, take_directory
from tensor_pool.recorder.rows import SEGMENT_SUFFIX, GapRow, Origin
from tensor_pool.recorder.schema import RAW_IMAGE, TENSOR
from tensor_pool.recorder.segment import PendingFrame, SegmentWriter

LOGGER = logging.getLogger("tensor_pool.recorder")


class WallClock(NamedTuple):
    """The two clocks a recorder reads."""

    realtime_ns: Callable[[], int]
    monotonic_ns: Callable[[], int]


@dataclass(slots=True)
class WriterCounts:
    """What one writer thread did."""

    frames_recorded: int = 0
    frames_dropped_disk: int = 0
    frames_dropped_duplicate: int = 0
    frames_lost: int = 0
    gaps_recorded: int = 0
    bytes_recorded: int = 0
    segments_sealed: int = 0


def epoch_directory(origin: Origin) -> Path:
    """Where an epoch lies below the recording's directory."""
    return Path(f"source={quote(origin.source, safe='')}", f"stream={origin.stream_id}", f"epoch={origin.epoch}")


@dataclass(slots=True)
class EpochWriter:
    """Writes frames and gaps in the order given, and rolls the segments over."""

    root: Path
    origin: Origin
    settings: RecorderSettings
    clock: WallClock
    counts: WriterCounts
    _lock: int = -1
    _segment: SegmentWriter | None = None
    _number: int = 0
    _last_seq: int = -1
    _began_ns: int = 0
    _only_tensors: bool = False
    _waiting_gaps: list[GapRow] = field(default_factory=list)
    _unsealed: list[SegmentWriter] = field(default_factory=list)
    _seal_error: str = ""
    _disk_failed: bool = False

    def open(self) -> None:
        """Make the directory, keep other recorders out of it, and finish what one of them left."""
        directory = self.root / epoch_directory(self.origin)
        directory.mkdir(parents=True, exist_ok=True)
        lock = take_directory(self.root, directory)
        try:
            left = recover_directory(self.root, directory, self.clock.realtime_ns, fsync=self.settings.fsync_on_seal)
        except BaseException:
            os.close(lock)
            raise
        self._lock, self._last_seq, self._number = lock, left.last_seq, left.number
        # what was lost while the directory could not be opened goes on behind what is in it
        waiting, self._waiting_gaps = self._waiting_gaps, []
        for gap in waiting:
            self._wait_with(gap)

    def add(self, frames: Sequence[PendingFrame], gaps: Sequence[GapRow]) -> None:
        """Record gaps, then frames. What the disk does not take becomes a gap of the cause `disk`."""
        if self._lock < 0:
            try:
                self.open()
            except OSError as error:
                for gap in gaps:
                    self._add_gap(gap)
                self._lose(frames, error)
                return
        for gap in gaps:
            self._add_gap(gap)
        fresh = [frame for frame in frames if frame.row.seq > self._last_seq]
        self.counts.frames_dropped_duplicate += len(frames) - len(fresh)
        if not fresh:
            return
        self._fill_hole(fresh[0].row.seq, fresh[0].row.recorded_ns)
        try:
            segment = self._segment_for(fresh)
            gaps_now = list(self._waiting_gaps)
            segment.append(fresh, gaps_now)
        except OSError as error:
            self._lose(fresh, error)
            return
        if self._disk_failed:
            self._disk_failed = False
            LOGGER.warning("%s takes frames again", self.root)
        del self._waiting_gaps[: len(gaps_now)]
        self.counts.gaps_recorded += len(gaps_now)
        self.counts.frames_recorded += len(fresh)
        self.counts.bytes_recorded += sum(frame.payload.nbytes for frame in fresh)
        self._last_seq = fresh[-1].row.seq
        if segment.size_bytes >= self.settings.segment_bytes:
            self._seal()

    def tick(self) -> None:
        """Seal a segment that has become old."""
        if self._segment is not None and self.clock.monotonic_ns() - self._began_ns >= self.settings.segment_seconds * 1e9:
            self._seal()

    def close(self) -> None:
        """Write the gaps that wait, seal, and let other recorders in. After a `RecordingError` it can be tried again."""
        try:
            self._write_waiting_gaps()
        finally:
            self._seal()
        if self._unsealed:
            path = self._unsealed[0].path
            reason = f"{path} could not be sealed ({self._seal_error}): its frames can be read here, but it has no summary or no index"
            raise RecordingError(reason, path=str(path), hint="the next recorder into this directory seals it")
        self.release()

    def release(self) -> None:
        """Let go of all files, whatever state they are in."""
        for segment in (*self._unsealed, self._segment):
            if segment is not None:
                segment.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _write_waiting_gaps(self) -> None:
        if not self._waiting_gaps:
            return
        try:
            if self._lock < 0:
                self.open()
            (self._segment or self._begin(TENSOR)).append([], self._waiting_gaps)
        except OSError as error:
            directory = self.root / epoch_directory(self.origin)
            first, last = self._waiting_gaps[0].first_seq, self._waiting_gaps[-1].last_seq
            reason = f"{directory} does not take the gaps at its end, seq {first} to {last}: {error}"
            raise RecordingError(reason, path=str(directory)) from error
        self.counts.gaps_recorded += len(self._waiting_gaps)
        self._waiting_gaps.clear()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _fill_hole(self, seq: int, recorded_ns: int) -> None:
        """What lies between this recorder and the one before it, which the consumer of neither answers for."""
        if 0 <= self._last_seq < seq - 1:
            self._wait_with(GapRow(self._last_seq + 1, seq - 1, "recorder", recorded_ns))

    def _add_gap(self, gap: GapRow) -> None:
        if gap.cause != "disk":
            self.counts.frames_lost += max(0, gap.last_seq - max(gap.first_seq, self._last_seq + 1) + 1)
        self._wait_with(gap)

    def _wait_with(self, gap: GapRow) -> None:
        """Keep what is new in a gap for the next chunk."""
        first_seq = max(gap.first_seq, self._last_seq + 1)
        if first_seq > gap.last_seq:
            return
        self._fill_hole(first_seq, gap.recorded_ns)
        last = self._waiting_gaps[-1] if self._waiting_gaps else None
        if last is not None and last.cause == gap.cause and last.last_seq + 1 == first_seq:
            self._waiting_gaps[-1] = last._replace(last_seq=gap.last_seq)
        else:
            self._waiting_gaps.append(gap._replace(first_seq=first_seq))
        self._last_seq = gap.last_seq

    def _lose(self, frames: Sequence[PendingFrame], error: OSError) -> None:
        if not self._disk_failed:
            self._disk_failed = True
            LOGGER.error("%s does not take frames (%s): they are dropped and counted", self.root, error)
        self.counts.frames_dropped_disk += len(frames)
        for frame in frames:
            self._add_gap(GapRow(frame.row.seq, frame.row.seq, "disk", frame.row.recorded_ns))

    def _segment_for(self, frames: Sequence[PendingFrame]) -> SegmentWriter:
        are_pictures = all(
            Layout(row.dtype, row.major_order, row.shape, row.strides).encoding is not None for row in (frame.row for frame in frames)
        )
        # a segment has one schema; a stream that mixes pictures with other tensors goes on with the one that holds both
        self._only_tensors = self._only_tensors or not are_pictures
        schema = TENSOR if self._only_tensors else RAW_IMAGE
        if self._segment is not None and self._segment.preamble.schema == RAW_IMAGE and schema == TENSOR:
            self._seal()
        return self._segment or self._begin(schema)

    def _begin(self, schema: str) -> SegmentWriter:
        now_ns = self.clock.monotonic_ns()
        wall_ns = self.clock.realtime_ns()
        path = self.root / epoch_directory(self.origin) / f"{self._number + 1:06}{SEGMENT_SUFFIX}"
        self._segment = SegmentWriter.create(path, Preamble(self.origin, schema, wall_ns, wall_ns - now_ns))
        self._number += 1
        self._began_ns = now_ns
        return self._segment

    def _seal(self) -> None:
        """Seal the segment that grows, and those that could not be sealed before."""
        if self._segment is not None:
            self._unsealed.append(self._segment)
            self._segment = None
        waiting, self._unsealed = self._unsealed, []
        for segment in waiting:
            try:
                segment.seal(fsync=self.settings.fsync_on_seal)
                write_index(self.root, segment.path, IndexRows(self.origin, segment.frames, segment.gaps))
            except (OSError, RecordingError) as error:
                LOGGER.error("%s could not be sealed (%s): this is tried again", segment.path, error)
                self._seal_error = str(error)
                self._unsealed.append(segment)
            else:
                self.counts.segments_sealed += 1
