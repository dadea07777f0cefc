"""The MCAP records around the messages: what opens a segment, what wraps a chunk, what seals the file.

Everything here follows from the messages alone, byte for byte, so a reader can rebuild it and compare: that is how damage is
found. The `mcap` package makes the records; only chunks, their indexes and messages are written by hand, since the package
copies payloads and cannot align them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import Channel, DataEnd, Footer, Header, McapRecord, Metadata, MetadataIndex, Schema, Statistics, SummaryOffset

from tensor_pool.recorder.rows import FORMAT_VERSION, Origin
from tensor_pool.recorder.schema import GAP, descriptor_set

MAGIC: Final = b"\x89MCAP0\r\n"
RECORD_HEAD: Final = struct.Struct("<BQ")
CHUNK_HEAD: Final = struct.Struct("<BQQQQIIQ")
METADATA_NAME: Final = "tensor_pool"
FRAME_CHANNEL: Final = 1
GAP_CHANNEL: Final = 2

_MESSAGE_INDEX_HEAD: Final = struct.Struct("<BQHI")
_CRC_DIGITS: Final = 8
_SUMMARY_CRC_BYTES: Final = 4


def _bytes(record: McapRecord) -> bytes:
    builder = RecordBuilder()
    record.write(builder)
    return bytes(builder.end())  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Preamble:
    """What a segment begins with: schemas, channels and whose frames these are."""

    origin: Origin
    schema: str
    created_ns: int
    monotonic_offset_ns: int
    """Add it to a capture time (CLOCK_MONOTONIC) for the time of day."""

    @property
    def topic(self) -> str:
        return "/" + (self.origin.name.strip("/") or f"stream-{self.origin.stream_id}")

    def definitions(self) -> list[bytes]:
        """Schema records and channel records; the summary repeats them."""
        fields = {"source": self.origin.source, "stream_id": str(self.origin.stream_id), "epoch": str(self.origin.epoch)}
        return [
            *(
                _bytes(Schema(id=id_, data=descriptor_set(name), encoding="protobuf", name=name))
                for id_, name in ((1, self.schema), (2, GAP))
            ),
            _bytes(Channel(FRAME_CHANNEL, self.topic, "protobuf", fields, 1)),
            _bytes(Channel(GAP_CHANNEL, self.topic + "/gaps", "protobuf", fields, 2)),
        ]

    def metadata(self) -> dict[str, str]:
        return {
            "format_version": str(FORMAT_VERSION),
            "source": self.origin.source,
            "stream_id": str(self.origin.stream_id),
            "name": self.origin.name,
            "epoch": str(self.origin.epoch),
            "schema": self.schema,
            "created_ns": str(self.created_ns),
            "monotonic_offset_ns": str(self.monotonic_offset_ns),
        }

    def encode(self) -> tuple[bytes, SegmentLog]:
        """The first bytes of the segment, and the log that goes on from there. Their last eight are a crc32c of all before."""
        definitions = self.definitions()
        head = MAGIC + _bytes(Header("", "tensor_pool")) + b"".join(definitions)
        unsigned = _bytes(Metadata(METADATA_NAME, {**self.metadata(), "crc32c": "0" * _CRC_DIGITS}))
        covered = head + unsigned[:-_CRC_DIGITS]
        log = SegmentLog(definitions, metadata_offset=len(head), metadata_length=len(unsigned))
        return covered + f"{crc32c(covered):08x}".encode(), log


def preamble_is_whole(data: bytes) -> bool:
    """Whether the checksum at the end of a preamble is that of the bytes before it."""
    return data[-_CRC_DIGITS:] == f"{crc32c(data[:-_CRC_DIGITS]):08x}".encode()


class MessageEntry(NamedTuple):
    """A message within its chunk: which channel, when, and where its record starts, counted from the first message."""

    channel_id: int
    recorded_ns: int
    offset: int


class ChunkEntry(NamedTuple):
    """What the summary says about a chunk."""

    begin_ns: int
    end_ns: int
    position: int
    messages_bytes: int
    message_index: bytes
    index_offsets: tuple[tuple[int, int], ...]
    """(channel, position in the file) of the chunk's message indexes."""


