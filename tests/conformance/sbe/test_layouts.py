"""Offsets and lengths of every message, group and region, in Python and in Rust, against the tables of the specifications."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tensor_pool.sbe import control
from tests.vectors.known_answers import MODULES, build, decoders, encode, load_known_answers

TABLE = Path(__file__).with_name("layouts.txt")
RUST = Path(__file__).resolve().parents[3] / "native/core/src/layout.rs"
GROUP_CLASSES = {"payloadPools": "PayloadPool", "attributes": "Attribute", "tags": "Tag", "results": "Result"}


@dataclass(frozen=True)
class Layout:
    name: str
    schema: int
    template: int
    block_length: int
    fields: tuple[tuple[int, int, str], ...]

    @property
    def values(self) -> dict[str, int]:
        """Offsets by the names that Python gives the fields; pads carry no value."""
        return {snake_case(name): offset for offset, _, name in self.fields if name != "pad"}

    @property
    def ids(self) -> tuple[int, int, int]:
        return self.schema, self.template, self.block_length

    def __str__(self) -> str:
        return self.name


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def load_layouts() -> list[Layout]:
    layouts = []
    for paragraph in re.split(r"\n(?=\w)", TABLE.read_text())[1:]:
        head, *rows = paragraph.rstrip().split("\n")
        name, *numbers = head.split()
        schema, template, block_length = map(int, numbers)
        fields = tuple((int(offset), int(size), field) for offset, size, field in (row.split() for row in rows))
        layouts.append(Layout(name, schema, template, block_length, fields))
    return layouts


def rust_modules() -> dict[str, dict[str, int]]:
    """The integer constants of every `pub mod` by its path; "" holds the ones at the top."""
    modules: dict[str, dict[str, int]] = {"": {}}
    path: list[str] = []
    for line in RUST.read_text().splitlines():
        if opened := re.match(r"\s*pub mod (\w+) \{", line):
            path.append(opened[1])
            modules[".".join(path)] = {}
        elif line.strip() == "}":
            path.pop()
        elif constant := re.match(r"\s*pub const (\w+): \w+ = (-?[0-9][0-9A-Fa-fx_]*);", line):
            modules[".".join(path)][constant[1]] = int(constant[2].replace("_", ""), 0)
    return modules


def offsets_in(constants: dict[str, int]) -> dict[str, int]:
    """Offsets of the fields that carry a value, named as in Python."""
    named = {name.removesuffix("_OFFSET").lower(): value for name, value in constants.items() if name.endswith("_OFFSET")}
    return {name: offset for name, offset in named.items() if name != "pad"}


LAYOUTS = load_layouts()
MESSAGES = [layout for layout in LAYOUTS if "." not in layout.name]
GROUPS = [layout for layout in LAYOUTS if "." in layout.name and layout.fields]
RUST_MODULES = rust_modules()


def test_the_table_has_every_message_and_its_rows_leave_no_hole() -> None:
    assert {layout.name for layout in MESSAGES} == {name.split(".")[1] for name in decoders()}
    for layout in LAYOUTS:
        ends = [0, *(offset + size for offset, size, _ in layout.fields)]
        assert [offset for offset, _, _ in layout.fields] == ends[:-1]
        assert ends[-1] == layout.block_length


@pytest.mark.parametrize("layout", MESSAGES, ids=str)
@pytest.mark.requirement("W-16-1")
@pytest.mark.requirement("D-AppendixA-1")
def test_python_has_the_offsets_of_the_specification(layout: Layout) -> None:
    message_class = getattr(MODULES[layout.schema], layout.name)
    assert layout.values == message_class.OFFSETS
    assert layout.ids == (message_class.SCHEMA_ID, message_class.TEMPLATE_ID, message_class.BLOCK_LENGTH)
    assert message_class.SCHEMA_VERSION == 1


@pytest.mark.parametrize("layout", MESSAGES, ids=str)
def test_rust_has_the_offsets_of_the_specification(layout: Layout) -> None:
    constants = RUST_MODULES[snake_case(layout.name)]
    assert layout.ids == (constants["SCHEMA_ID"], constants["TEMPLATE_ID"], constants["BLOCK_LENGTH"])
    assert offsets_in(constants) == layout.values


@pytest.mark.parametrize("layout", GROUPS, ids=str)
def test_groups_have_the_offsets_of_the_specification(layout: Layout) -> None:
    message, *inner = layout.name.split(".")
    assert layout.values == getattr(MODULES[layout.schema], GROUP_CLASSES[inner[-1]]).OFFSETS
    constants = RUST_MODULES[".".join(snake_case(part) for part in (message, *inner))]
    assert constants["BLOCK_LENGTH"] == layout.block_length
    assert offsets_in(constants) == layout.values


# --- regions in shared memory ----------------------------------------------------------------------------------------


@pytest.mark.requirement("W-6-3")
def test_the_superblock_has_64_bytes_whatever_a_schema_says() -> None:
    assert control.SUPERBLOCK_BYTES == 64
    assert RUST_MODULES["shm_region_superblock"]["BLOCK_LENGTH"] == 64


@pytest.mark.requirement("W-7.1-1")
def test_superblock_fields_lie_where_the_specification_puts_them() -> None:
    superblock = control.ShmRegionSuperblock(
        control.SUPERBLOCK_MAGIC, 1, 2, 3, control.RegionType.PAYLOAD_POOL, 4, 5, 6, 7, 8, 9, 10
    ).encode_body()  # fmt: skip
    assert superblock == bytes.fromhex("314d48534c504f54") + struct.pack("<IQIhHIIIQQQ", 1, 2, 3, 2, 4, 5, 6, 7, 8, 9, 10)


@pytest.mark.requirement("W-7.1-6")
def test_the_magic_is_the_number_of_the_specification_in_little_endian() -> None:
    assert control.SUPERBLOCK_MAGIC == RUST_MODULES[""]["SUPERBLOCK_MAGIC"] == 0x544F504C53484D31
    for answer in load_known_answers():
        if answer.message == "ShmRegionSuperblock" and answer.case in ("header_ring", "payload_pool"):
            encoded = encode(build(control.ShmRegionSuperblock, {**answer.fields, "magic": control.SUPERBLOCK_MAGIC}))
            assert encoded == answer.data
            assert encoded.startswith(b"1MHSLPOT")


def slot(**changes: Any) -> bytes:
    header = control.TensorHeader(
        control.Dtype.UINT16, control.MajorOrder.ROW, 2, 0, control.ProgressUnit.ROWS, 0x01020304, (7, 8, *[0] * 6), (16, 2, *[0] * 6)
    )  # fmt: skip
    values = {
        "seq_commit": (77 << 1) | 1,
        "values_len_bytes": 112,
        "payload_slot": 13,
        "pool_id": 9,
        "payload_offset": 0,
        "timestamp_ns": 5,
        "meta_version": 6,
    }
    return control.SlotHeader(**{**values, "tensor_header": header, **changes}).encode_body()


@pytest.mark.requirement("W-8.2-4")
def test_a_slot_is_a_bare_body_that_begins_with_seq_commit() -> None:
    assert struct.unpack_from("<Q", slot(), 0) == ((77 << 1) | 1,)
    assert RUST_MODULES["slot_header"]["SEQ_COMMIT_OFFSET"] == 0
    assert len(slot()) == control.HEADER_SLOT_BYTES == RUST_MODULES["slot"]["LENGTH"] == 256


@pytest.mark.requirement("W-8.2-1")
def test_the_fields_of_a_slot_lie_where_the_specification_puts_them() -> None:
    """In particular padAlign right behind ndims: maxDims between them takes no bytes."""
    data = slot()
    assert struct.unpack_from("<QIIHIQI", data, 0) == (155, 112, 13, 9, 0, 5, 6)
    assert data[34:60] == bytes(26)
    assert struct.unpack_from("<IHHHH", data, 60) == (192, 184, 52, 900, 1)
    assert struct.unpack_from("<hhBBBI8i8i", data, 72) == (3, 1, 2, 0, 1, 0x01020304, 7, 8, *[0] * 6, 16, 2, *[0] * 6)
    assert data[147:] == bytes(109)
    rust = RUST_MODULES["slot"]
    assert (rust["HEADER_BYTES_LENGTH_OFFSET"], rust["HEADER_BYTES_LENGTH"]) == (60, 192)
    assert (rust["EMBEDDED_HEADER_OFFSET"], rust["TENSOR_HEADER_OFFSET"]) == (64, 72)
    assert control.MAX_DIMS == RUST_MODULES["tensor_header"]["MAX_DIMS"] == 8


def test_nothing_is_read_from_the_pads_of_a_slot() -> None:
    dirty = bytearray(slot())
    dirty[34:60] = b"\xff" * 26
    dirty[147:256] = b"\xa5" * 109
    assert control.SlotHeader.decode_body(dirty) == control.SlotHeader.decode_body(slot())


@pytest.mark.requirement("W-16-2")
def test_schema_version_layout_version_and_document_version_are_aligned() -> None:
    assert control.SCHEMA_VERSION == control.LAYOUT_VERSION == RUST_MODULES[""]["LAYOUT_VERSION"] == 1
