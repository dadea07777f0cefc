"""Reads the known answers, and turns plain values into messages of `tensor_pool.sbe` and back.

Plain values are dicts of int, None, bytes and lists: what the wire carries, without classes. Text is bytes here, so that nothing depends on
how a codec shows text.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from tensor_pool.sbe import bridge, control, discovery, driver

VECTORS_PATH = Path(__file__).with_name("sbe-vectors.json")
MODULES: Mapping[int, types.ModuleType] = {900: control, 901: driver, 902: bridge, 910: discovery}
BARE_BODIES = ("ShmRegionSuperblock", "SlotHeader")

REFUSED = {("BridgeFrameChunk", "maxima_of_the_types"): "E104"}
"""Well encoded, and above what the schema allows: refused, for the reason of the decision."""
READ_AS_ABSENT = {("FrameDescriptor", "trace_id_all_ones_is_a_value"): "trace_id"}
"""All ones in a trace id is how code of the reference compiler writes an absent one (E102)."""


@dataclass(frozen=True)
class KnownAnswer:
    schema: int
    template: int
    message: str
    case: str
    has_message_header: bool
    fields: dict[str, Any]
    data: bytes
    decode_only: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.message, self.case

    @property
    def message_class(self) -> Any:
        return getattr(MODULES[self.schema], self.message)

    def __str__(self) -> str:
        return f"{self.message}-{self.case}"


def load_known_answers() -> list[KnownAnswer]:
    return [
        KnownAnswer(
            entry["schema"],
            entry["template"],
            entry["message"],
            entry["case"],
            entry["has_message_header"],
            entry["fields"],
            bytes.fromhex(entry["hex"]),
            entry.get("decode_only", False),
        )
        for entry in json.loads(VECTORS_PATH.read_text())
    ]


def decode_with(message_class: Any, data: bytes) -> Any:
    return message_class.decode_body(data) if message_class.__name__ in BARE_BODIES else message_class.decode(data)


def encode(message: Any) -> bytes:
    encoded: bytes = message.encode_body() if type(message).__name__ in BARE_BODIES else message.encode()
    return encoded


def decoders() -> dict[str, Any]:
    """Every message class of the package by `module.Name`, in the order of schemas and templates."""
    classes = {}
    for module in MODULES.values():
        found = [value for value in vars(module).values() if isinstance(value, type) and hasattr(value, "TEMPLATE_ID")]
        for message_class in sorted(found, key=lambda each: each.TEMPLATE_ID):
            classes[f"{module.__name__.rsplit('.', 1)[1]}.{message_class.__name__}"] = message_class
    return classes


# --- plain values to messages --------------------------------------------------------------------------------------


def build(message_class: Any, plain: Mapping[str, Any]) -> Any:
    """The message of these values, in the notation of the known answers or as plain values."""
    hints = typing.get_type_hints(message_class)
    values = {}
    for field in dataclasses.fields(message_class):
        raw = bytes.fromhex(plain[f"{field.name}_hex"]) if f"{field.name}_hex" in plain else plain.get(field.name)
        values[field.name] = _typed(hints[field.name], raw)
    return message_class(**values)


def _typed(hint: Any, raw: Any) -> Any:
    if typing.get_origin(hint) is types.UnionType:
        if raw is None:
            return None
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_typed(item, each) for each in raw)
    if dataclasses.is_dataclass(hint):
        return build(hint, raw)
    if hint is str:
        return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
    if hint is bytes:
        return raw
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return hint(int(raw))
    if hint is int:
        return int(raw)
    raise TypeError(f"no rule for {hint}")


# --- messages to plain values --------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """What the wire carries of a message, a group or one value."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return int(value) if isinstance(value, IntEnum) else value
