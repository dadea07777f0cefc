"""One segment file: written by appending, found whole or torn by walking through it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from tensor_pool.recorder.container import (
    CHUNK_HEAD,
    FRAME_CHANNEL,
    GAP_CHANNEL,
    MessageEntry,
    Preamble,
    SegmentLog,
    chunk_entry,
    chunk_head,
)
from tensor_pool.recorder.messages import MessageStamp, encode_frame, encode_gap
from tensor_pool.recorder.rows import FrameRow, GapRow
from tensor_pool.recorder.scan import ScannedSegment, map_segment
from tensor_pool.runtime import failpoints

MAX_CHUNK_MESSAGES: Final = 256
_BUFFERS_PER_WRITE: Final = 512  # the kernel takes 1024


@dataclass(frozen=True, slots=True)
class PendingFrame:
    """A frame on its way into a segment; where it will lie is not known yet, and its checksum not computed."""

    row: FrameRow
    payload: memoryview


@dataclass(frozen=True, slots=True)
class _Head:
    """What was written since the last payload, as the row of the next frame will tell it."""

    length: int = 0
    crc32c: int = 0

    def then(self, part: bytes | memoryview) -> _Head:
        return _Head(self.length + len(part), crc32c(part, self.crc32c))


class SegmentWriter:
    """Appends chunks to a file. A write that fails leaves the file as it was before."""

    def __init__(self, path: Path, descriptor: int, preamble: Preamble, log: SegmentLog) -> None:
        """Of a file that ends with its preamble."""
        self.path = path
        self.preamble = preamble
        self.frames: list[FrameRow] = []
        self.gaps: list[GapRow] = []
        self.size_bytes = log.metadata_offset + log.metadata_length
        self._descriptor = descriptor
        self._log = log
        self._head = _Head()
        self._is_sealed = False

    @classmethod
    def create(cls, path: Path, preamble: Preamble) -> SegmentWriter:
        """Begin a new file."""
        head, log = preamble.encode()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _write_all(descriptor, [head])
            failpoints.reach("recorder.after_preamble")
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return cls(path, descriptor, preamble, log)

    @classmethod
    def resume(cls, found: ScannedSegment) -> SegmentWriter:
        """Go on with a segment that nobody writes any more. Its torn tail is cut off."""
        assert found.preamble is not None
        assert found.log is not None
        descriptor = os.open(found.path, os.O_RDWR | os.O_CLOEXEC)
        writer = cls(found.path, descriptor, found.preamble, found.log)
        try:
            begin = found.frames[-1].offset + found.frames[-1].length if found.frames else writer.size_bytes
            writer._head = _Head().then(map_segment(found.path)[begin : found.whole_bytes])
            writer.frames, writer.gaps, writer.size_bytes = list(found.frames), list(found.gaps), found.whole_bytes
            writer._cut()
        except BaseException:
            os.close(descriptor)
            raise
        return writer

    def append(self, frames: Sequence[PendingFrame], gaps: Sequence[GapRow] = ()) -> None:
        """One chunk: the gaps, then the frames. `OSError` when the disk does not take it; nothing of it is then in the file."""
        origin, begin = self.preamble.origin, self.size_bytes + CHUNK_HEAD.size
        position, entries, rows, records = begin, list[MessageEntry](), list[FrameRow](), list[bytes]()
        gap_records = [encode_gap(gap, origin.epoch, MessageStamp(GAP_CHANNEL, gap.first_seq, gap.recorded_ns)) for gap in gaps]
        for gap, record in zip(gaps, gap_records, strict=True):
            entries.append(MessageEntry(GAP_CHANNEL, gap.recorded_ns, position - begin))
            position += len(record)
        for frame in frames:
            row = frame.row._replace(crc32c=crc32c(frame.payload), length=frame.payload.nbytes)
            stamp = MessageStamp(FRAME_CHANNEL, row.seq, row.recorded_ns)
            record = encode_frame(row, origin.epoch, self.preamble.schema, origin.name, stamp, position)
            entries.append(MessageEntry(FRAME_CHANNEL, row.recorded_ns, position - begin))
            records.append(record)
            rows.append(row._replace(offset=position + len(record)))
            position += len(record) + row.length
        entry = chunk_entry(self.size_bytes, entries, position - begin)
        parts: list[Any] = [chunk_head(entry), *gap_records]
        head = reduce(_Head.then, parts, self._head)
        for number, (frame, record) in enumerate(zip(frames, records, strict=True)):
            head = head.then(record)
            rows[number] = rows[number]._replace(head_length=head.length, head_crc32c=head.crc32c)
            head = _Head()
            parts += (record, frame.payload)
        failpoints.reach("recorder.before_chunk")
        self._write([*parts, entry.message_index])
        failpoints.reach("recorder.after_chunk")
        self._head = head.then(entry.message_index)
        self._log.add(entry, entries)
        self.frames += rows
        self.gaps += gaps

    def seal(self, *, fsync: bool) -> None:
        """Write the summary and close. The file is then complete. After an `OSError` it can be tried again."""
        if not self._is_sealed:
            failpoints.reach("recorder.before_seal")
            self._write([self._log.seal(self.size_bytes)])
            self._is_sealed = True
        if self._descriptor >= 0:
            if fsync:
                os.fsync(self._descriptor)
            failpoints.reach("recorder.after_seal")
            self.close()

    def close(self) -> None:
        """Close without a summary: readers then find the segment open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, parts: list[Any]) -> None:
        try:
            self.size_bytes += _write_all(self._descriptor, parts)
        except OSError:
            self._cut()
            raise

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.size_bytes)
        os.lseek(self._descriptor, self.size_bytes, os.SEEK_SET)


def _write_all(descriptor: int, parts: list[Any]) -> int:
    views = [view for view in (memoryview(part).cast("B") for part in parts) if view.nbytes]
    total = sum(view.nbytes for view in views)
    while views:
        written = os.writev(descriptor, views[:_BUFFERS_PER_WRITE])
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        while views and written >= views[0].nbytes:
            written -= views.pop(0).nbytes
        if views:
            views[0] = views[0][written:]
    return total
