"""Walk through a segment: its rows, its gaps, where it is torn. Damage is an error that names file and row, a torn tail is not."""

from __future__ import annotations

import io
import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from crc32c import crc32c
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from mcap.records import Metadata

from tensor_pool.errors import RecordingError
from tensor_pool.recorder.container import (
    CHUNK_HEAD,
    FRAME_CHANNEL,
    GAP_CHANNEL,
    MAGIC,
    METADATA_NAME,
    RECORD_HEAD,
    MessageEntry,
    Preamble,
    SegmentLog,
    chunk_entry,
    chunk_head,
    preamble_is_whole,
)
from tensor_pool.recorder.messages import MESSAGE_HEAD, BadMessageError, MessageStamp, decode_frame, decode_gap
from tensor_pool.recorder.rows import FORMAT_VERSION, FrameRow, GapRow, Origin

_LARGEST_PREAMBLE_BYTES: Final = 1 << 20
_VERSION_KEY: Final = b"format_version"
_PREAMBLE_RECORDS: Final = (Opcode.HEADER, Opcode.SCHEMA, Opcode.CHANNEL, Opcode.METADATA)
_LARGEST_RECORD_BYTES: Final = 1 << 40


@dataclass(slots=True)
class ScannedSegment:
    """A segment as its bytes tell it."""

    path: Path
    preamble: Preamble | None
    """None when the recorder died before the preamble was complete."""
    log: SegmentLog | None
    frames: list[FrameRow] = field(default_factory=list)
    gaps: list[GapRow] = field(default_factory=list)
    whole_bytes: int = 0
    """Where the complete chunks end."""
    size_bytes: int = 0
    is_sealed: bool = False

    @property
    def is_torn(self) -> bool:
        """Whether it ends within something, as after a kill; one that grows or could not be sealed ends with a whole chunk."""
        return self.preamble is None or (not self.is_sealed and self.whole_bytes < self.size_bytes)


