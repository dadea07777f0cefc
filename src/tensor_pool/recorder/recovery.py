"""What a recorder does with what another left behind when it was killed: cut the torn tail, seal, index. Nothing else is changed."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from mcap.opcode import Opcode

from tensor_pool.errors import RecordingError
from tensor_pool.recorder.container import FRAME_CHANNEL, RECORD_HEAD
from tensor_pool.recorder.index import IndexRows, index_path, write_index
from tensor_pool.recorder.messages import MESSAGE_HEAD, BadMessageError, decode_frame, decode_gap, seq_mark
from tensor_pool.recorder.rows import SEGMENT_SUFFIX, GapRow
from tensor_pool.recorder.scan import ScannedSegment, map_segment
from tensor_pool.recorder.segment import SegmentWriter
from tensor_pool.recorder.stored import StoredSegment, open_directory, segment_number, segment_paths

LOGGER = logging.getLogger("tensor_pool.recorder")
# a message's fields before its seq: times, layout, a name
_LARGEST_DISTANCE_BYTES: Final = 4096


class Left(NamedTuple):
    """What is in the directory of an epoch: where the next recorder goes on."""

    last_seq: int
    """The last seq that is recorded or known to be lost, -1 for none."""
    number: int
    """Of the last segment, 0 for none."""


@contextmanager
def _locked(directory: Path, operation: int) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, operation)
        yield descriptor
    finally:
        os.close(descriptor)


def take_directory(root: Path, directory: Path) -> int:
    """Keep other recorders out of an epoch's directory as long as the returned descriptor is open. `RecordingError` when one is in."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # perhaps one that recovers what is left there, and is gone in a moment
            with _locked(root, fcntl.LOCK_EX):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        reason = f"{directory} is being written by another recorder"
        raise RecordingError(reason, path=str(directory), hint="record into a directory of its own") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def recover_abandoned(root: Path, realtime_ns: Callable[[], int], *, fsync: bool) -> None:
    """Recover every epoch below `root` that no recorder holds: after a crash the stream usually goes on in another one."""
    directories = [path for path in sorted(root.glob("source=*/stream=*/epoch=*")) if _has_unfinished(path)]
    if not directories:
        return
    with _locked(root, fcntl.LOCK_EX):
        for directory in directories:
            try:
                with _locked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    recover_directory(root, directory, realtime_ns, fsync=fsync)
            except BlockingIOError:
                continue
            except OSError as error:
                LOGGER.warning("%s: left as it is: %s", directory, error)


def _has_unfinished(directory: Path) -> bool:
    return any(not index_path(path).exists() for path in directory.glob(f"*{SEGMENT_SUFFIX}"))


def recover_directory(root: Path, directory: Path, realtime_ns: Callable[[], int], *, fsync: bool) -> Left:
    """Finish the segments of an epoch that nobody writes any more. What is damaged is left as it is."""
    paths = segment_paths(directory)
    segments = open_directory(directory, paths)
    for path in paths - {segment.path for segment in segments}:
        # its recorder died before it could hold anything
        path.unlink()
    last_seq = -1
    for segment in segments:
        last_seq = max(last_seq, segment.answers_to)
        if segment.damage is not None:
            last_seq = max(last_seq, _last_intact_seq(segment.path, segment.origin.epoch))
            LOGGER.warning("left as it is: %s", segment.damage.message)
        elif segment.found is not None:
            last_seq = _finish(root, segment, segment.found, last_seq, realtime_ns, fsync=fsync)
    return Left(last_seq, max((segment_number(segment.path) for segment in segments), default=0))


def _finish(
    root: Path, segment: StoredSegment, found: ScannedSegment, last_seq: int, realtime_ns: Callable[[], int], *, fsync: bool
) -> int:
    """Seal a segment and write its index. Returns the last seq that it answers for then."""
    rows = IndexRows(segment.origin, found.frames, found.gaps)
    try:
        if not found.is_sealed:
            lost_to = _lost_to(segment, found, last_seq)
            # to cut needs no space; should the rest fail, a segment stays that ends with a whole chunk and can be sealed later
            writer = SegmentWriter.resume(found)
            try:
                if lost_to > last_seq:
                    writer.append([], [GapRow(last_seq + 1, lost_to, "recorder", realtime_ns())])
                    last_seq = lost_to
                writer.seal(fsync=fsync)
            finally:
                writer.close()
            rows = IndexRows(segment.origin, writer.frames, writer.gaps)
            LOGGER.warning("%s: recovered %d frames of a recorder that did not end by itself", segment.path, len(rows.frames))
        write_index(root, segment.path, rows)
    except (OSError, RecordingError) as error:
        LOGGER.error("%s cannot be sealed (%s): its frames can be read, and the next recorder tries again", segment.path, error)
    return last_seq


def _lost_to(segment: StoredSegment, found: ScannedSegment, last_seq: int) -> int:
    """The last seq of the torn chunk, as far as one can tell: whatever stood there went on behind `last_seq`."""
    data = map_segment(segment.path)
    if last_seq < 0 or not found.is_torn or data[found.whole_bytes] != Opcode.CHUNK:
        return last_seq
    return max(last_seq + 1, _last_intact_seq(segment.path, segment.origin.epoch))


def _last_intact_seq(path: Path, epoch: int) -> int:
    """The last seq of which a message can still be read anywhere in a damaged segment, -1 for none.

    From the end backwards, since seqs ascend. What cannot be read is not there, and may be recorded again.
    """
    try:
        data = map_segment(path)
    except RecordingError:
        return -1
    mark, at = seq_mark(epoch), len(data)
    # an empty file is mapped as bytes, which can be searched as well
    while (at := data.obj.rfind(mark, 0, at)) >= 0:  # type: ignore[attr-defined]
        for begin in range(at - MESSAGE_HEAD.size, max(-1, at - _LARGEST_DISTANCE_BYTES), -1):
            if data[begin] == Opcode.MESSAGE and (seq := _seq_of(data[begin:], begin)) is not None:
                return seq
    return -1


def _seq_of(data: memoryview, position: int) -> int | None:
    """The last seq that a message record tells of, None where these bytes are none."""
    _, length, channel, _, recorded_ns, _ = MESSAGE_HEAD.unpack(data[: MESSAGE_HEAD.size])
    record = data[: RECORD_HEAD.size + length]
    if len(record) != RECORD_HEAD.size + length:
        return None
    try:
        if channel == FRAME_CHANNEL:
            return decode_frame(record, position, recorded_ns)[1].seq
        return decode_gap(record, recorded_ns)[1].last_seq
    except BadMessageError:
        return None
