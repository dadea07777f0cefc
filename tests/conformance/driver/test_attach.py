"""Attach requests in bytes, and what comes back (driver 4.2, 4.3, 4.6, 4.8, 5)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from tensor_pool.sbe.control import ShmPoolAnnounce
from tensor_pool.sbe.driver import Bool, PublishMode, ResponseCode, Role, ShmAttachRequest, ShmAttachResponse, ShmLeaseKeepalive
from tensor_pool.testing.driver import InvokedDriver, PlainFileRegionFactory
from tensor_pool.uri import RegionUri

REQUEST = ShmAttachRequest(
    correlation_id=-7,
    stream_id=10,
    client_id=501,
    role=Role.CONSUMER,
    expected_layout_version=0,
    max_dims=0,
    publish_mode=PublishMode.REQUIRE_EXISTING,
    require_hugepages=None,
)
RAW = Struct("<HHHHqIIBIBBB")


def raw_request(
    *, block_length: int = 24, version: int = 1, role: int = 2, max_dims: int = 0, mode: int = 1, hugepages: int = 255
) -> bytes:
    return RAW.pack(block_length, 1, 901, version, -7, 10, 501, role, 0, max_dims, mode, hugepages)


def only_response(said: list[Any]) -> ShmAttachResponse:
    (response,) = [message for message in said if isinstance(message, ShmAttachResponse)]
    return response


def attach(driver: InvokedDriver, **changes: Any) -> ShmAttachResponse:
    return only_response(driver.send(replace(REQUEST, **changes)))


def assert_refused(driver: InvokedDriver, request: ShmAttachRequest | bytes, code: ResponseCode, counter: str) -> str:
    before = driver.agent.counters.snapshot()
    response = only_response(driver.send(request))
    after = driver.agent.counters.snapshot()
    assert response.code is code
    assert response.correlation_id == -7
    assert response.error_message
    assert {name for name in after if after[name] != before[name] and name.startswith("attach_")} == {counter}
    assert after[counter] == before[counter] + 1
    return response.error_message


@pytest.mark.requirement("D-4.2-2")
@pytest.mark.requirement("D-4.2-5")
@pytest.mark.requirement("D-4.2-9")
@pytest.mark.requirement("D-4.6-1")
@pytest.mark.parametrize("role", Role)
def test_success_fills_every_field_and_the_lease_is_accepted_by_a_keepalive(driver: InvokedDriver, role: Role) -> None:
    response = attach(driver, role=role)
    assert response.code is ResponseCode.OK
    fields = {name: getattr(response, name) for name in ShmAttachResponse.OFFSETS}
    assert None not in fields.values()
    assert (response.stream_id, response.layout_version, response.header_nslots, response.header_slot_bytes) == (10, 1, 4, 256)
    assert [(pool.pool_id, pool.stride_bytes) for pool in response.payload_pools] == [(1, 64), (7, 4096)]
    assert response.header_region_uri.startswith("shm:file?path=/")
    assert all(pool.region_uri.startswith("shm:file?path=/") for pool in response.payload_pools)
    driver.send(ShmLeaseKeepalive(response.lease_id, 10, 501, role, 1))
    assert driver.agent.counters.keepalives_accepted == 1


@pytest.mark.requirement("D-4.3-10")
def test_every_pool_has_as_many_slots_as_the_header_ring(driver: InvokedDriver) -> None:
    response = attach(driver)
    assert {pool.pool_nslots for pool in response.payload_pools} == {response.header_nslots}


@pytest.mark.requirement("W-7.1-1")
@pytest.mark.requirement("W-7.1-6")
@pytest.mark.requirement("D-3-4")
@pytest.mark.requirement("W-15.22-11")
@pytest.mark.requirement("W-7.1-10")
@pytest.mark.requirement("W-7.1-11")
@pytest.mark.requirement("W-15.21a.3-1")
@pytest.mark.requirement("W-15.21a.3-5")
@pytest.mark.requirement("W-15.21a.4-1")
@pytest.mark.requirement("D-14-1")
def test_the_files_say_what_the_response_says(driver: InvokedDriver) -> None:
    response = attach(driver, role=Role.PRODUCER)
    directory = driver.root / "10" / str(response.epoch)
    assert driver.root.parent.name.startswith("tensorpool-")
    assert sorted(path.name for path in directory.iterdir()) == ["1.pool", "7.pool", "header.ring"]
    assert RegionUri.parse(response.header_region_uri).path == str(directory / "header.ring")
    superblock = Struct("<QIQIhHIIIQQQ")
    expected = [(directory / "header.ring", 1, 0, 256, 0, 64 + 4 * 256)]
    for pool in response.payload_pools:
        path = directory / f"{pool.pool_id}.pool"
        assert RegionUri.parse(pool.region_uri).path == str(path)
        expected.append((path, 2, pool.pool_id, pool.stride_bytes, pool.stride_bytes, 64 + 4 * pool.stride_bytes))
    for path, kind, pool_id, slot_bytes, stride_bytes, length in expected:
        content = path.read_bytes()
        assert len(content) == length
        assert content[:8] == bytes.fromhex("314d48534c504f54")
        found = superblock.unpack_from(content)
        assert found[1:9] == (1, response.epoch, 10, kind, pool_id, 4, slot_bytes, stride_bytes)
        assert found[9] == os.getpid()


@pytest.mark.requirement("D-4.2-1")
def test_each_request_gets_one_response_with_its_correlation_id(driver: InvokedDriver) -> None:
    numbers = (1, 2**63 - 1, -(2**63), 5)
    requests = [replace(REQUEST, correlation_id=number, client_id=index + 1) for index, number in enumerate(numbers)]
    responses = [message for message in driver.send(*requests) if isinstance(message, ShmAttachResponse)]
    assert [response.correlation_id for response in responses] == [1, 2**63 - 1, -(2**63), 5]


@pytest.mark.requirement("D-4.2-8")
@pytest.mark.requirement("D-4.2-10")
@pytest.mark.requirement("D-4.2-6")
def test_a_refusal_is_null_but_for_correlation_id_code_and_words(driver: InvokedDriver) -> None:
    driver.link.deliver(replace(REQUEST, stream_id=99).encode())
    driver.run()
    (data,) = driver.link.said
    assert data[:8] == bytes.fromhex("3300020085030100")
    assert data[8:16] == (-7).to_bytes(8, "little", signed=True)
    assert data[16:20] == (3).to_bytes(4, "little")
    assert data[20:59] == b"\xff" * 39
    assert data[59:67] == bytes.fromhex("0a00000000000000")


@pytest.mark.requirement("D-4.2-4")
@pytest.mark.requirement("D-4.3-6")
@pytest.mark.requirement("D-4.2-7")
@pytest.mark.parametrize("mode", [PublishMode.REQUIRE_EXISTING, None])
def test_an_unknown_stream_is_refused_without_a_trace(driver: InvokedDriver, mode: PublishMode | None) -> None:
    request = replace(REQUEST, stream_id=99, publish_mode=mode)
    words = assert_refused(driver, request, ResponseCode.REJECTED, "attach_requests_rejected")
    assert "99" in words
    assert not driver.root.exists()


@pytest.mark.requirement("D-4.2-3")
@pytest.mark.requirement("D-4.3-7")
def test_a_stream_is_made_on_demand_with_the_requested_id(driver: InvokedDriver) -> None:
    response = attach(driver, stream_id=99, publish_mode=PublishMode.EXISTING_OR_CREATE)
    assert (response.code, response.stream_id) == (ResponseCode.OK, 99)
    assert (driver.root / "99" / str(response.epoch) / "header.ring").is_file()


def test_stream_id_zero_is_given_an_id_of_the_range_and_its_repetition_the_same(driver: InvokedDriver) -> None:
    request = replace(REQUEST, stream_id=0, publish_mode=PublishMode.EXISTING_OR_CREATE)
    first = only_response(driver.send(request))
    assert (first.code, first.stream_id) == (ResponseCode.OK, 20_000)
    assert only_response(driver.send(request)).stream_id == 20_000
    assert attach(driver, stream_id=0, client_id=2, publish_mode=PublishMode.EXISTING_OR_CREATE).stream_id == 20_001


@pytest.mark.parametrize("policies", [{"allow_dynamic_streams": False}, {"default_profile": ""}, {"max_streams": 2}])
def test_policy_refuses_streams_on_demand(make_driver: Any, policies: dict[str, Any]) -> None:
    driver = make_driver(**policies)
    request = replace(REQUEST, stream_id=99, publish_mode=PublishMode.EXISTING_OR_CREATE)
    words = assert_refused(driver, request, ResponseCode.REJECTED, "attach_requests_rejected")
    assert "policies." in words


@pytest.mark.requirement("D-4.3-1")
@pytest.mark.requirement("D-4.6-4")
def test_another_layout_version_is_rejected(driver: InvokedDriver) -> None:
    assert_refused(driver, replace(REQUEST, expected_layout_version=99), ResponseCode.REJECTED, "attach_requests_rejected")
    assert driver.ask("leases") == {"leases": []}


@pytest.mark.requirement("D-4.3-2")
def test_no_expected_layout_version_returns_the_configured_one(driver: InvokedDriver) -> None:
    assert attach(driver, expected_layout_version=0).layout_version == 1


@pytest.mark.requirement("D-4.3-3")
@pytest.mark.requirement("D-4.6-3")
def test_more_dimensions_than_configured_are_invalid(driver: InvokedDriver) -> None:
    assert_refused(driver, replace(REQUEST, max_dims=9), ResponseCode.INVALID_PARAMS, "attach_requests_invalid")
    assert driver.ask("leases") == {"leases": []}


@pytest.mark.requirement("D-4.3-4")
@pytest.mark.requirement("D-4.3-5")
@pytest.mark.parametrize("max_dims", [0, 4, 8])
def test_fewer_dimensions_are_accepted_and_the_configured_number_returned(driver: InvokedDriver, max_dims: int) -> None:
    response = attach(driver, max_dims=max_dims)
    assert (response.code, response.max_dims) == (ResponseCode.OK, 8)


@pytest.mark.requirement("D-4.3-8")
@pytest.mark.requirement("D-9-4")
@pytest.mark.parametrize("code", [1, 2])
def test_hugepages_that_cannot_be_had_are_rejected(driver: InvokedDriver, code: int) -> None:
    words = assert_refused(driver, raw_request(hugepages=code), ResponseCode.REJECTED, "attach_requests_rejected")
    assert "hugetlbfs" in words


@pytest.mark.requirement("D-4.3-9")
@pytest.mark.parametrize("hugepages", [Bool.FALSE, None])
def test_hugepages_not_required_are_optional(driver: InvokedDriver, hugepages: Bool | None) -> None:
    assert attach(driver, require_hugepages=hugepages).code is ResponseCode.OK


@pytest.mark.requirement("D-4.6-2")
@pytest.mark.parametrize(
    "request_bytes",
    [raw_request(version=2), raw_request(version=0), raw_request(block_length=28, version=2) + bytes(4), raw_request(mode=7)],
)
def test_what_this_driver_does_not_implement_is_unsupported(driver: InvokedDriver, request_bytes: bytes) -> None:
    assert_refused(driver, request_bytes, ResponseCode.UNSUPPORTED, "attach_requests_unsupported")


@pytest.mark.requirement("D-4.6-3")
@pytest.mark.parametrize(
    "request_bytes",
    [
        raw_request(role=9),
        raw_request(max_dims=9),
        raw_request(hugepages=3),
        replace(REQUEST, client_id=0).encode(),
        replace(REQUEST, stream_id=0xFFFFFFFF).encode(),
    ],
)
def test_malformed_values_are_invalid_params(driver: InvokedDriver, request_bytes: bytes) -> None:
    assert_refused(driver, request_bytes, ResponseCode.INVALID_PARAMS, "attach_requests_invalid")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"\x18\x00\x01",
        raw_request()[:31],
        raw_request() + b"\0",
        raw_request(block_length=23),
        raw_request(block_length=25) + b"\0",
        raw_request(version=2)[:31],
        raw_request(block_length=40, version=2),
        b"\x18\x00\x07\x00\x85\x03\x01\x00" + bytes(24),
        b"\x18\x00\x01\x00\x86\x03\x01\x00" + bytes(24),
    ],
)
def test_what_cannot_be_trusted_is_dropped_and_counted_once(driver: InvokedDriver, request_bytes: bytes) -> None:
    before = driver.agent.counters.snapshot()
    assert [message for message in driver.send(request_bytes) if not isinstance(message, ShmPoolAnnounce)] == []
    after = driver.agent.counters.snapshot()
    assert {name: after[name] - before[name] for name in after if name != "longest_cycle_ns" and after[name] != before[name]} == {
        "messages_malformed": 1
    }


@pytest.mark.requirement("D-4.6-5")
def test_files_that_cannot_be_made_are_an_internal_error_that_says_why(make_driver: Any) -> None:
    factory = PlainFileRegionFactory(budget_bytes=1000)
    driver = make_driver(region_factory=factory)
    request = replace(REQUEST, role=Role.PRODUCER)
    words = assert_refused(driver, request, ResponseCode.INTERNAL_ERROR, "attach_requests_failed")
    assert "1000" in words
    assert list(driver.root.rglob("*.pool")) == []
    assert list(driver.root.rglob("header.ring")) == []
    factory.budget_bytes = 1 << 30
    assert attach(driver, role=Role.PRODUCER).code is ResponseCode.OK


@pytest.mark.requirement("D-9-2")
def test_a_linked_stream_directory_is_refused_and_nothing_is_made_behind_it(driver: InvokedDriver, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    driver.root.mkdir(parents=True)
    (driver.root / "10").symlink_to(outside)
    assert_refused(driver, REQUEST, ResponseCode.INTERNAL_ERROR, "attach_requests_failed")
    assert list(outside.iterdir()) == []


@pytest.mark.requirement("D-5-2")
@pytest.mark.requirement("D-5-1")
@pytest.mark.requirement("D-4.6-4")
def test_a_second_producer_is_rejected_and_the_first_stays(driver: InvokedDriver) -> None:
    first = attach(driver, role=Role.PRODUCER)
    second = replace(REQUEST, role=Role.PRODUCER, client_id=502)
    assert "producer" in assert_refused(driver, second, ResponseCode.REJECTED, "attach_requests_rejected")
    assert [(lease["lease_id"], lease["role"]) for lease in driver.ask("leases")["leases"]] == [(first.lease_id, "producer")]


@pytest.mark.requirement("D-5-1")
def test_of_two_producers_that_ask_together_one_gets_the_stream(driver: InvokedDriver) -> None:
    requests = [replace(REQUEST, role=Role.PRODUCER, client_id=client_id, correlation_id=client_id) for client_id in (1, 2, 3)]
    responses = {m.correlation_id: m.code for m in driver.send(*requests) if isinstance(m, ShmAttachResponse)}
    assert responses == {1: ResponseCode.OK, 2: ResponseCode.REJECTED, 3: ResponseCode.REJECTED}


@pytest.mark.requirement("D-5-3")
def test_many_consumers_attach_to_one_stream(driver: InvokedDriver) -> None:
    requests = [replace(REQUEST, client_id=client_id) for client_id in range(1, 51)]
    codes = [m.code for m in driver.send(*requests) if isinstance(m, ShmAttachResponse)]
    assert codes == [ResponseCode.OK] * 50


@pytest.mark.requirement("D-4.8-5")
@pytest.mark.requirement("D-4.6-4")
def test_a_client_id_with_a_lease_is_rejected_on_any_stream(driver: InvokedDriver) -> None:
    first = attach(driver)
    for stream_id in (10, 11):
        again = replace(REQUEST, stream_id=stream_id, correlation_id=-7, role=Role.PRODUCER)
        assert_refused(driver, again, ResponseCode.REJECTED, "attach_requests_rejected")
    assert [lease["lease_id"] for lease in driver.ask("leases")["leases"]] == [first.lease_id]


def test_a_client_id_whose_request_is_pending_is_rejected_too(driver: InvokedDriver) -> None:
    said = driver.send(REQUEST, replace(REQUEST, correlation_id=8))
    assert {m.correlation_id: m.code for m in said if isinstance(m, ShmAttachResponse)} == {
        -7: ResponseCode.OK,
        8: ResponseCode.REJECTED,
    }


def test_a_repeated_request_is_answered_with_the_same_lease(driver: InvokedDriver) -> None:
    first = attach(driver)
    assert attach(driver) == first
    assert driver.agent.counters.attach_requests_repeated == 1
    assert len(driver.ask("leases")["leases"]) == 1


def test_a_request_repeated_while_files_are_made_is_answered_once(driver: InvokedDriver) -> None:
    only_response(driver.send(REQUEST, REQUEST, REQUEST))
    assert driver.agent.counters.attach_requests_repeated == 2


@pytest.mark.requirement("D-4.1-1")
def test_two_streams_are_two_leases(driver: InvokedDriver) -> None:
    first, second = attach(driver), attach(driver, stream_id=11, client_id=502)
    assert first.lease_id != second.lease_id
    assert (first.stream_id, second.stream_id) == (10, 11)


def test_leases_have_a_limit_that_is_named(make_driver: Any) -> None:
    driver = make_driver(max_leases=2)
    assert [attach(driver, client_id=number).code for number in (1, 2)] == [ResponseCode.OK] * 2
    assert "max_leases" in assert_refused(driver, REQUEST, ResponseCode.REJECTED, "attach_requests_rejected")


@pytest.mark.requirement("D-4.1-2")
@pytest.mark.requirement("D-4.4-7")
def test_the_expiry_is_three_seconds_of_the_monotonic_clock_by_default(driver: InvokedDriver) -> None:
    assert attach(driver).lease_expiry_timestamp_ns == driver.clock.monotonic_ns() + 3_000_000_000


def test_only_an_owned_epoch_reserves_the_space_of_its_pools(make_driver: Any) -> None:
    factory = PlainFileRegionFactory()
    driver = make_driver(region_factory=factory)
    attach(driver)
    assert {os.path.basename(path): reserve for path, reserve in factory.reservations} == {
        "header.ring": True,
        "1.pool": False,
        "7.pool": False,
    }
    factory.reservations.clear()
    attach(driver, role=Role.PRODUCER, client_id=2)
    assert [reserve for _, reserve in factory.reservations] == [True, True, True]
