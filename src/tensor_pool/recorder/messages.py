"""Message records byte by byte, because the payload has to start at a multiple of 64 bytes of the file and has to come last.

A header checksum covers everything from the record's first byte to the payload but its own four bytes; the payload has its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from tensor_pool.errors import ProtocolError
from tensor_pool.recorder.rows import FrameRow, GapRow
from tensor_pool.recorder.schema import RAW_IMAGE, Field
from tensor_pool.tensors import ROW_MAJOR, dtype_name, element_size, resolve_strides

PAYLOAD_ALIGNMENT: Final = 64
MESSAGE_HEAD: Final = struct.Struct("<BQHIQQ")
_MESSAGE_OPCODE: Final = 0x05
_RECORD_HEAD_BYTES: Final = 9

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_FIXED64: Final = struct.Struct("<Q")
_FIXED32: Final = struct.Struct("<I")
_U64: Final = (1 << 64) - 1

# encoding of foxglove.RawImage by dtype and channels
_ENCODINGS: Final = {(1, 1): "mono8", (1, 3): "rgb8", (1, 4): "rgba8", (3, 1): "mono16", (9, 1): "32FC1"}


class Layout(NamedTuple):
    """What frames of one camera have in common."""

    dtype: int
    major_order: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None

    @property
    def encoding(self) -> str | None:
        """How viewers call pixels of this layout, None where they cannot show it."""
        if self.major_order != ROW_MAJOR or self.strides is not None or len(self.shape) not in (2, 3) or 0 in self.shape:
            return None
        channels = self.shape[2] if len(self.shape) == 3 else 1
        return _ENCODINGS.get((self.dtype, channels)) if len(self.shape) == 2 or channels > 1 else None


class BadMessageError(ValueError):
    """A message record does not say what a recorder writes."""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _bytes_field(field: int, value: bytes) -> bytes:
    return _tag(field, _LEN) + _varint(len(value)) + value


def _fixed(*fields: tuple[int, str]) -> struct.Struct:
    """A struct for fixed-size fields, each with room for its tag before it."""
    return struct.Struct("<" + "".join(f"{len(_tag(field, _I64))}s{code}" for field, code in fields))


_NUMBERS: Final = _fixed(
    (Field.EPOCH, "Q"), (Field.SEQ, "Q"), (Field.TIMESTAMP_NS, "Q"), (Field.META_VERSION, "I"), (Field.TRACE_ID, "Q"), (Field.CRC32C, "I")
)
_TAG_EPOCH, _TAG_SEQ = _tag(Field.EPOCH, _I64), _tag(Field.SEQ, _I64)
_TAG_TIMESTAMP_NS, _TAG_TRACE_ID = _tag(Field.TIMESTAMP_NS, _I64), _tag(Field.TRACE_ID, _I64)
_TAG_META_VERSION, _TAG_CRC32C = _tag(Field.META_VERSION, _I32), _tag(Field.CRC32C, _I32)
_TAG_PUBLISH_TIMESTAMP_NS = _tag(Field.PUBLISH_TIMESTAMP_NS, _I64)
_TAG_HEADER_CRC32C = _tag(Field.HEADER_CRC32C, _I32)
_TAG_PADDING, _TAG_DATA = _tag(Field.PADDING, _LEN), _tag(Field.DATA, _LEN)


@lru_cache(maxsize=256)
def _layout_fields(layout: Layout, schema: str, frame_id: str) -> bytes:
    out = b""
    if schema == RAW_IMAGE:
        encoding = layout.encoding
        if encoding is None:
            raise ValueError(f"a tensor of {dtype_name(layout.dtype)} {layout.shape} is not a picture")
        height, width = layout.shape[:2]
        pixel_bytes = {"mono8": 1, "rgb8": 3, "rgba8": 4, "mono16": 2, "32FC1": 4}[encoding]
        for field, value in ((Field.WIDTH, width), (Field.HEIGHT, height), (Field.STEP, width * pixel_bytes)):
            out += _tag(field, _I32) + _FIXED32.pack(value)
        out += _bytes_field(Field.ENCODING, encoding.encode())
    out += _bytes_field(Field.FRAME_ID, frame_id.encode())
    out += _tag(Field.DTYPE, _VARINT) + _varint(layout.dtype) + _tag(Field.MAJOR_ORDER, _VARINT) + _varint(layout.major_order)
    out += _bytes_field(Field.SHAPE, b"".join(map(_varint, layout.shape)))
    if layout.strides is not None:
        out += _bytes_field(Field.STRIDES, b"".join(map(_varint, layout.strides)))
    return out


def _timestamp_field(timestamp_ns: int) -> bytes:
    seconds, nanoseconds = divmod(timestamp_ns, 1_000_000_000)
    return _bytes_field(Field.TIMESTAMP, b"\x08" + _varint(seconds) + b"\x10" + _varint(nanoseconds))


class MessageStamp(NamedTuple):
    """The fields of an MCAP message that are not the message."""

    channel_id: int
    sequence: int
    recorded_ns: int

    def head(self, data_bytes: int) -> bytes:
        length = MESSAGE_HEAD.size - _RECORD_HEAD_BYTES + data_bytes
        sequence = self.sequence & 0xFFFF_FFFF
        return MESSAGE_HEAD.pack(_MESSAGE_OPCODE, length, self.channel_id, sequence, self.recorded_ns, self.recorded_ns)


def encode_frame(row: FrameRow, epoch: int, schema: str, frame_id: str, stamp: MessageStamp, position: int) -> bytes:
    """The message record of a frame up to its payload, for a record that starts at `position` of the file."""
    layout = Layout(row.dtype, row.major_order, row.shape, row.strides)
    fields = _timestamp_field(row.timestamp_ns) + _layout_fields(layout, schema, frame_id)
    if row.publish_timestamp_ns is not None:
        fields += _TAG_PUBLISH_TIMESTAMP_NS + _FIXED64.pack(row.publish_timestamp_ns)
    fields += _NUMBERS.pack(
        _TAG_EPOCH, epoch, _TAG_SEQ, row.seq, _TAG_TIMESTAMP_NS, row.timestamp_ns, _TAG_META_VERSION, row.meta_version,
        _TAG_TRACE_ID, row.trace_id, _TAG_CRC32C, row.crc32c,
    )  # fmt: skip
    fields += _TAG_HEADER_CRC32C
    data = _TAG_DATA + _varint(row.length)
    unpadded = MESSAGE_HEAD.size + len(fields) + 4 + len(_TAG_PADDING) + 1 + len(data)
    padding = -(position + unpadded) % PAYLOAD_ALIGNMENT
    rest = _TAG_PADDING + bytes((padding,)) + bytes(padding) + data
    before = stamp.head(unpadded - MESSAGE_HEAD.size + padding + row.length) + fields
    return before + _FIXED32.pack(crc32c(rest, crc32c(before))) + rest


def encode_gap(gap: GapRow, epoch: int, stamp: MessageStamp) -> bytes:
    """The whole message record of a gap."""
    rest = _TAG_EPOCH + _FIXED64.pack(epoch) + _TAG_SEQ + _FIXED64.pack(gap.first_seq)
    rest += _tag(Field.LAST_SEQ, _I64) + _FIXED64.pack(gap.last_seq) + _bytes_field(Field.CAUSE, gap.cause.encode())
    before = stamp.head(len(_TAG_HEADER_CRC32C) + 4 + len(rest)) + _TAG_HEADER_CRC32C
    return before + _FIXED32.pack(crc32c(rest, crc32c(before))) + rest


def seq_mark(epoch: int) -> bytes:
    """What every message of an epoch has before its seq."""
    return _TAG_EPOCH + _FIXED64.pack(epoch) + _TAG_SEQ


# --- reading ------------------------------------------------------------------------------------------------------------


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, position
    raise BadMessageError("a number does not end")


def _fields(data: memoryview) -> Iterator[tuple[int, Any, int]]:
    """(field, value, where the value starts) of a protobuf message; the payload's value is its length."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            start = position
            value, position = _read_varint(data, position)
            yield field, value, start
            continue
        if wire_type == _LEN:
            size, position = _read_varint(data, position)
        elif wire_type in (_I64, _I32):
            size = 8 if wire_type == _I64 else 4
        else:
            raise BadMessageError(f"field {field} has wire type {wire_type}")
        if size > len(data) - position:
            raise BadMessageError(f"field {field} reaches beyond its message")
        raw = data[position : position + size]
        if field == Field.DATA:
            yield field, size, position
        else:
            yield field, bytes(raw) if wire_type == _LEN else int.from_bytes(raw, "little"), position
        position += size


