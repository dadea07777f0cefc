"""XML to model. Anything in a schema that this generator does not understand is an error that names its line, never skipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from codegen.located import Element, SchemaError, read_located
from codegen.model import PRIMITIVE_BYTES, EnumType, Field, Group, Message, Schema, VarData

_SBE = "{http://fixprotocol.io/2016/sbe}"
_FIELD_ATTRIBUTES = {"name", "id", "type", "presence", "nullValue", "maxValue"}
_TYPE_ATTRIBUTES = {"name", "primitiveType", "length", "presence", "nullValue"}


@dataclass(frozen=True)
class _SimpleType:
    primitive: str
    count: int
    null: int | None
    constant: int | None


@dataclass(frozen=True)
class _Types:
    simple: dict[str, _SimpleType]
    enums: dict[str, EnumType]
    var_data: dict[str, tuple[bool, int]]


def parse_schema(path: Path) -> Schema:
    root = read_located(path)
    if root.get("byteOrder") != "littleEndian":
        raise root.error("only byteOrder littleEndian is supported")
    name, _, schema_id = path.stem.rpartition("-")
    if root.attribute("id") != schema_id:
        raise root.error(f"the file name says schema {schema_id}, the schema says {root.get('id')}")
    sections = [part for part in root.parts() if part.tag == "types"]
    if len(sections) != 1:
        raise root.error(f"{len(sections)} <types> sections, expected one")
    types = _parse_types(sections[0])
    elements = [part for part in root.parts() if part.tag != "types"]
    messages = tuple(_parse_message(element, types) for element in elements)
    for position, element in enumerate(elements):
        earlier = messages[:position]
        if messages[position].template_id in [message.template_id for message in earlier]:
            raise element.error(f"template id {messages[position].template_id} is taken already")
        if messages[position].name in [message.name for message in earlier]:
            raise element.error(f"there is a message {messages[position].name} already")
    return Schema(name, int(schema_id), root.number("version"), tuple(types.enums.values()), messages)


# --- types ---------------------------------------------------------------------------------------------------------


def _parse_types(section: Element) -> _Types:
    types = _Types({name: _SimpleType(name, 1, None, None) for name in PRIMITIVE_BYTES}, {}, {})
    for child in section.parts():
        name = child.attribute("name")
        if child.tag == "type":
            types.simple[name] = _parse_simple_type(child)
        elif child.tag == "enum":
            types.enums[name] = _parse_enum(child, name)
        elif child.tag == "composite":
            _parse_composite(child, name, types)
        else:
            raise child.error(f"unknown kind of type: <{child.tag}>")
    return types


def _parse_simple_type(element: Element) -> _SimpleType:
    element.refuse_attributes_except(_TYPE_ATTRIBUTES)
    constant = element.text_number() if element.get("presence") == "constant" else None
    count = 1 if element.get("length") is None else element.number("length")
    if count < 1:
        raise element.error("an array has at least one item")
    return _SimpleType(_primitive(element, "primitiveType"), count, element.optional_number("nullValue"), constant)


def _parse_enum(element: Element, name: str) -> EnumType:
    members: dict[str, int] = {}
    for value in element.parts():
        member, code = value.attribute("name"), value.text_number()
        if member in members or code in members.values():
            raise value.error(f"{name} has a member {member} or a value {code} already")
        members[member] = code
    return EnumType(name, _primitive(element, "encodingType"), tuple(members.items()))


def _parse_composite(element: Element, name: str, types: _Types) -> None:
    """The message and group headers are fixed; what is left are the kinds of var-data."""
    parts = {part.attribute("name"): part for part in element.parts()}
    if name in ("messageHeader", "groupSizeEncoding"):
        return
    if set(parts) != {"length", "varData"}:
        raise element.error(f"{name}: the only composites are headers and var-data")
    if _primitive(parts["length"], "primitiveType") != "uint32":
        raise parts["length"].error(f"{name}: the length of var-data is a uint32")
    types.var_data[name] = ("Ascii" in name, parts["length"].number("maxValue"))


def _primitive(element: Element, attribute: str) -> str:
    primitive = element.attribute(attribute)
    if primitive not in PRIMITIVE_BYTES:
        raise element.error(f"{attribute} is {primitive}, expected one of {', '.join(PRIMITIVE_BYTES)}")
    return primitive


# --- messages ------------------------------------------------------------------------------------------------------


def _parse_message(element: Element, types: _Types) -> Message:
    if element.tag != f"{_SBE}message":
        raise element.error(f"unknown element <{element.tag.rpartition('}')[2]}>")
    fields, groups, data = _parse_members(element, types)
    return Message(element.attribute("name"), _block_length(element, fields), fields, groups, data, element.number("id"))


def _parse_group(element: Element, types: _Types) -> Group:
    if element.attribute("dimensionType") != "groupSizeEncoding":
        raise element.error("dimensionType is groupSizeEncoding")
    fields, groups, data = _parse_members(element, types)
    return Group(element.attribute("name"), _block_length(element, fields), fields, groups, data)


def _block_length(element: Element, fields: tuple[Field, ...]) -> int:
    total = sum(field.length_bytes for field in fields)
    declared = element.optional_number("blockLength")
    if declared is not None and declared != total:
        raise element.error(f"{element.get('name')}: the fields fill {total} bytes, the schema declares {declared}")
    return total


def _parse_members(element: Element, types: _Types) -> tuple[tuple[Field, ...], tuple[Group, ...], tuple[VarData, ...]]:
    fields: list[Field] = []
    groups: list[Group] = []
    data: list[VarData] = []
    offset = 0
    names: set[str] = set()
    for child in element.parts():
        name = child.attribute("name")
        if name in names:
            raise child.error(f"{element.get('name')} has a member {name} already")
        names.add(name)
        if child.tag == "field" and not groups and not data:
            fields.append(_parse_field(child, types, offset))
            offset += fields[-1].length_bytes
        elif child.tag == "group" and not data:
            groups.append(_parse_group(child, types))
        elif child.tag == "data":
            data.append(_parse_data(child, types))
        else:
            raise child.error(f"{element.get('name')}.{name}: fields come first, then groups, then var-data")
    return tuple(fields), tuple(groups), tuple(data)


def _parse_data(element: Element, types: _Types) -> VarData:
    if element.get("presence") is not None:
        raise element.error("var-data has no presence: absent is length 0")
    type_name = element.attribute("type")
    if type_name not in types.var_data:
        raise element.error(f"{type_name} is not a kind of var-data")
    is_text, maximum = types.var_data[type_name]
    return VarData(element.attribute("name"), is_text, maximum)


def _parse_field(element: Element, types: _Types, offset: int) -> Field:
    element.refuse_attributes_except(_FIELD_ATTRIBUTES)
    type_name = element.attribute("type")
    enum = types.enums.get(type_name)
    if enum is None and type_name not in types.simple:
        raise element.error(f"{type_name} is not a type of fixed size")
    simple = types.simple[enum.primitive if enum else type_name]
    null = _null_of(element, simple)
    if enum is not None and null in dict(enum.members).values():
        raise element.error(f"the null {null} is a member of {enum.name} too")
    return Field(
        element.attribute("name"),
        offset,
        simple.primitive,
        simple.count,
        enum,
        null,
        element.optional_number("maxValue"),
        constant=simple.constant,
    )


def _null_of(element: Element, simple: _SimpleType) -> int | None:
    if element.get("presence") is None:
        return None
    if element.get("presence") != "optional":
        raise element.error(f"presence {element.get('presence')} of a field is not supported")
    declared = element.optional_number("nullValue")
    if declared is None:
        declared = simple.null
    if declared is None or (simple.null is not None and declared != simple.null):
        raise element.error("an optional field needs one null value")
    return declared


__all__ = ["SchemaError", "parse_schema"]
