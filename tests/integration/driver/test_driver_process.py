"""An SHM driver in its own process, over real Aeron and real shared memory."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tensor_pool import _native
from tensor_pool.client.admin import AdminClient
from tensor_pool.errors import AttachRejectedError, ConfigError, StorageSpaceError, TransportError
from tensor_pool.sbe.control import ShmPoolAnnounce, ShmRegionSuperblock
from tensor_pool.sbe.driver import (
    LeaseRevokeReason,
    ResponseCode,
    Role,
    ShmAttachResponse,
    ShmDriverShutdown,
    ShmLeaseRevoked,
    ShutdownReason,
)
from tensor_pool.shm.layout import layout_from_response
from tensor_pool.shm.mapping import MappedPools
from tensor_pool.testing.driver_process import attach_request
from tensor_pool.testing.failpoints import Failpoint
from tensor_pool.uri import RegionUri


def attach(world: Any, client_id: int, role: Role, stream_id: int = 10) -> ShmAttachResponse:
    response: ShmAttachResponse = world.endpoint.attach(attach_request(stream_id, client_id, role))
    return response


@pytest.mark.requirement("D-4.5-1")
@pytest.mark.requirement("D-3-1")
@pytest.mark.requirement("W-15.14-5")
@pytest.mark.requirement("W-15.21a.6-1")
def test_what_an_attach_response_says_can_be_mapped_and_is_true(world: Any) -> None:
    child = world.start_driver()
    response = attach(world, 5, Role.PRODUCER)
    layout = layout_from_response(response)
    assert layout.stream_id == 10
    base_dirs = _native.canonical_base_dirs([str(world.isolated.shm_base_dir)])
    with MappedPools.open(layout, base_dirs, writable=True, now_ns=time.monotonic_ns(), freshness_ns=300_000_000) as mapped:
        assert mapped.header.length == layout.header_bytes
        assert [(pool_id, stride_bytes) for pool_id, stride_bytes, _ in mapped.pools] == [(1, 4096)]
    path = Path(RegionUri.parse(response.header_region_uri).path)
    superblock = ShmRegionSuperblock.decode_body(path.read_bytes()[:64])
    assert (superblock.pid, superblock.epoch) == (child.pid, response.epoch)
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o660
        assert file.stat().st_blocks * 512 >= file.stat().st_size  # the space is taken already
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o2770


@pytest.mark.requirement("D-5-2")
def test_the_second_producer_of_another_process_is_rejected(world: Any) -> None:
    world.start_driver()
    _, first = world.start_client(5, "producer")
    child, second = world.start_client(6, "producer")
    assert (first["code"], second["code"]) == ("OK", "REJECTED")
    child.expect_exit(1)


@pytest.mark.requirement("D-4.1-3")
@pytest.mark.requirement("D-7-2")
@pytest.mark.requirement("D-7-3")
def test_a_killed_producer_is_revoked_and_its_epoch_ends(world: Any) -> None:
    world.start_driver()
    child, first = world.start_client(5, "producer")
    child.kill()
    notice = world.endpoint.wait_for(ShmLeaseRevoked, lambda one: one.lease_id == first["lease_id"])
    assert notice.reason is LeaseRevokeReason.EXPIRED
    announce = world.endpoint.wait_for(ShmPoolAnnounce, lambda one: one.epoch > first["epoch"])
    assert (announce.epoch, announce.producer_id) == (first["epoch"] + 1, 0)
    _, second = world.start_client(6, "producer")
    assert second["epoch"] == first["epoch"] + 2


def test_a_stopped_producer_comes_back_to_files_that_nobody_reads(world: Any) -> None:
    world.start_driver()
    child, first = world.start_client(5, "producer")
    child.stop()
    world.endpoint.wait_for(ShmLeaseRevoked, lambda one: one.lease_id == first["lease_id"])
    _, second = world.start_client(6, "producer")
    child.cont()
    with AdminClient(world.admin_socket) as admin:
        assert [lease.client_id for lease in admin.leases()] == [6]
    assert first["uri"] != second["uri"]


@pytest.mark.requirement("D-10-3")
@pytest.mark.parametrize("point", ["", "driver.epoch_saved", "driver.files_made", "driver.lease_granted", "driver.announced"])
def test_epochs_rise_over_kill_9_at_any_step(world: Any, point: str) -> None:
    # the second passing of the point: for the consumer's lease, or for the epoch after the producer is revoked
    child = world.start_driver(failpoints=(Failpoint(point, "kill", skip=1),) if point else ())
    world.endpoint.send(attach_request(10, 5, Role.PRODUCER))
    world.endpoint.send(attach_request(10, 6, Role.CONSUMER))
    if point:
        revoke_producers(world.admin_socket)
    else:
        world.endpoint.wait_for(ShmPoolAnnounce)
        child.kill()
    assert child.wait() == -9
    world.endpoint.poll()
    said = [message.epoch for message in world.endpoint.heard if isinstance(message, ShmPoolAnnounce)]
    granted = [message.epoch for message in world.endpoint.heard if isinstance(message, ShmAttachResponse)]
    on_disk = [int(path.name) for path in _epoch_directories(world)]
    world.start_driver("again")
    response = attach(world, 7, Role.PRODUCER)
    assert response.code is ResponseCode.OK
    assert response.epoch is not None
    assert response.epoch > max(said + granted + on_disk)


def revoke_producers(path: Path) -> None:
    """Until the driver dies of it."""
    with suppress(TransportError), AdminClient(path) as admin:
        while True:
            for lease in admin.leases():
                if lease.role == "producer":
                    admin.revoke(lease.lease_id)


def _epoch_directories(world: Any) -> list[Path]:
    return [path for path in world.isolated.shm_base_dir.glob("tensorpool-*/*/10/*") if path.name.isdigit()]


def test_what_a_killed_driver_left_is_collected_by_the_next(world: Any) -> None:
    child = world.start_driver()
    old = attach(world, 5, Role.PRODUCER)
    child.kill()
    child.wait()
    world.start_driver("again")
    assert attach(world, 6, Role.PRODUCER).code is ResponseCode.OK
    deadline_s = time.monotonic() + 20
    while str(old.epoch) in {path.name for path in _epoch_directories(world)}:
        assert time.monotonic() < deadline_s, _epoch_directories(world)
        time.sleep(0.01)


@pytest.mark.requirement("D-2.1-2")
def test_two_drivers_do_not_share_a_namespace(world: Any, tmp_path: Path) -> None:
    first = world.start_driver()
    second = world.start_driver("second", wait=False, directory=tmp_path)
    refusal = second.wait_for_message(event="refused")
    assert str(first.pid) in refusal["message"]
    assert "shm.namespace" in refusal["hint"]
    second.expect_exit(1)
    assert first.is_running


@pytest.mark.requirement("D-2.1-2")
def test_a_driver_that_hears_another_on_its_endpoint_does_not_start(world: Any, tmp_path: Path) -> None:
    world.start_driver()
    attach(world, 5, Role.CONSUMER)
    overrides = {"shm.namespace": "elsewhere", "policies.announce_period_ms": 1000}
    second = world.start_driver("second", wait=False, directory=tmp_path, overrides=overrides, listen_first=True)
    assert "another SHM driver answers" in second.wait_for_message(event="refused")["message"]
    second.expect_exit(1)
    assert not (world.isolated.shm_base_dir / "tensorpool-root" / "elsewhere").exists()


def test_a_driver_that_listened_and_heard_nobody_starts(world: Any) -> None:
    world.start_driver(listen_first=True)
    assert attach(world, 5, Role.CONSUMER).code is ResponseCode.OK


@pytest.mark.requirement("D-4.12-4")
@pytest.mark.requirement("D-4.12-1")
@pytest.mark.parametrize("by_administrator", [True, False])
def test_a_driver_that_ends_says_so_and_leaves_nothing(world: Any, by_administrator: bool) -> None:
    child = world.start_driver()
    attach(world, 5, Role.PRODUCER)
    if by_administrator:
        with AdminClient(world.admin_socket) as admin:
            admin.shutdown()
    else:
        child.end_of_input()
    notice = world.endpoint.wait_for(ShmDriverShutdown)
    assert notice.reason is (ShutdownReason.ADMIN if by_administrator else ShutdownReason.NORMAL)
    child.expect_exit(0)
    assert [path for path in world.isolated.shm_base_dir.iterdir() if path.name != ".lock"] == []
    assert not world.admin_socket.exists()


def test_the_admin_socket_provisions_lists_and_revokes(world: Any) -> None:
    world.start_driver()
    with AdminClient(world.admin_socket) as admin:
        made = admin.provision(stream_id=77, slots=16, stride_bytes=1 << 16, name="camera-1", tags=("lab", "blue"))
        assert (made.stream_id, made.name, made.tags, made.slots, made.stride_bytes) == (77, "camera-1", ("lab", "blue"), 16, (1 << 16,))
        assert admin.provision(stream_id=77, slots=16, stride_bytes=1 << 16).name == "camera-1"
        child, attached = world.start_client(5, "producer", stream_id=77)
        with pytest.raises(AttachRejectedError, match="has a producer"):
            admin.provision(stream_id=77, slots=32, stride_bytes=1 << 16)
        stream = next(stream for stream in admin.streams() if stream.stream_id == 77)
        assert (stream.producer_id, stream.epoch, stream.consumers) == (5, attached["epoch"], 0)
        (lease,) = admin.leases()
        assert (lease.lease_id, lease.role, lease.stream_id) == (attached["lease_id"], "producer", 77)
        admin.revoke(lease.lease_id)
        assert world.endpoint.wait_for(ShmLeaseRevoked).reason is LeaseRevokeReason.REVOKED
        with pytest.raises(AttachRejectedError, match="no lease"):
            admin.revoke(lease.lease_id)
        status = admin.status()
        assert status["process_id"] != os.getpid()
        assert status["counters"]["leases_revoked"] == 1
        # our own answers come back on the stream: the pump keeps them out of the duty cycle and counts them
        assert status["inbox"]["messages_received"] > 0
        assert status["inbox"]["messages_refused"] > 0
        assert status["inbox"]["messages_dropped"] == 0
        with pytest.raises(ConfigError, match="power of two"):
            admin.provision(stream_id=78, slots=3, stride_bytes=64)
    child.kill()


def test_a_stream_larger_than_shared_memory_is_refused_with_need_and_have(world: Any) -> None:
    world.start_driver(overrides={"policies.max_stream_bytes": 1 << 50})
    with AdminClient(world.admin_socket) as admin:
        with pytest.raises(StorageSpaceError) as caught:
            admin.provision(stream_id=78, slots=1 << 12, stride_bytes=1 << 31)
        assert caught.value.need_bytes > caught.value.have_bytes > 0
        assert "remount" in caught.value.hint
        assert [stream.stream_id for stream in admin.streams()] == [10]


def test_nobody_there_is_said_with_the_command_that_helps(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="tensor-pool up"):
        AdminClient(tmp_path / "admin.sock")
