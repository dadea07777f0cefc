"""What an administrator may ask of a driver, and what is refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensor_pool.driver.config import DriverSettings, PoolSection, ProfileSection, StreamSection
from tensor_pool.errors import ConfigError, TensorPoolError
from tensor_pool.testing.driver import InvokedDriver

SIZES = {"slots": 4, "stride_bytes": 64}
SETTINGS = DriverSettings(
    profiles={"small": ProfileSection(header_nslots=4, payload_pools=(PoolSection(pool_id=1, stride_bytes=64),))},
    streams={"front": StreamSection(stream_id=10, profile="small")},
)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[InvokedDriver]:
    base = tmp_path / "shm"
    base.mkdir()
    with InvokedDriver(base, tmp_path / "state", SETTINGS) as driver:
        yield driver


def refusal(driver: InvokedDriver, operation: str, **arguments: Any) -> TensorPoolError:
    with pytest.raises(TensorPoolError) as caught:
        driver.ask(operation, **arguments)
    assert caught.value.hint
    return caught.value


def names(driver: InvokedDriver) -> dict[int, str]:
    return {stream["stream_id"]: stream["name"] for stream in driver.ask("streams")["streams"]}


@pytest.mark.parametrize(
    ("operation", "arguments", "key", "hint"),
    [
        ("provision", {"stream_id": 20, **SIZES, "bogus": 1}, "bogus", "its arguments: stream_id, slots, stride_bytes, name, tags"),
        ("provision", {"stream_id": 20, "slot": 4, "stride_bytes": 64}, "slot", "did you mean slots?"),
        ("revoke", {"lease_id": 1, "stream_id": 10}, "stream_id", "its arguments: lease_id"),
        ("status", {"verbose": True}, "verbose", "its arguments: none"),
        ("shutdown", {"force": True}, "force", "its arguments: none"),
        ("leases", {"x" * 200: 1}, "x" * 80, "its arguments: none"),
    ],
)
def test_an_argument_that_an_operation_does_not_have_is_refused(
    driver: InvokedDriver, operation: str, arguments: dict[str, Any], key: str, hint: str
) -> None:
    error = refusal(driver, operation, **arguments)
    assert isinstance(error, ConfigError)
    assert error.message.startswith(f"{operation} has no argument ")
    assert (error.key, error.hint) == (key, hint)
    assert len(error.message) < 160
    assert names(driver) == {10: "front"}
    assert not driver.agent.stop_requested.is_set()


@pytest.mark.parametrize("stream_id", [21, 0, 10_000])
def test_a_name_belongs_to_one_stream(driver: InvokedDriver, stream_id: int) -> None:
    driver.ask("provision", stream_id=20, **SIZES, name="camera-1")
    error = refusal(driver, "provision", stream_id=stream_id, **SIZES, name="camera-1")
    assert isinstance(error, ConfigError)
    assert (error.message, error.key) == ("stream 20 is called 'camera-1' already", "name")
    assert refusal(driver, "provision", stream_id=stream_id, **SIZES, name="front").message == "stream 10 is called 'front' already"
    assert names(driver) == {10: "front", 20: "camera-1"}


def test_a_stream_may_be_asked_for_again_by_its_name_and_many_have_none(driver: InvokedDriver) -> None:
    for name in ("camera-1", "camera-1", "", "camera-2"):
        driver.ask("provision", stream_id=20, **SIZES, name=name)
    for stream_id in (21, 22):
        driver.ask("provision", stream_id=stream_id, **SIZES)
    # a configured stream stays as it is, whatever it is called by who asks
    driver.ask("provision", stream_id=10, **SIZES, name="camera-2")
    assert names(driver) == {10: "front", 20: "camera-2", 21: "", 22: ""}
    assert "already" in refusal(driver, "provision", stream_id=21, **SIZES, name="camera-2").message


@pytest.mark.parametrize("name", ["10", "0", "007", "٣"])
def test_a_number_is_no_name(driver: InvokedDriver, name: str) -> None:
    error = refusal(driver, "provision", stream_id=20, **SIZES, name=name)
    assert isinstance(error, ConfigError)
    assert error.key == "name"
    assert "stream id" in error.hint


@pytest.mark.parametrize(
    ("lease_id", "words"), [(-1, "lease_id -1 is below 0"), (1.5, "lease_id 1.5 is not a whole number"), (True, "lease_id True is not")]
)
def test_what_is_wrong_with_a_number_is_what_is_said(driver: InvokedDriver, lease_id: object, words: str) -> None:
    assert refusal(driver, "revoke", lease_id=lease_id).message.startswith(words)
