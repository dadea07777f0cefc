"""The Python code of one message or group: its class, its reader and its writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codegen.constants import (
    BODIES_WITHOUT_HEADER,
    EMBEDDED_MESSAGE,
    GROUP_BLOCK_LENGTHS,
    GROUP_WORDS,
    HEADER_RULES,
    MESSAGE_HEADER_BYTES,
    MESSAGE_WORDS,
    MORE_NULLS,
    READ_ALIASES,
    TRAILING_DATA_MAY_BE_MISSING,
    ZERO_MEANS_ABSENT,
)
from codegen.model import Block, Field, Group, Message, Schema, VarData, screaming_case

_DEFAULT_MAXIMUM = 1 << 30
_BODY, _METHOD = "    ", "        "


def emit_group(schema: Schema, group: Group) -> Iterator[str]:
    yield "\n\n@dataclass(frozen=True, slots=True)"
    yield f"class {group.class_name}:"
    yield f'    """{GROUP_WORDS[group.name]}"""\n'
    yield from _attributes(group)
    if group.fields:
        yield ""
        yield from _offsets(group)
        yield f'\n\n_{screaming_case(group.class_name)} = Struct("{group.struct_format}")'
    yield from _group_reader(schema, group)
    yield from _group_writer(schema, group)


def emit_message(schema: Schema, message: Message) -> Iterator[str]:
    name = screaming_case(message.name)
    yield f'\n\n_{name} = Struct("{message.struct_format}")'
    if message.name not in BODIES_WITHOUT_HEADER:
        header = b"".join(
            part.to_bytes(2, "little") for part in (message.block_length, message.template_id, schema.schema_id, schema.version)
        )
        yield f'_{name}_HEADER = bytes.fromhex("{header.hex()}")'
    yield "\n\n@dataclass(frozen=True, slots=True)"
    yield f"class {message.name}:"
    yield f'    """{MESSAGE_WORDS[message.name]}'
    yield f"\n    Template {message.template_id} of schema {schema.schema_id}."
    yield '    """\n'
    yield "    SCHEMA_ID: ClassVar[int] = SCHEMA_ID"
    yield "    SCHEMA_VERSION: ClassVar[int] = SCHEMA_VERSION"
    yield f"    TEMPLATE_ID: ClassVar[int] = {message.template_id}"
    yield f"    BLOCK_LENGTH: ClassVar[int] = {message.block_length}"
    yield from _offsets(message)
    for field in message.fields:
        if field.constant is not None:
            yield f"    {screaming_case(field.name)}: ClassVar[int] = {field.constant}"
    yield ""
    yield from _attributes(message)
    yield ""
    if message.name == "SlotHeader":
        yield from _slot_methods(schema, message)
    else:
        yield from _reader(schema, message)
        yield ""
        yield from _writer(schema, message)


# --- the class -----------------------------------------------------------------------------------------------------


def _attributes(block: Block) -> Iterator[str]:
    for field in block.values:
        python_type = field.enum.name if field.enum else "int"
        if field.count > 1:
            python_type = "tuple[int, ...]"
        yield f"    {field.attribute}: {python_type}{' | None' if field.null is not None else ''}"
    for group in block.groups:
        yield f"    {group.attribute}: tuple[{group.class_name}, ...]"
    for data in block.data:
        if _holds_embedded(block):
            yield f"    tensor_header: {EMBEDDED_MESSAGE} | None"
        else:
            yield f"    {data.attribute}: {'str' if data.is_text else 'bytes'}"


def _offsets(block: Block) -> Iterator[str]:
    yield "    OFFSETS: ClassVar[Mapping[str, int]] = {"
    for field in block.values:
        yield f'        "{field.attribute}": {field.offset},'
    yield "    }"
    yield '    """Of the fixed fields, from the start of the block."""'


def _holds_embedded(block: Block) -> bool:
    return block.name == "SlotHeader"


# --- reading -------------------------------------------------------------------------------------------------------