def map_segment(path: Path) -> memoryview:
    """The file as it is now, read-only. It stays mapped as long as anything looks at it."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise RecordingError(f"{path} is missing", path=str(path), hint="the index names a segment that is not there") from None
    except OSError as error:
        reason = "the address space is limited (RLIMIT_AS)" if error.errno == 12 else error.strerror
        raise RecordingError(f"{path} cannot be read: {reason}", path=str(path)) from error


class _Torn(Exception):  # noqa: N818 - not an error: the file ends here
    """The bytes end within a record."""


class _Scanner:
    def __init__(self, path: Path, data: memoryview) -> None:
        self._data = data
        self._position = 0
        self._head_begin = 0
        self.result = ScannedSegment(path, None, None, size_bytes=len(data))

    def run(self) -> ScannedSegment:
        result = self.result
        try:
            preamble, log = self._read_preamble()
            result.preamble, result.log = preamble, log
            result.whole_bytes = self._head_begin = self._position
            while self._position < len(self._data) and not result.is_sealed:
                self._read_record(preamble, log)
                result.whole_bytes = self._position
        except _Torn:
            if result.preamble is None and _VERSION_KEY in bytes(self._data[:_LARGEST_PREAMBLE_BYTES]):
                # a recorder dies before its preamble or after it: this is a length that was changed
                self._damaged("its first records are longer than the file")
        return result

    def _damaged(self, reason: str) -> NoReturn:
        row = len(self.result.frames)
        raise RecordingError(
            f"{self.result.path} is damaged at byte {self._position}, row {row}: {reason}",
            path=str(self.result.path),
            row=row,
            hint="the rows before it are whole",
        )

    def _take(self, size: int) -> memoryview:
        if size > len(self._data) - self._position:
            raise _Torn
        return self._data[self._position : self._position + size]

    # --- the preamble ----------------------------------------------------------------------------------------------

    def _read_preamble(self) -> tuple[Preamble, SegmentLog]:
        if bytes(self._data[: len(MAGIC)]) != MAGIC[: len(self._data)]:
            self._damaged("it does not begin like an MCAP file")
        self._take(len(MAGIC))
        self._position = len(MAGIC)
        definitions = []
        while True:
            opcode, length = RECORD_HEAD.unpack(self._take(RECORD_HEAD.size))
            size = RECORD_HEAD.size + length
            if self._position + size > _LARGEST_PREAMBLE_BYTES or opcode not in _PREAMBLE_RECORDS:
                self._damaged("it does not begin like a segment of tensor_pool")
            record = bytes(self._take(size))
            if opcode == Opcode.METADATA:
                break
            if opcode != Opcode.HEADER:
                definitions.append(record)
            self._position += size
        fields = self._metadata(record[RECORD_HEAD.size :])
        self._check_version(fields)
        whole = self._position + size
        if not preamble_is_whole(bytes(self._data[:whole])):
            self._damaged("its first bytes do not match their crc32c")
        origin = Origin(fields["source"], int(fields["stream_id"]), fields["name"], int(fields["epoch"]))
        preamble = Preamble(origin, fields["schema"], int(fields["created_ns"]), int(fields["monotonic_offset_ns"]))
        log = SegmentLog(definitions, metadata_offset=self._position, metadata_length=size)
        self._position = whole
        return preamble, log

    def _metadata(self, body: bytes) -> dict[str, str]:
        try:
            metadata = Metadata.read(ReadDataStream(io.BytesIO(body)))
        except Exception as error:  # noqa: BLE001 - what the package raises on damaged bytes is not written down
            self._damaged(f"its metadata cannot be read ({error})")
        if metadata.name != METADATA_NAME or "format_version" not in metadata.metadata:
            self._damaged("it is not a segment of tensor_pool")
        return dict(metadata.metadata)

    def _check_version(self, fields: dict[str, str]) -> None:
        version = fields["format_version"]
        if version.isdecimal() and int(version) > FORMAT_VERSION:
            raise RecordingError(
                f"{self.result.path} row 0: format version {version} is newer than {FORMAT_VERSION}, the newest this package reads",
                path=str(self.result.path),
                row=0,
                hint="pip install --upgrade shm-tensor-pool",
            )
        if version != str(FORMAT_VERSION):
            self._damaged(f"format version {version!r} does not exist")

    # --- chunks and the end ----------------------------------------------------------------------------------------

    def _read_record(self, preamble: Preamble, log: SegmentLog) -> None:
        opcode = self._data[self._position]
        if opcode == Opcode.CHUNK:
            self._read_chunk(preamble, log)
        elif opcode == Opcode.DATA_END:
            expected = log.seal(self._position)
            found = bytes(self._data[self._position :])
            if found != expected:
                if expected.startswith(found):
                    raise _Torn
                self._damaged("its summary is not that of its messages")
            self.result.is_sealed = True
        elif not np.frombuffer(self._data[self._position :], np.uint8).any():
            # what a file system may leave after a power cut
            raise _Torn
        else:
            self._damaged(f"a record of kind {opcode} is not one that a recorder writes")

    def _read_chunk(self, preamble: Preamble, log: SegmentLog) -> None:
        head = bytes(self._take(CHUNK_HEAD.size))
        _, length, _, _, size, crc, compression, records = CHUNK_HEAD.unpack(head)
        if length != CHUNK_HEAD.size - RECORD_HEAD.size + size or records != size or crc or compression:
            self._damaged("the sizes of a chunk contradict each other")
        if size > _LARGEST_RECORD_BYTES:
            self._damaged(f"a chunk says it has {size} bytes")
        self._take(CHUNK_HEAD.size + size)
        begin = self._position + CHUNK_HEAD.size
        frames, gaps, entries = list[FrameRow](), list[GapRow](), list[MessageEntry]()
        offset = 0
        while offset < size:
            offset += self._read_message(begin, offset, size, preamble, (frames, gaps, entries))
        if not entries:
            self._damaged("a chunk is empty")
        entry = chunk_entry(self._position, entries, size)
        if chunk_head(entry) != head:
            self._damaged("the times of a chunk are not those of its messages")
        end = begin + size
        found = bytes(self._data[end : end + len(entry.message_index)])
        if found != entry.message_index[: len(found)]:
            self._damaged("a chunk's message index is not that of its messages")
        if len(found) < len(entry.message_index):
            raise _Torn
        log.add(entry, entries)
        self.result.frames += frames
        self.result.gaps += gaps
        self._position = end + len(entry.message_index)

    def _read_message(self, begin: int, offset: int, size: int, preamble: Preamble, found: tuple[list[Any], list[Any], list[Any]]) -> int:
        frames, gaps, entries = found
        position = begin + offset
        room = size - offset
        if room < MESSAGE_HEAD.size:
            self._damaged("a message ends within its head")
        opcode, length, channel_id, _, recorded_ns, _ = MESSAGE_HEAD.unpack(self._data[position : position + MESSAGE_HEAD.size])
        record_bytes = int(RECORD_HEAD.size + length)
        if opcode != Opcode.MESSAGE or not MESSAGE_HEAD.size <= record_bytes <= room:
            self._damaged("a message reaches beyond its chunk")
        record = self._data[position : position + record_bytes]
        try:
            if channel_id == FRAME_CHANNEL:
                epoch, row = decode_frame(record, position, recorded_ns)
                head = self._data[self._head_begin : row.offset]
                frames.append(row._replace(head_length=len(head), head_crc32c=crc32c(head)))
                self._head_begin = row.offset + row.length
                first_seq = row.seq
            elif channel_id == GAP_CHANNEL:
                epoch, gap = decode_gap(record, recorded_ns)
                gaps.append(gap)
                first_seq = gap.first_seq
            else:
                raise BadMessageError(f"channel {channel_id} does not exist")
        except BadMessageError as error:
            self._damaged(f"a message cannot be read: {error}")
        if record[: MESSAGE_HEAD.size] != MessageStamp(channel_id, first_seq, recorded_ns).head(record_bytes - MESSAGE_HEAD.size):
            self._damaged("the head of a message contradicts the message")
        if epoch != preamble.origin.epoch:
            self._damaged(f"a message of epoch {epoch} in a segment of epoch {preamble.origin.epoch}")
        entries.append(MessageEntry(channel_id, recorded_ns, offset))
        return record_bytes


def scan_segment(path: Path) -> ScannedSegment:
    """Read every header of a segment. Payloads are not read: their checksums are in the rows."""
    found, damage = scan_until_damage(path)
    if damage is not None:
        raise damage
    return found


def scan_until_damage(path: Path) -> tuple[ScannedSegment, RecordingError | None]:
    """What a scan finds before it meets damage, and that damage."""
    scanner = _Scanner(path, map_segment(path))
    try:
        return scanner.run(), None
    except RecordingError as damage:
        return scanner.result, damage