def _packed(raw: bytes) -> tuple[int, ...]:
    data, position, values = memoryview(raw), 0, []
    while position < len(data):
        value, position = _read_varint(data, position)
        values.append(value)
    return tuple(values)


def _parse(record: memoryview, *, has_payload: bool) -> tuple[dict[int, Any], int]:
    """The fields of a whole message record and where its payload starts, once the header checksum has been found right."""
    fields: dict[int, Any] = {}
    crc_at, payload_at = -1, len(record)
    for field, value, start in _fields(record[MESSAGE_HEAD.size :]):
        if field in fields:
            raise BadMessageError(f"field {field} is there twice")
        fields[field] = value
        if field == Field.HEADER_CRC32C:
            crc_at = MESSAGE_HEAD.size + start
        elif field == Field.DATA:
            payload_at = MESSAGE_HEAD.size + start
    if crc_at < 0 or (has_payload and (Field.DATA not in fields or payload_at + fields[Field.DATA] != len(record))):
        raise BadMessageError("it has no checksum, or its payload is not last")
    if crc32c(record[crc_at + 4 : payload_at], crc32c(record[:crc_at])) != fields[Field.HEADER_CRC32C]:
        raise BadMessageError("its header does not match its crc32c")
    return fields, payload_at


def decode_frame(record: memoryview, position: int, recorded_ns: int) -> tuple[int, FrameRow]:
    """Epoch and row of a whole message record that starts at `position` of its file. The payload is not looked at."""
    fields, payload_at = _parse(record, has_payload=True)
    try:
        row = FrameRow(
            seq=fields[Field.SEQ],
            timestamp_ns=fields[Field.TIMESTAMP_NS],
            publish_timestamp_ns=fields.get(Field.PUBLISH_TIMESTAMP_NS),
            recorded_ns=recorded_ns,
            meta_version=fields[Field.META_VERSION],
            trace_id=fields[Field.TRACE_ID],
            dtype=fields[Field.DTYPE],
            major_order=fields[Field.MAJOR_ORDER],
            shape=_packed(fields[Field.SHAPE]),
            strides=_packed(fields[Field.STRIDES]) if Field.STRIDES in fields else None,
            offset=position + payload_at,
            length=fields[Field.DATA],
            crc32c=fields[Field.CRC32C],
        )
        resolve_strides(element_size(row.dtype), row.major_order, row.shape, row.strides)
    except (KeyError, ProtocolError) as error:
        raise BadMessageError(f"it is not a frame: {error}") from error
    return fields[Field.EPOCH], row


def decode_gap(record: memoryview, recorded_ns: int) -> tuple[int, GapRow]:
    """Epoch and row of a gap's message record."""
    fields, _ = _parse(record, has_payload=False)
    try:
        return fields[Field.EPOCH], GapRow(fields[Field.SEQ], fields[Field.LAST_SEQ], fields[Field.CAUSE].decode(), recorded_ns)
    except (KeyError, UnicodeDecodeError) as error:
        raise BadMessageError(f"it is not a gap: {error}") from error