def _reader(schema: Schema, message: Message) -> Iterator[str]:
    name = screaming_case(message.name)
    bare = message.name in BODIES_WITHOUT_HEADER
    begin = 0 if bare else MESSAGE_HEADER_BYTES
    end = begin + message.block_length
    varies = bool(message.groups or message.data)
    yield "    @classmethod"
    yield f"    def decode{'_body' if bare else ''}(cls, data: codec.WireBytes) -> {message.name}:"
    yield f'        """Raises `ProtocolError` unless the bytes are exactly one {message.name}."""'
    yield "        data = codec.as_bytes(data)"
    if not bare:
        yield f"        if data[:{begin}] != _{name}_HEADER or len(data) < {end}:"
        rule = HEADER_RULES[schema.schema_id]
        yield f'            codec.refuse_header(data, _{name}_HEADER, {message.block_length}, "{message.name}", "{rule}")'
    if not varies:
        yield f"        if len(data) != {end}:"
        yield f'            codec.refuse_length(data, {end}, "{message.name}")'
    yield from _read_block(schema, message, f"_{name}", str(begin), f'"{message.name}"', "", _METHOD)
    if varies:
        yield f"        offset = {end}"
        yield from _read_variable_part(schema, message, f'"{message.name}"', "", _METHOD)
        yield "        if offset != len(data):"
        yield f'            codec.refuse_length(data, offset, "{message.name}")'
    yield f"        return cls({', '.join(_argument_names(message))})"


def _group_reader(schema: Schema, group: Group) -> Iterator[str]:
    lengths = GROUP_BLOCK_LENGTHS.get((schema.schema_id, group.name), (group.block_length,))
    prefix = f"{group.attribute}."
    yield f"\n\ndef _read_{group.attribute}(data: bytes, offset: int, message: str) -> tuple[tuple[{group.class_name}, ...], int]:"
    yield f'    count, offset = codec.read_group(data, offset, {lengths!r}, {group.minimum_bytes}, message, "{group.attribute}")'
    yield "    entries = []"
    yield "    for _ in range(count):"
    if group.block_length:
        yield f"        if offset + {group.block_length} > len(data):"
        yield f'            raise codec.truncated(message, "{group.attribute}")'
        yield from _read_block(schema, group, f"_{screaming_case(group.class_name)}", "offset", "message", prefix, _METHOD)
        yield f"        offset += {group.block_length}"
    yield from _read_variable_part(schema, group, "message", prefix, _METHOD)
    yield f"        entries.append({group.class_name}({', '.join(_argument_names(group))}))"
    yield "    return tuple(entries), offset"


def _read_block(schema: Schema, block: Block, struct: str, offset: str, message: str, prefix: str, indent: str) -> Iterator[str]:
    """Unpacks the fixed fields into names, and turns codes into enum members, nulls into None, arrays into tuples."""
    targets = [f"*{field.attribute}_" if field.count > 1 else _raw_name(block, field) for field in block.values]
    arrays = [field for field in block.values if field.count > 1]
    if arrays:
        yield f"{indent}values = {struct}.unpack_from(data, {offset})"
        position = 0
        for field in block.values:
            part = f"[{position}:{position + field.count}]" if field.count > 1 else f"[{position}]"
            yield f"{indent}{_raw_name(block, field)} = values{part}"
            position += field.count
    else:
        comma = "," if len(targets) == 1 else ""
        unpacked = f"{', '.join(targets)}{comma}"
        yield f"{indent}{f'({unpacked})' if comma else unpacked} = {struct}.unpack_from(data, {offset})"
    for field in block.values:
        yield from _read_value(schema, block, field, message, prefix, indent)


def _read_value(schema: Schema, block: Block, field: Field, message: str, prefix: str, indent: str) -> Iterator[str]:
    name, raw = field.attribute, _raw_name(block, field)
    if field.enum is not None:
        known = f"_{screaming_case(field.enum.name)}"
        table = known.replace("_", "_READ_", 1) if (schema.schema_id, field.enum.name) in READ_ALIASES else known
        yield f"{indent}{name} = {table}.get({raw})"
        absent = f" and {raw} != {field.null}" if field.null is not None else ""
        yield f"{indent}if {name} is None{absent}:"
        yield f'{indent}    raise codec.unknown_value({raw}, {table}, {message}, "{prefix}{name}")'
    elif field.null is not None:
        more = MORE_NULLS.get((block.name, field.name))
        test = f"{raw} == {field.null:#x}" if more is None else f"{raw} in ({field.null:#x}, {more:#x})"
        yield f"{indent}{name} = None if {test} else {raw}"
    if field.maximum is not None:
        yield f"{indent}if {name} > {field.maximum}:"
        yield f'{indent}    raise codec.above_maximum({name}, {field.maximum}, {message}, "{prefix}{name}")'


