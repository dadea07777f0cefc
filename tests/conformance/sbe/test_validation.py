"""What is refused of a message that is well encoded: an announce or an attach response that describes no valid regions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tensor_pool.errors import ProtocolError
from tensor_pool.sbe.control import ClockDomain, PayloadPool, ShmPoolAnnounce
from tensor_pool.sbe.driver import PayloadPool as AttachedPool
from tensor_pool.sbe.driver import ResponseCode, ShmAttachResponse
from tensor_pool.shm.layout import layout_from_announce, layout_from_response

HEADER_URI = "shm:file?path=/dev/shm/base/header.ring"
POOL_URI = "shm:file?path=/dev/shm/base/1.pool"
ANNOUNCE = ShmPoolAnnounce(10000, 7, 5, 1000, ClockDomain.MONOTONIC, 1, 8, 256, (PayloadPool(1, 8, 4096, POOL_URI),), HEADER_URI)
RESPONSE = ShmAttachResponse(
    1, ResponseCode.OK, 3, 10**9, 10000, 5, 1, 8, 256, 8, (AttachedPool(1, 8, 4096, POOL_URI),), HEADER_URI, ""
)  # fmt: skip


def refusal_of(announce: ShmPoolAnnounce) -> ProtocolError:
    """Of the announce as it comes from the wire."""
    with pytest.raises(ProtocolError) as caught:
        layout_from_announce(ShmPoolAnnounce.decode(announce.encode()))
    return caught.value


def with_pool(**changes: Any) -> ShmPoolAnnounce:
    return dataclasses.replace(ANNOUNCE, payload_pools=(dataclasses.replace(ANNOUNCE.payload_pools[0], **changes),))


def test_a_valid_announce_and_a_valid_response_describe_the_same_regions() -> None:
    assert layout_from_announce(ANNOUNCE) == layout_from_response(RESPONSE)


@pytest.mark.requirement("W-10.1.1-3")
@pytest.mark.parametrize("slot_bytes", [0, 128, 255, 257, 512, 65535])
def test_slots_of_another_size_than_256_bytes_are_refused(slot_bytes: int) -> None:
    refusal = refusal_of(dataclasses.replace(ANNOUNCE, header_slot_bytes=slot_bytes))
    assert (refusal.field, refusal.rule) == ("header_slot_bytes", "W-10.1.1-3")
    assert ANNOUNCE.encode()[8 + 33 : 8 + 35] == (256).to_bytes(2, "little")


@pytest.mark.requirement("W-7.1-8")
@pytest.mark.requirement("W-15.20-1")
@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_layout_version_is_refused_although_the_message_is_understood(version: int) -> None:
    announce = ShmPoolAnnounce.decode(dataclasses.replace(ANNOUNCE, layout_version=version).encode())
    assert announce.layout_version == version
    assert refusal_of(announce).field == "layout_version"


@pytest.mark.requirement("W-12-14-1")
@pytest.mark.parametrize("nslots", [0, 3, 6, 7, 9, 2**31 - 1, 2**32 - 1])
def test_a_number_of_slots_that_is_no_power_of_two_is_refused(nslots: int) -> None:
    announce = dataclasses.replace(with_pool(pool_nslots=nslots), header_nslots=nslots)
    assert refusal_of(announce).rule == "W-12-14-1"


@pytest.mark.requirement("W-15.5-1")
@pytest.mark.parametrize("nslots", [0, 4, 16])
def test_a_pool_with_another_number_of_slots_than_the_ring_is_refused(nslots: int) -> None:
    assert refusal_of(with_pool(pool_nslots=nslots)).rule == "W-15.5-1"
    pool = dataclasses.replace(RESPONSE.payload_pools[0], pool_nslots=nslots)
    with pytest.raises(ProtocolError):
        layout_from_response(dataclasses.replace(RESPONSE, payload_pools=(pool,)))


@pytest.mark.requirement("W-15.22-12")
@pytest.mark.parametrize("stride", [0, 1, 32, 63, 65, 96, 192, 4095, 4097, 3 * 2**20, 2**31 + 64, 2**32 - 1])
def test_a_stride_that_is_no_power_of_two_times_64_is_refused(stride: int) -> None:
    assert refusal_of(with_pool(stride_bytes=stride)).rule == "W-15.22-12"


@pytest.mark.requirement("W-15.22-11")
@pytest.mark.requirement("W-15.22-13")
@pytest.mark.parametrize("stride", [1 << shift for shift in range(6, 32)])
def test_every_other_stride_is_taken_as_announced_whatever_the_page_size(stride: int) -> None:
    layout = layout_from_announce(ShmPoolAnnounce.decode(with_pool(stride_bytes=stride).encode()))
    assert layout.pools[0].stride_bytes == stride


@pytest.mark.parametrize("pool_id", [0, 65535])
def test_reserved_pool_ids_are_refused(pool_id: int) -> None:
    assert refusal_of(with_pool(pool_id=pool_id)).field == "pool_id"


def test_an_announce_without_pools_or_with_one_pool_twice_is_refused() -> None:
    assert refusal_of(dataclasses.replace(ANNOUNCE, payload_pools=())).field == "payload_pools"
    assert refusal_of(dataclasses.replace(ANNOUNCE, payload_pools=ANNOUNCE.payload_pools * 2)).field == "pool_id"


def test_several_pools_of_different_strides_are_one_layout() -> None:
    pools = (PayloadPool(1, 8, 64, POOL_URI), PayloadPool(2, 8, 1 << 20, POOL_URI), PayloadPool(65534, 8, 4096, POOL_URI))
    layout = layout_from_announce(ShmPoolAnnounce.decode(dataclasses.replace(ANNOUNCE, payload_pools=pools).encode()))
    assert [(pool.pool_id, pool.stride_bytes) for pool in layout.pools] == [(1, 64), (2, 1 << 20), (65534, 4096)]
    assert layout.largest_stride_bytes == 1 << 20


@pytest.mark.parametrize("field", ["lease_id", "stream_id", "epoch", "layout_version", "header_nslots", "header_slot_bytes", "max_dims"])
def test_a_success_without_a_required_field_is_refused(field: str) -> None:
    absent: dict[str, Any] = {field: None}
    response = ShmAttachResponse.decode(dataclasses.replace(RESPONSE, **absent).encode())
    with pytest.raises(ProtocolError) as caught:
        layout_from_response(response)
    assert (caught.value.field, caught.value.rule) == (field, "D-4.2-12")


def test_a_success_without_a_region_is_refused() -> None:
    nameless = dataclasses.replace(RESPONSE.payload_pools[0], region_uri="")
    for response in (
        dataclasses.replace(RESPONSE, header_region_uri=""),
        dataclasses.replace(RESPONSE, payload_pools=(nameless,)),
        dataclasses.replace(RESPONSE, payload_pools=()),
    ):
        with pytest.raises(ProtocolError):
            layout_from_response(ShmAttachResponse.decode(response.encode()))
