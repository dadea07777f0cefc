"""What a schema says, with every offset worked out. All layouts are packed and little-endian."""

from __future__ import annotations

import re
from dataclasses import dataclass

PRIMITIVE_BYTES = {"uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8}
STRUCT_CODES = {"uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "uint64": "Q", "int64": "q"}
RUST_TYPES = {
    "uint8": "u8",
    "int8": "i8",
    "uint16": "u16",
    "int16": "i16",
    "uint32": "u32",
    "int32": "i32",
    "uint64": "u64",
    "int64": "i64",
}


def snake_case(name: str) -> str:
    """`headerNslots` and `HeaderNslots` both become `header_nslots`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def screaming_case(name: str) -> str:
    return snake_case(name).upper()


@dataclass(frozen=True)
class EnumType:
    name: str
    primitive: str
    members: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Field:
    """A fixed-size field. `count` is above 1 for arrays; `constant` fields take no bytes."""

    name: str
    offset: int
    primitive: str
    count: int = 1
    enum: EnumType | None = None
    null: int | None = None
    maximum: int | None = None
    constant: int | None = None

    @property
    def attribute(self) -> str:
        return snake_case(self.name)

    @property
    def is_pad(self) -> bool:
        """Bytes without meaning: written as zeros, not looked at when read."""
        return self.name == "pad"

    @property
    def length_bytes(self) -> int:
        return 0 if self.constant is not None else PRIMITIVE_BYTES[self.primitive] * self.count

    @property
    def struct_code(self) -> str:
        if self.constant is not None:
            return ""
        if self.is_pad:
            return f"{self.length_bytes}x"
        return f"{self.count if self.count > 1 else ''}{STRUCT_CODES[self.primitive]}"


@dataclass(frozen=True)
class VarData:
    """A u32 length and as many bytes; text when the encoding is the ASCII one."""

    name: str
    is_text: bool
    maximum: int

    @property
    def attribute(self) -> str:
        return snake_case(self.name)


@dataclass(frozen=True)
class Block:
    """The common part of messages and groups: fixed fields, then groups, then var-data."""

    name: str
    block_length: int
    fields: tuple[Field, ...]
    groups: tuple[Group, ...]
    data: tuple[VarData, ...]

    @property
    def values(self) -> tuple[Field, ...]:
        """The fields that carry a value, in wire order."""
        return tuple(field for field in self.fields if field.constant is None and not field.is_pad)

    @property
    def struct_format(self) -> str:
        return "<" + "".join(field.struct_code for field in self.fields)

    @property
    def minimum_bytes(self) -> int:
        """The block with empty groups and empty var-data: no encoding of it is shorter."""
        return self.block_length + 4 * len(self.groups) + 4 * len(self.data)


@dataclass(frozen=True)
class Group(Block):
    @property
    def attribute(self) -> str:
        return snake_case(self.name)

    @property
    def class_name(self) -> str:
        singular = self.name.removesuffix("s")
        return singular[0].upper() + singular[1:]


@dataclass(frozen=True)
class Message(Block):
    template_id: int


@dataclass(frozen=True)
class Schema:
    """One XML file. `name` is the module that is made of it: control, driver, bridge or discovery."""

    name: str
    schema_id: int
    version: int
    enums: tuple[EnumType, ...]
    messages: tuple[Message, ...]
