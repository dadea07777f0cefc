"""What the generated messages share: the header gate, bounded reads, checked writes.

Every refusal is a `ProtocolError` that names message, field and rule. Nothing is sliced or allocated before its length was compared with
what is left of the message, so no input makes a decoder take more memory than a small multiple of its own length.

Text is ASCII by the schemas, and other implementations put UTF-8 there. Reading and writing keep every byte: UTF-8 where it is UTF-8, and
Python's surrogate escapes for the rest, because names are passed on byte for byte (S-5.1-12). Whoever prints or stores a foreign name
escapes it there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from struct import Struct, error, pack
from typing import ClassVar, Final, NamedTuple, NoReturn, Protocol

from tensor_pool.errors import ProtocolError

_HEADER = Struct("<HHHH")
HEADER_BYTES: Final = 8
MAXIMUM_DATA_BYTES: Final = 1 << 30
"""Bound of every var-data element whose type in the schema names no smaller one."""
MAXIMUM_GROUP_ENTRIES: Final = 65534
"""65535 is the null of the u16 that counts them."""

WireBytes = bytes | bytearray | memoryview

_GROUP_HEADER = Struct("<HH")
_LENGTH = Struct("<I")


class MessageHeader(NamedTuple):
    """The eight bytes in front of every message."""

    block_length: int
    template_id: int
    schema_id: int
    version: int


class WireMessage(Protocol):
    """What every generated message with a header offers."""

    SCHEMA_ID: ClassVar[int]
    SCHEMA_VERSION: ClassVar[int]
    TEMPLATE_ID: ClassVar[int]
    BLOCK_LENGTH: ClassVar[int]

    def encode(self) -> bytes: ...


def peek(data: WireBytes) -> MessageHeader:
    """The header alone, unchecked. Raises `ProtocolError` when there are not even eight bytes."""
    try:
        return MessageHeader._make(_HEADER.unpack_from(data))
    except error:
        raise ProtocolError(f"a message of {len(data)} bytes has no room for a header", name="messageHeader", rule="W-10-1") from None


def as_bytes(data: WireBytes) -> bytes:
    """The same bytes where nobody else can change them while they are checked."""
    return data if type(data) is bytes else bytes(memoryview(data))


# --- reading -------------------------------------------------------------------------------------------------------


def read_group(
    data: bytes, offset: int, block_lengths: Collection[int], minimum_entry_bytes: int, message: str, field: str
) -> tuple[int, int]:
    """Number of entries, and where the first begins. The count is bounded by what is left before anything is made of it."""
    begin = offset + 4
    if begin > len(data):
        raise truncated(message, field)
    block_length, count = _GROUP_HEADER.unpack_from(data, offset)
    if block_length not in block_lengths:
        allowed = " or ".join(str(length) for length in block_lengths)
        raise ProtocolError(f"{message}.{field}: entries of {block_length} bytes, expected {allowed}", name=message, field=field, rule="E5")
    if count > MAXIMUM_GROUP_ENTRIES or count * minimum_entry_bytes > len(data) - begin:
        raise ProtocolError(
            f"{message}.{field}: {count} entries do not fit the {len(data) - begin} bytes that are left",
            name=message,
            field=field,
            rule="E104",
        )
    return count, begin


def read_data(data: bytes, offset: int, message: str, field: str, maximum: int = MAXIMUM_DATA_BYTES) -> tuple[bytes, int]:
    """A length-prefixed element, and where the next begins."""
    begin = offset + 4
    if begin > len(data):
        raise truncated(message, field)
    (length,) = _LENGTH.unpack_from(data, offset)
    end = begin + length
    if length > maximum:
        raise above_maximum(length, maximum, message, field)
    if end > len(data):
        raise truncated(message, field)
    return data[begin:end], end


def read_text(data: bytes, offset: int, message: str, field: str) -> tuple[str, int]:
    """Like `read_data`, as text that keeps every byte."""
    raw, end = read_data(data, offset, message, field)
    return raw.decode("utf-8", "surrogateescape"), end


def read_trailing_text(data: bytes, offset: int, message: str, field: str) -> tuple[str, int]:
    """Like `read_text`, but empty where the message has ended already: discovery peers leave trailing elements out (E88)."""
    return ("", offset) if offset == len(data) else read_text(data, offset, message, field)


# --- writing -------------------------------------------------------------------------------------------------------


def write_group(count: int, block_length: int, message: str, field: str) -> bytes:
    if count > MAXIMUM_GROUP_ENTRIES:
        raise above_maximum(count, MAXIMUM_GROUP_ENTRIES, message, field)
    return _GROUP_HEADER.pack(block_length, count)


def write_data(value: bytes, message: str, field: str, maximum: int = MAXIMUM_DATA_BYTES) -> bytes:
    if len(value) > maximum:
        raise above_maximum(len(value), maximum, message, field)
    return _LENGTH.pack(len(value)) + value


def write_text(value: str, message: str, field: str) -> bytes:
    try:
        raw = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as cause:
        raise ProtocolError(f"{message}.{field}: not text: {cause}", name=message, field=field) from cause
    return write_data(raw, message, field)


def write_optional(value: int | None, null: int, message: str, field: str) -> int:
    """The null where there is no value. The null itself is refused as a value: whoever reads it would take it for absent."""
    if value is None:
        return null
    if value == null:
        raise ProtocolError(f"{message}.{field}: {value} is how an absent value is written", name=message, field=field, rule="W-10.1-1")
    return value


def write_absent_as_zero(value: int | None, other_null: int, message: str, field: str) -> int:
    """For ids where 0 is no id. The null that some peers write is refused as a value, like the null of `write_optional`."""
    return write_optional(value, other_null, message, field) if value else 0


def write_array(values: Sequence[int], count: int, message: str, field: str) -> Sequence[int]:
    if len(values) != count:
        raise ProtocolError(f"{message}.{field}: {len(values)} numbers, expected {count}", name=message, field=field)
    return values


# --- refusing ------------------------------------------------------------------------------------------------------


def refuse_header(data: bytes, expected: bytes, block_length: int, message: str, rule: str) -> NoReturn:
    """Says which part of the gate the message did not pass; called when one of them failed."""
    actual = peek(data)
    wanted = MessageHeader._make(_HEADER.unpack(expected))
    for field in ("schema_id", "template_id", "version", "block_length"):
        found, allowed = getattr(actual, field), getattr(wanted, field)
        if found != allowed:
            raise ProtocolError(
                f"{message}: {field} {found}, expected {allowed}", name=message, field=field, rule="E5" if field == "block_length" else rule
            )
    raise ProtocolError(
        f"{message}: {len(data)} bytes, the block alone takes {HEADER_BYTES + block_length}",
        name=message,
        field="block_length",
        rule="E104",
    )


def refuse_length(data: bytes, expected: int, message: str) -> NoReturn:
    raise ProtocolError(f"{message}: {len(data)} bytes, expected {expected}", name=message, rule="E104")


def truncated(message: str, field: str) -> ProtocolError:
    return ProtocolError(f"{message}.{field}: the message ends inside it", name=message, field=field, rule="E104")


def above_maximum(value: int, maximum: int, message: str, field: str) -> ProtocolError:
    return ProtocolError(f"{message}.{field}: {value} is above {maximum}", name=message, field=field, rule="E104")


def unknown_value(value: object, known: Iterable[int], message: str, field: str) -> ProtocolError:
    listed = ", ".join(str(int(code)) for code in known)
    return ProtocolError(f"{message}.{field}: unknown value {value!r}, known are {listed}", name=message, field=field, rule="W-15.8-1")


def unencodable(message: str, offsets: Mapping[str, int], layout: Struct, values: Sequence[object]) -> ProtocolError:
    """Finds the value that `layout.pack` refused. `values` follow the fields of `offsets`, arrays spread out."""
    position = 0
    codes = re.findall(r"(\d*)([a-zA-Z])", layout.format)
    for field, (count, code) in zip(offsets, ((count, code) for count, code in codes if code != "x"), strict=True):
        for _ in range(int(count or 1)):
            try:
                pack(f"<{code}", values[position])
            except error as cause:
                return ProtocolError(f"{message}.{field}: {values[position]!r}: {cause}", name=message, field=field)
            position += 1
    return ProtocolError(f"{message}: cannot be encoded", name=message)
