"""One segment file: written by appending, found whole or torn by walking through it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
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
from tensor_pool.runtime import failpoints

MAX_CHUNK_MESSAGES: Final = 256
_BUFFERS_PER_WRITE: Final = 512  # the kernel takes 1024


@dataclass(frozen=True, slots=True)
class PendingFrame:
    """A frame on its way into a segment; where it will lie is not known yet, and its checksum not computed."""

    row: FrameRow
    payload: memoryview


class SegmentWriter:
    """Appends chunks to a new file. A write that fails leaves the file as it was before."""

    def __init__(self, path: Path, preamble: Preamble) -> None:
        self.path = path
        self.preamble = preamble
        self.frames: list[FrameRow] = []
        self.gaps: list[GapRow] = []
        head, self._log = preamble.encode()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _write_all(self._descriptor, [head])
            failpoints.reach("recorder.after_preamble")
        except BaseException:
            os.close(self._descriptor)
            path.unlink(missing_ok=True)
            raise
        self.size_bytes = len(head)

    def append(self, frames: Sequence[PendingFrame], gaps: Sequence[GapRow] = ()) -> None:
        """One chunk: the gaps, then the frames. `OSError` when the disk does not take it; nothing of it is then in the file."""
        origin, position = self.preamble.origin, self.size_bytes + CHUNK_HEAD.size
        begin, parts, entries, rows = position, list[Any](), list[MessageEntry](), list[FrameRow]()
        for gap in gaps:
            stamp = MessageStamp(GAP_CHANNEL, gap.first_seq, gap.recorded_ns)
            record = encode_gap(gap, origin.epoch, stamp)
            entries.append(MessageEntry(GAP_CHANNEL, gap.recorded_ns, position - begin))
            parts.append(record)
            position += len(record)
        for frame in frames:
            row = frame.row._replace(crc32c=crc32c(frame.payload), length=frame.payload.nbytes)
            stamp = MessageStamp(FRAME_CHANNEL, row.seq, row.recorded_ns)
            head = encode_frame(row, origin.epoch, self.preamble.schema, origin.name, stamp, position)
            entries.append(MessageEntry(FRAME_CHANNEL, row.recorded_ns, position - begin))
            parts += (head, frame.payload)
            rows.append(row._replace(offset=position + len(head)))
            position += len(head) + row.length
        entry = chunk_entry(self.size_bytes, entries, position - begin)
        failpoints.reach("recorder.before_chunk")
        self._write([chunk_head(entry), *parts, entry.message_index])
        failpoints.reach("recorder.after_chunk")
        self._log.add(entry, entries)
        self.frames += rows
        self.gaps += gaps

    def seal(self, *, fsync: bool) -> None:
        """Write the summary and close. The file is then complete."""
        try:
            failpoints.reach("recorder.before_seal")
            self._write([self._log.seal(self.size_bytes)])
            if fsync:
                os.fsync(self._descriptor)
            failpoints.reach("recorder.after_seal")
        finally:
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
            os.ftruncate(self._descriptor, self.size_bytes)
            os.lseek(self._descriptor, self.size_bytes, os.SEEK_SET)
            raise


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


def finish_segment(path: Path, log: SegmentLog, whole_bytes: int, *, fsync: bool) -> None:
    """Cut the torn tail off a segment that nobody writes any more, and seal it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, whole_bytes)
        os.lseek(descriptor, whole_bytes, os.SEEK_SET)
        _write_all(descriptor, [log.seal(whole_bytes)])
        if fsync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
