"""A second codec that shares nothing with ours: it walks `schemas/*.xml` for every message and goes byte by byte.

It is slow and plain on purpose. It knows neither the generator nor what that made, only the schemas and the reading decisions that a schema
cannot say (the constants below). Values are dicts of int, None, bytes and lists.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SCHEMAS_DIRECTORY = Path(__file__).resolve().parents[3] / "schemas"
SCHEMA_FILES = ("control-900.xml", "driver-901.xml", "bridge-902.xml", "discovery-910.xml")
_MESSAGE = "{http://fixprotocol.io/2016/sbe}message"

TRACE_ID_NULLS = (0, 2**64 - 1)
HUGEPAGES_ALIAS = {2: 1}
TAGS_BLOCK_LENGTHS = (0, 4)
SLOT_BYTES = 256
TENSOR_HEADER_BYTES = 192
LARGEST_GROUP = 65534


class RefusedError(Exception):
    """These bytes are not that message, or these values have no bytes."""


class ReferenceSchema:
    def __init__(self, path: Path) -> None:
        root = ElementTree.parse(path).getroot()
        self.schema_id = int(root.attrib["id"])
        self.version = int(root.attrib["version"])
        types = root.find("types")
        assert types is not None
        self.types = {element.attrib["name"]: element for element in types}
        self.messages = {element.attrib["name"]: element for element in root.iter(_MESSAGE)}

    # --- what the schema says about one element --------------------------------------------------------------------

    def primitive(self, name: str) -> tuple[int, bool, int]:
        """Bytes of one item, whether it is signed, and how many items there are."""
        element = self.types.get(name)
        if element is None:
            return int(name.lstrip("uint")) // 8, not name.startswith("u"), 1
        if element.attrib.get("presence") == "constant":
            return 0, False, 0
        inner = element.attrib.get("primitiveType") or element.attrib["encodingType"]
        width, signed, _ = self.primitive(inner)
        return width, signed, int(element.attrib.get("length", "1"))

    def codes(self, name: str) -> list[int] | None:
        element = self.types.get(name)
        if element is None or element.tag != "enum":
            return None
        return [int(value.text or "") for value in element]

    def null(self, field: ElementTree.Element) -> int | None:
        if field.attrib.get("presence") != "optional":
            return None
        declared = self.types.get(field.attrib["type"])
        values = [element.attrib["nullValue"] for element in (field, declared) if element is not None and "nullValue" in element.attrib]
        return int(values[0])

    def largest_data(self, element: ElementTree.Element) -> int:
        length = next(part for part in self.types[element.attrib["type"]] if part.attrib["name"] == "length")
        return int(length.attrib["maxValue"])

    def block_length(self, parent: ElementTree.Element) -> int:
        total = 0
        for field in parent.iterfind("field"):
            width, _, count = self.primitive(field.attrib["type"])
            total += width * count
        return total

    # --- encoding --------------------------------------------------------------------------------------------------

    def encode(self, name: str, values: Mapping[str, Any]) -> bytes:
        message = self.messages[name]
        body = self._encode_members(message, values)
        if name == "ShmRegionSuperblock":
            return body
        if name == "SlotHeader":
            return body + bytes(SLOT_BYTES - len(body))
        header = (self.block_length(message), int(message.attrib["id"]), self.schema_id, self.version)
        return b"".join(_number(part, 2, False) for part in header) + body

    def _encode_members(self, parent: ElementTree.Element, values: Mapping[str, Any]) -> bytes:
        out = b""
        for element in parent:
            value = values.get(snake_case(element.attrib["name"]))
            if element.tag == "field":
                out += self._encode_field(element, value)
            elif element.tag == "group":
                assert value is not None
                length = 0 if element.attrib["name"] == "tags" else self.block_length(element)
                out += _number(length, 2, False) + _number(len(value), 2, False)
                out += b"".join(self._encode_members(element, entry) for entry in value)
            else:
                assert value is not None
                if len(value) > self.largest_data(element):
                    raise RefusedError(element.attrib["name"])
                out += _number(len(value), 4, False) + value
        return out

    def _encode_field(self, field: ElementTree.Element, value: Any) -> bytes:
        width, signed, count = self.primitive(field.attrib["type"])
        if field.attrib["name"] == "pad":
            return bytes(width * count)
        if count == 0:
            return b""
        if count > 1:
            return b"".join(_number(item, width, signed) for item in value)
        null = self.null(field)
        if value is None:
            if null is None:
                raise RefusedError(f"{field.attrib['name']} is required")
            return _number(null, width, signed)
        if value > int(field.attrib.get("maxValue", value)):
            raise RefusedError(field.attrib["name"])
        return _number(value, width, signed)

    # --- decoding --------------------------------------------------------------------------------------------------

    def decode(self, name: str, data: bytes) -> dict[str, Any]:
        message = self.messages[name]
        if name == "SlotHeader":
            return self._decode_slot(message, data)
        bytes_left = _Bytes(data)
        if name != "ShmRegionSuperblock":
            for wanted in (self.block_length(message), int(message.attrib["id"]), self.schema_id, self.version):
                if bytes_left.number(2, False) != wanted:
                    raise RefusedError("message header")
        values = dict(self._decode_members(message, bytes_left))
        if bytes_left.left:
            raise RefusedError(f"{bytes_left.left} bytes behind the message")
        return values

    def _decode_slot(self, message: ElementTree.Element, data: bytes) -> dict[str, Any]:
        if len(data) != SLOT_BYTES:
            raise RefusedError("a slot has 256 bytes")
        values = dict(self._decode_members(message, _Bytes(data)))
        header = values.pop("header_bytes")
        if len(header) == TENSOR_HEADER_BYTES:
            return {**values, "tensor_header": self.decode("TensorHeader", header)}
        if header or values["seq_commit"] & 1:
            raise RefusedError("the tensor header has 192 bytes")
        return {**values, "tensor_header": None}

    def _decode_members(self, parent: ElementTree.Element, data: _Bytes) -> Iterator[tuple[str, Any]]:
        is_message_of_discovery = self.schema_id == 910 and parent.tag == _MESSAGE
        for element in parent:
            name = snake_case(element.attrib["name"])
            if element.tag == "field":
                width, signed, count = self.primitive(element.attrib["type"])
                items = [data.number(width, signed) for _ in range(count)]
                if count > 0 and name != "pad":
                    yield name, items if count > 1 else self._meaning(element, items[0])
            elif element.tag == "group":
                yield name, self._decode_group(element, data)
            elif is_message_of_discovery and not data.left:
                yield name, b""
            else:
                length = data.number(4, False)
                if length > self.largest_data(element):
                    raise RefusedError(name)
                yield name, data.take(length)

    def _decode_group(self, group: ElementTree.Element, data: _Bytes) -> list[dict[str, Any]]:
        allowed = TAGS_BLOCK_LENGTHS if group.attrib["name"] == "tags" else (self.block_length(group),)
        if data.number(2, False) not in allowed:
            raise RefusedError("block length of a group")
        count = data.number(2, False)
        if count > LARGEST_GROUP:
            raise RefusedError("65535 is a null")
        return [dict(self._decode_members(group, data)) for _ in range(count)]

    def _meaning(self, field: ElementTree.Element, value: int) -> int | None:
        if value == self.null(field) or (field.attrib["name"] == "traceId" and value in TRACE_ID_NULLS):
            return None
        codes = self.codes(field.attrib["type"])
        if codes is not None:
            if self.schema_id == 901 and field.attrib["type"] == "Bool":
                value = HUGEPAGES_ALIAS.get(value, value)
            if value not in codes:
                raise RefusedError(field.attrib["name"])
        if value > int(field.attrib.get("maxValue", value)):
            raise RefusedError(field.attrib["name"])
        return value


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise RefusedError("the message ends too early")
        self._position += count
        return self._data[self._position - count : self._position]

    def number(self, width: int, signed: bool) -> int:
        return int.from_bytes(self.take(width), "little", signed=signed)


def _number(value: int, width: int, signed: bool) -> bytes:
    try:
        return value.to_bytes(width, "little", signed=signed)
    except OverflowError:
        raise RefusedError(f"{value} does not fit {width} bytes") from None


def snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def load_schemas() -> dict[int, ReferenceSchema]:
    schemas = [ReferenceSchema(SCHEMAS_DIRECTORY / name) for name in SCHEMA_FILES]
    return {schema.schema_id: schema for schema in schemas}
