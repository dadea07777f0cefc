"""What single fields mean on the wire: nulls, empty elements, codes, bounds."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
import types
import typing
from enum import IntEnum
from typing import Any

import pytest

from tensor_pool.errors import ProtocolError
from tensor_pool.sbe import bridge, control, discovery, driver
from tests.vectors.known_answers import BARE_BODIES, MODULES, build, decode_with, decoders, encode, load_known_answers

ANSWERS = load_known_answers()
SAMPLES = {
    answer.message_class: build(answer.message_class, answer.fields) for answer in reversed(ANSWERS) if answer.case != "maxima_of_the_types"
}


def is_optional(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)


def fields_of(message_class: Any, wanted: Any) -> list[str]:
    hints = typing.get_type_hints(message_class)
    return [field.name for field in dataclasses.fields(message_class) if wanted(hints[field.name])]


def enum_of(message_class: Any, field: str) -> type[IntEnum] | None:
    hint = typing.get_type_hints(message_class)[field]
    candidates = typing.get_args(hint) if is_optional(hint) else (hint,)
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, IntEnum)), None)


def place_of(message_class: Any, field: str) -> int:
    return (0 if message_class.__name__ in BARE_BODIES else 8) + int(message_class.OFFSETS[field])


# --- absent values ---------------------------------------------------------------------------------------------------

NULLS = [
    (control.ConsumerHello, "progress_interval_us", 4, 0xFFFFFFFF),
    (control.ConsumerHello, "progress_bytes_delta", 4, 0xFFFFFFFF),
    (control.ConsumerHello, "progress_major_delta_units", 4, 0xFFFFFFFF),
    (control.FrameDescriptor, "timestamp_ns", 8, 0xFFFFFFFFFFFFFFFF),
    (control.FrameDescriptor, "meta_version", 4, 0xFFFFFFFF),
    (control.FrameDescriptor, "trace_id", 8, 0),
    (control.QosProducer, "watermark", 4, 0xFFFFFFFF),
    (driver.ShmAttachRequest, "publish_mode", 1, 255),
    (driver.ShmAttachRequest, "require_hugepages", 1, 255),
    (driver.ShmAttachResponse, "lease_id", 8, 0xFFFFFFFFFFFFFFFF),
    (driver.ShmAttachResponse, "lease_expiry_timestamp_ns", 8, 0xFFFFFFFFFFFFFFFF),
    (driver.ShmAttachResponse, "stream_id", 4, 0xFFFFFFFF),
    (driver.ShmAttachResponse, "epoch", 8, 0xFFFFFFFFFFFFFFFF),
    (driver.ShmAttachResponse, "layout_version", 4, 0xFFFFFFFF),
    (driver.ShmAttachResponse, "header_nslots", 4, 0xFFFFFFFF),
    (driver.ShmAttachResponse, "header_slot_bytes", 2, 0xFFFF),
    (driver.ShmAttachResponse, "max_dims", 1, 0xFF),
    (discovery.DiscoveryRequest, "stream_id", 4, 0xFFFFFFFF),
    (discovery.DiscoveryRequest, "producer_id", 4, 0xFFFFFFFF),
    (discovery.DiscoveryRequest, "data_source_id", 8, 0xFFFFFFFFFFFFFFFF),
]
every_null = pytest.mark.parametrize(("message_class", "field", "size", "null"), NULLS, ids=lambda value: getattr(value, "__name__", None))


def test_the_table_of_nulls_has_every_optional_field() -> None:
    listed = {(message_class, field) for message_class, field, _, _ in NULLS}
    assert listed == {
        (each, field) for each in decoders().values() if each is not control.SlotHeader for field in fields_of(each, is_optional)
    }


@every_null
@pytest.mark.requirement("W-10.1-1")
@pytest.mark.requirement("D-4.2-8")
@pytest.mark.requirement("D-4.2-11")
@pytest.mark.requirement("S-5.0-2")
def test_an_absent_value_is_written_as_the_null_of_its_field(message_class: Any, field: str, size: int, null: int) -> None:
    data = encode(dataclasses.replace(SAMPLES[message_class], **{field: None}))
    place = place_of(message_class, field)
    assert data[place : place + size] == null.to_bytes(size, "little")


@every_null
@pytest.mark.requirement("W-10.1-2")
def test_the_null_of_a_field_is_read_as_absent(message_class: Any, field: str, size: int, null: int) -> None:
    data = bytearray(encode(SAMPLES[message_class]))
    place = place_of(message_class, field)
    data[place : place + size] = null.to_bytes(size, "little")
    assert getattr(decode_with(message_class, bytes(data)), field) is None


@every_null
def test_a_value_that_would_be_read_as_absent_is_refused_when_written(message_class: Any, field: str, size: int, null: int) -> None:
    if field == "trace_id":
        null = 0xFFFFFFFFFFFFFFFF
    with pytest.raises(ProtocolError) as caught:
        encode(dataclasses.replace(SAMPLES[message_class], **{field: null}))
    assert caught.value.field == field


@pytest.mark.requirement("W-10.2.1-16")
def test_a_trace_id_of_zero_is_no_trace_id() -> None:
    for absent in (None, 0):
        data = control.FrameDescriptor(1, 2, 3, None, None, absent).encode()
        assert data[8 + 32 :] == bytes(8)
        assert control.FrameDescriptor.decode(data).trace_id is None
    assert control.FrameDescriptor.decode(data[:-8] + b"\xff" * 8).trace_id is None


@pytest.mark.parametrize("message_class", decoders().values(), ids=lambda each: each.__name__)
@pytest.mark.requirement("W-10.1-3")
@pytest.mark.requirement("S-5.0-3")
def test_absent_var_data_is_written_with_length_zero(message_class: Any) -> None:
    names = fields_of(message_class, lambda hint: hint in (str, bytes))
    for name in names:
        empty = "" if typing.get_type_hints(message_class)[name] is str else b""
        one = encode(dataclasses.replace(SAMPLES[message_class], **{name: empty}))
        other = encode(dataclasses.replace(SAMPLES[message_class], **{name: empty + type(empty)("x") if empty == "" else b"x"}))
        assert len(other) == len(one) + 1
        difference = next(place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
        assert one[difference : difference + 4] == bytes(4)


# --- codes -----------------------------------------------------------------------------------------------------------

ENUM_FIELDS = [(each, field) for each in decoders().values() for field in fields_of(each, lambda _: True) if enum_of(each, field)]


@pytest.mark.parametrize(("message_class", "field"), ENUM_FIELDS, ids=lambda value: getattr(value, "__name__", None))
@pytest.mark.requirement("W-15.8-1")
def test_an_unknown_code_is_refused_and_never_misread(message_class: Any, field: str) -> None:
    enum = enum_of(message_class, field)
    assert enum is not None
    data, place = bytearray(encode(SAMPLES[message_class])), place_of(message_class, field)
    hugepages = {2} if field == "require_hugepages" else set()
    absent = {255} if is_optional(typing.get_type_hints(message_class)[field]) else set()
    for code in set(range(256)) - {int(member) for member in enum} - hugepages - absent:
        data[place] = code
        with pytest.raises(ProtocolError) as caught:
            decode_with(message_class, bytes(data))
        assert caught.value.field == field
        with pytest.raises(ProtocolError):
            encode(dataclasses.replace(SAMPLES[message_class], **{field: code}))


def test_true_as_one_implementation_writes_it_for_hugepages_is_read_and_written_as_one() -> None:
    data = bytearray(SAMPLES[driver.ShmAttachRequest].encode())
    data[8 + 23] = 2
    request = driver.ShmAttachRequest.decode(data)
    assert request.require_hugepages is driver.Bool.TRUE
    assert request.encode()[8 + 23] == 1


@pytest.mark.requirement("W-10.1.1-2")
@pytest.mark.parametrize(("code", "is_allowed"), [(0, False), (1, True), (2, True), (3, False), (255, False)])
def test_an_announce_has_one_of_two_clocks(code: int, is_allowed: bool) -> None:
    data = bytearray(SAMPLES[control.ShmPoolAnnounce].encode())
    data[8 + 24] = code
    if is_allowed:
        assert control.ShmPoolAnnounce.decode(data).announce_clock_domain == code
    else:
        with pytest.raises(ProtocolError):
            control.ShmPoolAnnounce.decode(data)


REGISTRY = {
    control.Dtype: {
        "UNKNOWN": 0, "UINT8": 1, "INT8": 2, "UINT16": 3, "INT16": 4, "UINT32": 5, "INT32": 6, "UINT64": 7, "INT64": 8,
        "FLOAT32": 9, "FLOAT64": 10, "BOOLEAN": 11, "BYTES": 13, "BIT": 14,
    },
    control.MajorOrder: {"UNKNOWN": 0, "ROW": 1, "COLUMN": 2},
    control.ProgressUnit: {"NONE": 0, "ROWS": 1, "COLUMNS": 2},
    control.RegionType: {"HEADER_RING": 1, "PAYLOAD_POOL": 2},
    control.ClockDomain: {"MONOTONIC": 1, "REALTIME_SYNCED": 2},
    control.Mode: {"STREAM": 1, "RATE_LIMITED": 2},
    control.FrameProgressState: {"UNKNOWN": 0, "STARTED": 1, "PROGRESS": 2, "COMPLETE": 3},
    control.Bool: {"FALSE": 0, "TRUE": 1},
    control.ResponseCode: {"OK": 0, "UNSUPPORTED": 1, "INVALID_PARAMS": 2, "REJECTED": 3, "INTERNAL_ERROR": 4},
    driver.Bool: {"FALSE": 0, "TRUE": 1},
    driver.ResponseCode: {"OK": 0, "UNSUPPORTED": 1, "INVALID_PARAMS": 2, "REJECTED": 3, "INTERNAL_ERROR": 4},
    driver.Role: {"PRODUCER": 1, "CONSUMER": 2},
    driver.PublishMode: {"REQUIRE_EXISTING": 1, "EXISTING_OR_CREATE": 2},
    driver.LeaseRevokeReason: {"DETACHED": 1, "EXPIRED": 2, "REVOKED": 3},
    driver.ShutdownReason: {"NORMAL": 0, "ADMIN": 1, "ERROR": 2},
    bridge.Bool: {"FALSE": 0, "TRUE": 1},
    discovery.DiscoveryStatus: {"OK": 1, "NOT_FOUND": 2, "ERROR": 3},
}  # fmt: skip


def test_the_registry_has_every_enumeration() -> None:
    enums = {
        value for module in MODULES.values() for value in vars(module).values() if isinstance(value, type) and issubclass(value, IntEnum)
    }
    assert enums - {IntEnum} == set(REGISTRY)


@pytest.mark.parametrize("enum", REGISTRY, ids=lambda enum: f"{enum.__module__.rsplit('.', 1)[1]}.{enum.__name__}")
@pytest.mark.requirement("W-15.8-2")
@pytest.mark.requirement("W-15.8-3")
def test_the_numbers_of_the_registry_are_fixed(enum: type[IntEnum]) -> None:
    assert {member.name: int(member) for member in enum} == REGISTRY[enum]


@pytest.mark.requirement("W-15.8-3")
def test_dtype_and_major_order_have_their_numbers_in_the_bytes() -> None:
    sample = SAMPLES[control.TensorHeader]
    for dtype in control.Dtype:
        for order in control.MajorOrder:
            data = dataclasses.replace(sample, dtype=dtype, major_order=order).encode()
            assert struct.unpack_from("<hh", data, 8) == (REGISTRY[control.Dtype][dtype.name], REGISTRY[control.MajorOrder][order.name])


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "length"), [(49, 257), (49, 2**32 - 1), (53, 2**30), (53, 2**30 + 1), (53, 2**32 - 1)])
def test_a_chunk_that_claims_more_than_it_may_is_refused_without_taking_memory_for_it(place: int, length: int) -> None:
    chunk = bridge.BridgeFrameChunk(1, 2, 3, 1, 2, 64, 600, 664, bridge.Bool.FALSE, b"", bytes(600)).encode()
    data = chunk[:place] + struct.pack("<I", length) + chunk[place + 4 :]
    tracemalloc.start()
    with pytest.raises(ProtocolError) as caught:
        bridge.BridgeFrameChunk.decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.rule == "E104"
    assert peak < 50_000


def test_a_header_in_a_chunk_has_at_most_256_bytes_even_where_more_are_there() -> None:
    chunk = bridge.BridgeFrameChunk(1, 2, 3, 0, 1, 0, 0, 0, bridge.Bool.TRUE, bytes(256), b"")
    data = chunk.encode()
    assert bridge.BridgeFrameChunk.decode(data) == chunk
    with pytest.raises(ProtocolError) as caught:
        bridge.BridgeFrameChunk.decode(data[:49] + struct.pack("<I", 257) + bytes(257) + data[49 + 4 + 256 :])
    assert caught.value.field == "header_bytes"
    with pytest.raises(ProtocolError):
        dataclasses.replace(chunk, header_bytes=bytes(257)).encode()


@pytest.mark.parametrize(
    ("field", "maximum"), [("chunk_index", 65535), ("chunk_count", 65535), ("chunk_length", 65535), ("payload_length", 2**30)]
)
def test_numbers_of_a_chunk_are_bounded_both_ways(field: str, maximum: int) -> None:
    sample = SAMPLES[bridge.BridgeFrameChunk]
    at_most = dataclasses.replace(sample, **{field: maximum})
    assert bridge.BridgeFrameChunk.decode(at_most.encode()) == at_most
    with pytest.raises(ProtocolError):
        dataclasses.replace(sample, **{field: maximum + 1}).encode()
    data = bytearray(sample.encode())
    struct.pack_into("<I", data, 8 + bridge.BridgeFrameChunk.OFFSETS[field], maximum + 1)
    with pytest.raises(ProtocolError) as caught:
        bridge.BridgeFrameChunk.decode(data)
    assert (caught.value.field, caught.value.rule) == (field, "E104")


@pytest.mark.requirement("S-10-1")
def test_a_result_may_be_of_another_layout_version_than_discovery_is() -> None:
    sample = next(
        build(each.message_class, each.fields) for each in ANSWERS if each.message == "DiscoveryResponse" and each.fields["results"]
    )
    results = tuple(dataclasses.replace(result, layout_version=2) for result in sample.results)
    response = discovery.DiscoveryResponse.decode(dataclasses.replace(sample, results=results).encode())
    assert [result.layout_version for result in response.results] == [2] * len(results)
    assert discovery.SCHEMA_VERSION == discovery.discovery_schema_version == 1