def _raw_name(block: Block, field: Field) -> str:
    return f"{field.attribute}_code" if field.enum is not None or field.null is not None else field.attribute


def _read_variable_part(schema: Schema, block: Block, message: str, prefix: str, indent: str) -> Iterator[str]:
    for group in block.groups:
        yield f"{indent}{group.attribute}, offset = _read_{group.attribute}(data, offset, {message})"
    trailing = isinstance(block, Message) and schema.schema_id in TRAILING_DATA_MAY_BE_MISSING
    for data in block.data:
        reader = "read_trailing_text" if trailing else f"read_{_kind(data)}"
        maximum = "" if data.maximum == _DEFAULT_MAXIMUM else f", {data.maximum}"
        yield f'{indent}{data.attribute}, offset = codec.{reader}(data, offset, {message}, "{prefix}{data.attribute}"{maximum})'


def _argument_names(block: Block) -> Iterator[str]:
    yield from (field.attribute for field in block.values)
    yield from (group.attribute for group in block.groups)
    yield from (data.attribute for data in block.data)


# --- writing -------------------------------------------------------------------------------------------------------


def _writer(schema: Schema, message: Message) -> Iterator[str]:
    name = screaming_case(message.name)
    bare = message.name in BODIES_WITHOUT_HEADER
    yield f"    def encode{'_body' if bare else ''}(self) -> bytes:"
    yield '        """Raises `ProtocolError` for a value that the wire has no room for."""'
    yield from _write_block(message, f"_{name}", "self", f'"{message.name}"', "", _METHOD)
    parts = [] if bare else [f"_{name}_HEADER"]
    parts.append("block")
    parts += _write_variable_part(message, "self", f'"{message.name}"', "")
    yield from _returned(parts, _METHOD)


def _group_writer(schema: Schema, group: Group) -> Iterator[str]:
    written_length = GROUP_BLOCK_LENGTHS.get((schema.schema_id, group.name), (group.block_length,))[0]
    prefix = f"{group.attribute}."
    yield f"\n\ndef _write_{group.attribute}(entries: tuple[{group.class_name}, ...], message: str) -> bytes:"
    yield f'    parts = [codec.write_group(len(entries), {written_length}, message, "{group.attribute}")]'
    parts = _write_variable_part(group, "entry", "message", prefix)
    if not group.fields and len(parts) == 1:
        yield f"    parts.extend({parts[0]} for entry in entries)"
    else:
        yield "    for entry in entries:"
        if group.fields:
            yield from _write_block(group, f"_{screaming_case(group.class_name)}", "entry", "message", prefix, _METHOD)
            yield "        parts.append(block)"
        for part in parts:
            yield f"        parts.append({part})"
    yield '    return b"".join(parts)'


def _write_block(block: Block, struct: str, source: str, message: str, prefix: str, indent: str) -> Iterator[str]:
    class_name = block.class_name if isinstance(block, Group) else block.name
    for field in block.values:
        yield from _check_written(block, field, source, message, prefix, indent)
    yield f"{indent}values = ("
    for field in block.values:
        yield f"{indent}    {_written_value(block, field, source, message, prefix)},"
    yield f"{indent})"
    yield f"{indent}try:"
    yield f"{indent}    block = {struct}.pack(*values)"
    yield f"{indent}except error:"
    yield f"{indent}    raise codec.unencodable({message}, {class_name}.OFFSETS, {struct}, values) from None"


def _check_written(block: Block, field: Field, source: str, message: str, prefix: str, indent: str) -> Iterator[str]:
    value = f"{source}.{field.attribute}"
    if field.enum is not None:
        known = f"_{screaming_case(field.enum.name)}"
        absent = f"{value} is not None and " if field.null is not None else ""
        yield f"{indent}if {absent}{value} not in {known}:"
        yield f'{indent}    raise codec.unknown_value({value}, {known}, {message}, "{prefix}{field.attribute}")'
    if field.maximum is not None:
        yield f"{indent}if {value} > {field.maximum}:"
        yield f'{indent}    raise codec.above_maximum({value}, {field.maximum}, {message}, "{prefix}{field.attribute}")'