def chunk_entry(position: int, messages: list[MessageEntry], messages_bytes: int) -> ChunkEntry:
    """The chunk at `position` of the file that holds these messages."""
    times = [message.recorded_ns for message in messages]
    index, offsets = b"", []
    index_position = position + CHUNK_HEAD.size + messages_bytes
    for channel_id in sorted({message.channel_id for message in messages}):
        entries = [part for message in messages if message.channel_id == channel_id for part in (message.recorded_ns, message.offset)]
        offsets.append((channel_id, index_position + len(index)))
        index += _MESSAGE_INDEX_HEAD.pack(Opcode.MESSAGE_INDEX, 6 + 8 * len(entries), channel_id, 8 * len(entries))
        index += struct.pack(f"<{len(entries)}Q", *entries)
    return ChunkEntry(min(times), max(times), position, messages_bytes, index, tuple(offsets))


def chunk_head(entry: ChunkEntry) -> bytes:
    """The chunk record up to its first message. It has no CRC of its own (0): every message in it has two."""
    size = entry.messages_bytes
    return CHUNK_HEAD.pack(Opcode.CHUNK, CHUNK_HEAD.size - RECORD_HEAD.size + size, entry.begin_ns, entry.end_ns, size, 0, 0, size)


def _chunk_index(entry: ChunkEntry) -> bytes:
    offsets = b"".join(struct.pack("<HQ", *offset) for offset in entry.index_offsets)
    body = struct.pack("<QQQQI", entry.begin_ns, entry.end_ns, entry.position, CHUNK_HEAD.size + entry.messages_bytes, len(offsets))
    body += offsets + struct.pack("<QIQQ", len(entry.message_index), 0, entry.messages_bytes, entry.messages_bytes)
    return RECORD_HEAD.pack(Opcode.CHUNK_INDEX, len(body)) + body


@dataclass(slots=True)
class SegmentLog:
    """What has been written to a segment so far, or found in it: enough to seal it."""

    definitions: list[bytes]
    metadata_offset: int
    metadata_length: int
    chunks: list[ChunkEntry] = field(default_factory=list)
    message_counts: dict[int, int] = field(default_factory=dict)

    def add(self, entry: ChunkEntry, messages: list[MessageEntry]) -> None:
        self.chunks.append(entry)
        for message in messages:
            self.message_counts[message.channel_id] = self.message_counts.get(message.channel_id, 0) + 1

    def seal(self, position: int) -> bytes:
        """Everything after the last chunk, for a file whose chunks end at `position`: end of data, summary, footer."""
        data_end = _bytes(DataEnd(0))
        begin = position + len(data_end)
        summary, groups = b"", b""
        for opcode, records in self._groups():
            if records:
                group = b"".join(records)
                groups += _bytes(SummaryOffset(opcode, begin + len(summary), len(group)))
                summary += group
        footer = _bytes(Footer(begin, begin + len(summary), 0))
        covered = summary + groups + footer[:-_SUMMARY_CRC_BYTES]
        return data_end + covered + struct.pack("<I", zlib.crc32(covered)) + MAGIC

    def _groups(self) -> list[tuple[Opcode, list[bytes]]]:
        half = len(self.definitions) // 2
        begin_ns = min((chunk.begin_ns for chunk in self.chunks), default=0)
        end_ns = max((chunk.end_ns for chunk in self.chunks), default=0)
        statistics = Statistics(
            attachment_count=0,
            channel_count=half,
            channel_message_counts={key: self.message_counts[key] for key in sorted(self.message_counts)},
            chunk_count=len(self.chunks),
            message_count=sum(self.message_counts.values()),
            message_end_time=end_ns,
            message_start_time=begin_ns,
            metadata_count=1,
            schema_count=half,
        )
        return [
            (Opcode.SCHEMA, self.definitions[:half]),
            (Opcode.CHANNEL, self.definitions[half:]),
            (Opcode.STATISTICS, [_bytes(statistics)]),
            (Opcode.CHUNK_INDEX, [_chunk_index(entry) for entry in self.chunks]),
            (Opcode.METADATA_INDEX, [_bytes(MetadataIndex(self.metadata_offset, self.metadata_length, METADATA_NAME))]),
        ]
