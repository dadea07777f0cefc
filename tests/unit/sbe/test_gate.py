"""What a decoder does with bytes that are not its message: refuse, name the place, and take nothing for it."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tensor_pool.errors import ProtocolError
from tensor_pool.sbe import bridge, codec, control, discovery, driver
from tests.vectors.known_answers import BARE_BODIES, KnownAnswer, decode_with, decoders, load_known_answers

ANSWERS = load_known_answers()
ONE_EACH = [next(answer for answer in ANSWERS if answer.message_class is each and not answer.decode_only) for each in decoders().values()]
HEADED = [answer for answer in ONE_EACH if answer.message not in BARE_BODIES]
REFUSES_OTHERS = {discovery.SCHEMA_ID: [pytest.mark.requirement("S-10-6")]}
GATED = [pytest.param(answer, marks=REFUSES_OTHERS.get(answer.schema, [])) for answer in HEADED]
every_module = pytest.mark.parametrize(
    "module",
    [pytest.param(module, marks=REFUSES_OTHERS.get(module.SCHEMA_ID, [])) for module in (control, driver, bridge, discovery)],
    ids=lambda module: module.__name__.rsplit(".", 1)[1],
)
GIBIBYTE = 1 << 30


def refused(decode: Callable[[bytes], Any], data: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode(data)
    return caught.value


def with_header(
    data: bytes, *, block: int | None = None, template: int | None = None, schema: int | None = None, version: int | None = None
) -> bytes:
    header = [
        new if new is not None else old
        for new, old in zip((block, template, schema, version), struct.unpack_from("<HHHH", data), strict=True)
    ]
    return struct.pack("<HHHH", *header) + data[8:]


# --- length --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [answer for answer in ANSWERS if answer.schema != 910 and answer.case != "maxima_of_the_types"], ids=str)
def test_a_message_that_was_cut_is_refused_at_every_length(answer: KnownAnswer) -> None:
    decode_with(answer.message_class, answer.data)
    for length in range(len(answer.data)):
        error = refused(
            answer.message_class.decode_body if not answer.has_message_header else answer.message_class.decode, answer.data[:length]
        )
        assert error.name in (answer.message, "TensorHeader", "messageHeader")


@pytest.mark.parametrize("answer", [answer for answer in ANSWERS if answer.schema == 910], ids=str)
def test_discovery_may_leave_out_whole_elements_at_the_end_and_nothing_else(answer: KnownAnswer) -> None:
    whole = decode_with(answer.message_class, answer.data)
    trailing = ("response_channel", "data_source_name") if answer.message == "DiscoveryRequest" else ("error_message",)
    accepted = []
    for length in range(len(answer.data)):
        try:
            message = answer.message_class.decode(answer.data[:length])
        except ProtocolError:
            continue
        accepted.append(length)
        for field in whole.__dataclass_fields__:
            if field not in trailing:
                assert getattr(message, field) == getattr(whole, field)
    boundary, boundaries = len(answer.data), []
    for field in reversed(trailing):
        present = 4 + len(getattr(whole, field).encode("utf-8", "surrogateescape"))
        if not (field == "data_source_name" and answer.case.endswith(("no_trailing_data_source_name", "no_trailing_name"))):
            boundary -= present
            boundaries.append(boundary)
    assert accepted == sorted(boundaries)


@pytest.mark.parametrize(
    "answer", [answer for answer in ANSWERS if answer.case != "maxima_of_the_types" and not answer.decode_only], ids=str
)
@pytest.mark.parametrize("extra", [b"\0", b"\0\0\0\0", b"\xff" * 64, bytes(5000)], ids=len)
def test_bytes_behind_the_message_are_refused(answer: KnownAnswer, extra: bytes) -> None:
    refused(lambda data: decode_with(answer.message_class, data), answer.data + extra)


# --- the message header --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", GATED, ids=str)
@pytest.mark.parametrize(
    ("field", "change"), [("schema", 1), ("template", 100), ("version", 1), ("version", -1), ("block", 1), ("block", -1), ("block", 8)]
)
def test_another_header_is_refused_and_the_field_named(answer: KnownAnswer, field: str, change: int) -> None:
    place = ("block", "template", "schema", "version").index(field)
    value = struct.unpack_from("<HHHH", answer.data)[place] + change
    error = refused(answer.message_class.decode, with_header(answer.data, **{field: value}))
    assert error.name == answer.message
    assert error.field == {"schema": "schema_id", "template": "template_id", "version": "version", "block": "block_length"}[field]
    assert str(value) in error.message


@pytest.mark.parametrize("answer", GATED, ids=str)
def test_a_newer_version_with_a_longer_block_is_refused_even_when_the_bytes_are_there(answer: KnownAnswer) -> None:
    length = answer.message_class.BLOCK_LENGTH
    longer = answer.data[: 8 + length] + bytes(4) + answer.data[8 + length :]
    assert refused(answer.message_class.decode, with_header(longer, block=length + 4, version=2)).field == "version"
    assert refused(answer.message_class.decode, with_header(longer, block=length + 4)).field == "block_length"


@pytest.mark.parametrize(("length", "message_class"), [(36, control.FrameDescriptor), (33, control.FrameProgress)])
def test_the_blocks_of_earlier_documents_are_refused(length: int, message_class: Any) -> None:
    data = struct.pack("<HHHH", length, message_class.TEMPLATE_ID, 900, 1) + bytes(length)
    error = refused(message_class.decode, data)
    assert (error.field, error.rule) == ("block_length", "E5")


@pytest.mark.parametrize("answer", [answer for answer in HEADED if answer.template == 1], ids=str)
@every_module
def test_template_ids_mean_nothing_without_their_schema(answer: KnownAnswer, module: Any) -> None:
    if answer.schema == module.SCHEMA_ID:
        assert type(module.decode(answer.data)) is answer.message_class
    else:
        error = refused(module.decode, answer.data)
        assert (error.name, error.field) == ("messageHeader", "schema_id")


@every_module
def test_unknown_and_shared_memory_templates_are_refused_by_the_module(module: Any) -> None:
    for template in (0, 10, 12, 50, 51, 52, 65535):
        error = refused(module.decode, struct.pack("<HHHH", 64, template, module.SCHEMA_ID, 1) + bytes(300))
        assert error.field == "template_id"
    for length in range(8):
        assert refused(module.decode, bytes(length)).name == "messageHeader"


# --- lengths and counts that the message gives -----------------------------------------------------------------------


def first_length_at(answer: KnownAnswer) -> int:
    """Where the first var-data length of a message without groups lies."""
    return (8 if answer.has_message_header else 0) + int(answer.message_class.BLOCK_LENGTH)


GROUPED = ("ShmPoolAnnounce", "ShmAttachResponse", "DataSourceMeta", "DiscoveryRequest", "DiscoveryResponse")
FIXED = (
    "FrameDescriptor",
    "FrameProgress",
    "QosConsumer",
    "QosProducer",
    "TensorHeader",
    "ShmAttachRequest",
    "ShmDetachRequest",
    "ShmLeaseKeepalive",
)
WITH_GROUP = [answer for answer in HEADED if answer.message in GROUPED]
WITH_DATA = [answer for answer in HEADED if answer.message not in GROUPED + FIXED]


@pytest.mark.parametrize("answer", WITH_DATA, ids=str)
@pytest.mark.parametrize("length", [100_000, GIBIBYTE, GIBIBYTE + 1, 2**31, 2**32 - 1])
def test_a_var_data_length_beyond_the_message_is_refused_before_anything_is_taken_for_it(answer: KnownAnswer, length: int) -> None:
    place = first_length_at(answer)
    data = answer.data[:place] + struct.pack("<I", length) + answer.data[place + 4 :]
    assert refused(answer.message_class.decode, data).rule == "E104"
    assert memory_taken(answer.message_class.decode, data) < 50_000


@pytest.mark.parametrize("answer", WITH_GROUP, ids=str)
@pytest.mark.parametrize("count", [200, 65534, 65535])
def test_a_group_count_beyond_the_message_is_refused_before_anything_is_taken_for_it(answer: KnownAnswer, count: int) -> None:
    place = first_length_at(answer) + 2
    data = answer.data[:place] + struct.pack("<H", count) + answer.data[place + 2 :]
    error = refused(answer.message_class.decode, data)
    assert error.rule == "E104"
    assert str(count) in error.message
    assert memory_taken(answer.message_class.decode, data) < 50_000


@pytest.mark.parametrize("answer", WITH_GROUP, ids=str)
def test_another_block_length_of_a_group_is_refused(answer: KnownAnswer) -> None:
    place = first_length_at(answer)
    (length,) = struct.unpack_from("<H", answer.data, place)
    for other in {length + 1, length + 8, 65535, 3} - {length}:
        data = answer.data[:place] + struct.pack("<H", other) + answer.data[place + 2 :]
        assert refused(answer.message_class.decode, data).rule == "E5"


def test_a_group_of_many_empty_entries_is_bounded_by_the_bytes_that_are_there() -> None:
    """Entries of four bytes are the cheapest there are: what they take has to stay a small multiple of what was sent."""
    tags = 65534
    data = struct.pack("<HHHHQIIIIQHH", 32, 1, 910, 1, 1, 1, 1, 2**32 - 1, 2**32 - 1, 2**64 - 1, 0, tags) + bytes(4 * tags)
    assert len(discovery.DiscoveryRequest.decode(data).tags) == tags
    assert memory_taken(discovery.DiscoveryRequest.decode, data) < 40 * len(data)
    assert refused(discovery.DiscoveryRequest.decode, data[:-1]).rule == "E104"


def memory_taken(decode: Callable[[bytes], Any], data: bytes) -> int:
    tracemalloc.start()
    try:
        decode(data)
    except ProtocolError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


# --- the slot ------------------------------------------------------------------------------------------------------


def slot_with(place: int, piece: bytes) -> bytes:
    slot = next(answer.data for answer in ANSWERS if answer.message == "SlotHeader" and answer.case == "image_u8_seq_0")
    return slot[:place] + piece + slot[place + len(piece) :]


@pytest.mark.parametrize("length", [0, 1, 184, 191, 193, 200, 2**32 - 1])
def test_a_committed_slot_without_exactly_one_tensor_header_is_refused(length: int) -> None:
    assert refused(control.SlotHeader.decode_body, slot_with(60, struct.pack("<I", length))).rule == "W-8.2-7"


@pytest.mark.parametrize(("place", "value"), [(64, 183), (64, 185), (66, 51), (66, 53), (68, 901), (70, 0), (70, 2)])
def test_a_tensor_header_with_another_header_is_refused(place: int, value: int) -> None:
    assert refused(control.SlotHeader.decode_body, slot_with(place, struct.pack("<H", value))).name == "TensorHeader"


# --- what may be given ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ONE_EACH, ids=str)
@pytest.mark.parametrize(
    "wrap", [bytearray, memoryview, lambda data: memoryview(bytearray(data))], ids=["bytearray", "memoryview", "writable"]
)
def test_any_buffer_is_read_and_copied_first(answer: KnownAnswer, wrap: Callable[[bytes], codec.WireBytes]) -> None:
    buffer = wrap(answer.data)
    decode = answer.message_class.decode if answer.has_message_header else answer.message_class.decode_body
    message = decode(buffer)
    if isinstance(buffer, bytearray):
        buffer[:] = bytes(len(buffer))
    assert message == decode(answer.data)


def test_a_group_count_that_is_the_null_of_its_field_is_refused_both_ways() -> None:
    """With every entry there, so that nothing but the count is wrong."""
    request = discovery.DiscoveryRequest(1, 1, 1, None, None, None, (discovery.Tag(""),) * 65534, "aeron:ipc", "")
    data = request.encode()
    assert discovery.DiscoveryRequest.decode(data) == request
    place = first_length_at(next(answer for answer in ONE_EACH if answer.message == "DiscoveryRequest"))
    one_more = data[: place + 2] + b"\xff\xff" + bytes(4) + data[place + 4 :]
    assert refused(discovery.DiscoveryRequest.decode, one_more).field == "tags"
    with pytest.raises(ProtocolError):
        dataclasses.replace(request, tags=(*request.tags, discovery.Tag(""))).encode()
