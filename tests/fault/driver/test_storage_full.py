"""A full shared memory ends in words, never in a signal, and leaves nothing behind (F12, promise P7)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensor_pool.driver.config import DriverSettings, PolicySection, PoolSection, ProfileSection, StreamSection
from tensor_pool.errors import StorageSpaceError
from tensor_pool.sbe.driver import ResponseCode, Role, ShmAttachRequest, ShmAttachResponse
from tensor_pool.shm.native_regions import NativeRegionFactory
from tensor_pool.testing.driver import InvokedDriver

MIB = 1 << 20


@pytest.fixture(params=[4, 16, 50])
def tmpfs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A small tmpfs of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a tmpfs")
    directory = tmp_path / "tmpfs"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={request.param}m,mode=0700", "tmpfs", directory], check=False)
    if mounted.returncode != 0:
        pytest.skip("this container may not mount a tmpfs")
    try:
        yield directory, request.param * MIB
    finally:
        subprocess.run(["umount", directory], check=True)


def settings(pool_bytes: int) -> DriverSettings:
    """One stream whose pool is about that large."""
    profile = ProfileSection(header_nslots=8, payload_pools=(PoolSection(pool_id=1, stride_bytes=1 << (pool_bytes // 8).bit_length() - 1),))
    return DriverSettings(
        policies=PolicySection(max_stream_bytes=1 << 40),
        profiles={"large": profile},
        streams={"camera": StreamSection(stream_id=10, profile="large")},
    )


def attach(driver: InvokedDriver, client_id: int, role: Role) -> ShmAttachResponse:
    said = driver.send(ShmAttachRequest(client_id, 10, client_id, role, 1, 8, None, None))
    (response,) = [message for message in said if isinstance(message, ShmAttachResponse)]
    return response


def region_files(driver: InvokedDriver) -> list[Path]:
    return [path for path in driver.root.rglob("*") if path.is_file()]


@pytest.mark.requirement("D-4.6-5")
def test_a_producer_whose_pool_does_not_fit_is_told_need_and_have(tmpfs: tuple[Path, int], tmp_path: Path) -> None:
    base, size_bytes = tmpfs
    with InvokedDriver(base, tmp_path / "state", settings(2 * size_bytes), region_factory=NativeRegionFactory()) as driver:
        response = attach(driver, 1, Role.PRODUCER)
        assert response.code is ResponseCode.INTERNAL_ERROR
        assert any(character.isdigit() for character in response.error_message)
        assert region_files(driver) == []
        # nobody writes into an epoch without a producer: its pool takes no space
        assert attach(driver, 2, Role.CONSUMER).code is ResponseCode.OK
        assert attach(driver, 3, Role.PRODUCER).code is ResponseCode.INTERNAL_ERROR
        assert attach(driver, 4, Role.CONSUMER).code is ResponseCode.OK


def test_a_producer_that_fits_can_write_every_byte_while_another_process_fills_the_rest(tmpfs: tuple[Path, int], tmp_path: Path) -> None:
    base, size_bytes = tmpfs
    with InvokedDriver(base, tmp_path / "state", settings(size_bytes // 2), region_factory=NativeRegionFactory()) as driver:
        response = attach(driver, 1, Role.PRODUCER)
        assert response.code is ResponseCode.OK
        filler = subprocess.run(["dd", "if=/dev/zero", f"of={base}/filler", "bs=64k"], check=False, capture_output=True)
        assert filler.returncode != 0
        path = response.payload_pools[0].region_uri.removeprefix("shm:file?path=")
        # in a process of its own, so that a signal would be its end and not the test's
        program = f"import mmap; f = open({path!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); m[64:] = b'x' * (len(m) - 64)"
        assert subprocess.run(["python3", "-c", program], check=False).returncode == 0
        # the next epoch has no room: the one before goes, which nobody needs any more
        driver.ask("revoke", lease_id=response.lease_id)
        driver.run()
        driver.said()
        second = attach(driver, 2, Role.PRODUCER)
        (base / "filler").unlink()
        third = second if second.code is ResponseCode.OK else attach(driver, 3, Role.PRODUCER)
        assert third.code is ResponseCode.OK
    assert [path for path in base.rglob("*") if path.is_file()] == []


def test_provisioning_more_than_there_is_names_need_have_and_a_way_out(tmpfs: tuple[Path, int], tmp_path: Path) -> None:
    base, size_bytes = tmpfs
    with InvokedDriver(base, tmp_path / "state", settings(MIB), region_factory=NativeRegionFactory()) as driver:
        with pytest.raises(StorageSpaceError) as caught:
            driver.ask("provision", stream_id=20, slots=8, stride_bytes=1 << size_bytes.bit_length())
        assert caught.value.need_bytes > caught.value.have_bytes >= size_bytes // 2
        assert "remount" in caught.value.hint
        assert driver.ask("provision", stream_id=20, slots=8, stride_bytes=64)["stream"]["stream_id"] == 20


def test_space_of_past_epochs_is_set_free_before_provisioning_is_refused(tmpfs: tuple[Path, int], tmp_path: Path) -> None:
    base, size_bytes = tmpfs
    configured = settings(size_bytes * 4 // 5)
    with InvokedDriver(base, tmp_path / "state", configured, region_factory=NativeRegionFactory()) as driver:
        first: Any = attach(driver, 1, Role.PRODUCER)
        driver.ask("revoke", lease_id=first.lease_id)
        driver.run()
        sizes = configured.profiles["large"].sizes
        assert driver.place.free_bytes() < sizes.total_bytes
        driver.ask("provision", stream_id=20, slots=sizes.nslots, stride_bytes=sizes.pools[0].stride_bytes)
        assert driver.place.free_bytes() >= sizes.total_bytes


@pytest.mark.requirement("D-4.6-5")
def test_a_base_directory_that_became_read_only_is_an_internal_error(tmpfs: tuple[Path, int], tmp_path: Path) -> None:
    base, _ = tmpfs
    with InvokedDriver(base, tmp_path / "state", settings(MIB), region_factory=NativeRegionFactory()) as driver:
        subprocess.run(["mount", "-o", "remount,ro", base], check=True)
        try:
            response = attach(driver, 1, Role.PRODUCER)
        finally:
            subprocess.run(["mount", "-o", "remount,rw", base], check=True)
        assert response.code is ResponseCode.INTERNAL_ERROR
        assert "ead-only" in response.error_message
        assert attach(driver, 2, Role.PRODUCER).code is ResponseCode.OK