def _written_value(block: Block, field: Field, source: str, message: str, prefix: str) -> str:
    value = f"{source}.{field.attribute}"
    if field.count > 1:
        return f'*codec.write_array({value}, {field.count}, {message}, "{prefix}{field.attribute}")'
    if field.null is None:
        return value
    if field.enum is not None:
        return f"{field.null} if {value} is None else {value}"
    if (block.name, field.name) in ZERO_MEANS_ABSENT:
        return f'codec.write_absent_as_zero({value}, {MORE_NULLS[block.name, field.name]:#x}, {message}, "{prefix}{field.attribute}")'
    return f'codec.write_optional({value}, {field.null:#x}, {message}, "{prefix}{field.attribute}")'


def _write_variable_part(block: Block, source: str, message: str, prefix: str) -> list[str]:
    parts = [f"_write_{group.attribute}({source}.{group.attribute}, {message})" for group in block.groups]
    for data in block.data:
        maximum = "" if data.maximum == _DEFAULT_MAXIMUM else f", {data.maximum}"
        parts.append(f'codec.write_{_kind(data)}({source}.{data.attribute}, {message}, "{prefix}{data.attribute}"{maximum})')
    return parts


def _returned(parts: Sequence[str], indent: str) -> Iterator[str]:
    if len(parts) <= 2:
        yield f"{indent}return {' + '.join(parts)}"
        return
    yield f'{indent}return b"".join('
    yield f"{indent}    ("
    for part in parts:
        yield f"{indent}        {part},"
    yield f"{indent}    )"
    yield f"{indent})"


def _kind(data: VarData) -> str:
    return "text" if data.is_text else "data"


# --- the slot of the header ring -----------------------------------------------------------------------------------

_SLOT_DECODE_CHECK = """\
        (header_length,) = _LENGTH_OF_HEADER_BYTES.unpack_from(data, {block_length})
        if header_length == HEADER_SLOT_BYTES - {header_offset}:
            tensor_header = {embedded}.decode(data[{header_offset}:])
        elif header_length == 0 and not seq_commit & 1:
            tensor_header = None
        else:
            raise ProtocolError(
                f"SlotHeader.header_bytes: {{header_length}} bytes, expected {{HEADER_SLOT_BYTES - {header_offset}}}",
                name="SlotHeader",
                field="header_bytes",
                rule="W-8.2-7",
            )\
"""

_SLOT_ENCODE_TAIL = """\
        if self.tensor_header is not None:
            header_bytes = self.tensor_header.encode()
        elif not self.seq_commit & 1:
            header_bytes = b""
        else:
            raise ProtocolError(
                "SlotHeader: a committed slot has a tensor header", name="SlotHeader", field="tensor_header", rule="W-8.2-7"
            )
        return (block + _LENGTH_OF_HEADER_BYTES.pack(len(header_bytes)) + header_bytes).ljust(HEADER_SLOT_BYTES, b"\\0")\
"""


def _slot_methods(schema: Schema, slot: Message) -> Iterator[str]:
    """A slot is always whole, and its var-data is the tensor header or, before the first commit, empty."""
    yield "    @classmethod"
    yield "    def decode_body(cls, data: codec.WireBytes) -> SlotHeader:"
    yield '        """One slot of 256 bytes. There is no tensor header in a slot whose first frame was not committed yet."""'
    yield "        data = codec.as_bytes(data)"
    yield "        if len(data) != HEADER_SLOT_BYTES:"
    yield '            codec.refuse_length(data, HEADER_SLOT_BYTES, "SlotHeader")'
    yield from _read_block(schema, slot, "_SLOT_HEADER", "0", '"SlotHeader"', "", _METHOD)
    yield _SLOT_DECODE_CHECK.format(block_length=slot.block_length, header_offset=slot.block_length + 4, embedded=EMBEDDED_MESSAGE)
    yield f"        return cls({', '.join(field.attribute for field in slot.values)}, tensor_header)"
    yield ""
    yield "    def encode_body(self) -> bytes:"
    yield '        """Raises `ProtocolError` for a value that the slot has no room for."""'
    yield from _write_block(slot, "_SLOT_HEADER", "self", '"SlotHeader"', "", _METHOD)
    yield _SLOT_ENCODE_TAIL
    yield '\n\n_LENGTH_OF_HEADER_BYTES = Struct("<I")'
