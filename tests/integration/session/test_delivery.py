"""Frames across processes: the stack, the camera and each reader in a process of its own, seq compared in every row of pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.sbe import driver
from tensor_pool.sbe.control import ShmRegionSuperblock
from tensor_pool.stamp import carries_seq
from tensor_pool.testing.driver_process import ControlEndpoint
from tensor_pool.transport import TransportClient

from .conftest import StackProcess

COUNTS = ("delivered", "skipped", "gap", "late", "invalid")


def totals(summary: dict[str, Any]) -> tuple[int, int]:
    """(frames a tap answers for, frames never seen), over all epochs; asserts that each epoch adds up."""
    epochs = [summary, *summary["earlier_epochs"]]
    for epoch in epochs:
        assert sum(epoch[name] for name in COUNTS) == epoch["last_seq"] - epoch["first_seq"] + 1
    return sum(epoch["last_seq"] - epoch["first_seq"] + 1 for epoch in epochs), sum(epoch["unseen"] for epoch in epochs)


def test_two_taps_account_for_every_frame_of_a_camera(stack: StackProcess) -> None:
    camera = stack.command("camera", "publish", "--shape", "64x96", "--rate", 400, "--seconds", 2, "--wait-for-start", "--json")
    camera.wait_for_message(event="attached")
    taps = [stack.command(f"tap-{number}", "tap", "camera-1", "--verify", "--json") for number in (1, 2)]
    for tap in taps:
        tap.wait_for_message(event="attached")
    camera.send("start")
    published = camera.wait_for_message(event="summary")["published"]
    assert published > 400
    for tap in taps:
        assert tap.terminate() == 0
        summary = tap.wait_for_message(event="summary")
        answered, unseen = totals(summary)
        assert answered + unseen == published
        assert summary["bad_pixels"] == 0
        assert summary["delivered"] + sum(epoch["delivered"] for epoch in summary["earlier_epochs"]) > 0.9 * published
    camera.send("end")
    camera.expect_exit(0)


def test_starting_order_does_not_matter(stack: StackProcess) -> None:
    tap = stack.command("tap", "tap", "camera-1", "--verify", "--frames", 50, "--json")
    stack.command("camera", "publish", "--shape", "32x32", "--rate", 200, "--json")
    tap.expect_exit(0)
    assert tap.wait_for_message(event="summary")["delivered"] == 50


def test_a_session_in_python_reads_what_another_process_publishes(stack: StackProcess, session: tp.Session) -> None:
    stack.command("camera", "publish", "--shape", "48x64", "--dtype", "float32", "--rate", 300, "--json")
    with session.consumer("camera-1", wait=20) as consumer:
        first = consumer.read(timeout=10)
        assert first is not None
        assert first.array.shape == (48, 64)
        assert first.array.dtype == "float32"
        for _ in range(100):
            frame = consumer.read(timeout=10)
            assert frame is not None
            assert carries_seq(frame.array, frame.seq)
        assert consumer.stats.balanced


@pytest.mark.parametrize("how", ["latest", "borrow", "read_into"])
def test_every_way_of_reading_brings_the_pixels_of_its_seq(stack: StackProcess, session: tp.Session, how: str) -> None:
    stack.command("camera", "publish", "--shape", "40x48", "--dtype", "uint16", "--rate", 300, "--json")
    out = np.empty((40, 48), dtype=np.uint16)
    with session.consumer("camera-1", wait=20) as consumer:
        seen = []
        for _ in range(50):
            if how == "borrow":
                with consumer.borrow(timeout=10) as view:
                    seen.append(view.seq)
                    assert not view.array.flags.writeable
                    assert carries_seq(view.array, view.seq)
                continue
            frame = consumer.latest(timeout=10) if how == "latest" else consumer.read_into(out, timeout=10)
            assert frame is not None
            assert carries_seq(out if how == "read_into" else frame.array, frame.seq)
            seen.append(frame.seq)
        assert seen == sorted(set(seen))
        assert consumer.stats.balanced


def test_frames_survive_the_session(stack: StackProcess) -> None:
    stack.command("camera", "publish", "--shape", "64x64", "--rate", 200, "--json")
    with stack.connect() as session:
        consumer = session.consumer("camera-1", wait=20)
        frames = [consumer.read(timeout=10) for _ in range(20)]
        with consumer.borrow(timeout=10) as view:
            lent = view.array
    assert all(frame is not None and carries_seq(frame.array, frame.seq) for frame in frames)
    # stale pixels perhaps, and never a crash
    assert lent.shape == (64, 64)
    assert int(lent.sum()) >= 0


@pytest.mark.requirement("D-3-1")
@pytest.mark.requirement("D-2.2-1")
@pytest.mark.requirement("D-2.3-1")
def test_files_are_made_cut_and_removed_by_the_driver_alone(stack: StackProcess, session: tp.Session) -> None:
    base = stack.directories.shm_base_dir

    def regions() -> dict[Path, tuple[int, int]]:
        """Inode and length of whatever lies below the base beside the driver's lock."""
        found = {path: path.stat() for path in base.rglob("*") if not path.is_dir() and path.name != "driver.lock"}
        return {path: (status.st_ino, status.st_size) for path, status in found.items()}

    producer = session.producer(10_000, shape=1000, slots=8)
    consumer = session.consumer(10_000, wait=20)
    producer.publish(np.ones(1000, np.uint8))
    assert consumer.read(timeout=20) is not None
    made, epoch = regions(), producer.epoch
    assert epoch is not None
    assert {path.name: length for path, (_, length) in made.items()} == {"header.ring": 64 + 8 * 256, "1.pool": 64 + 8 * 1024}
    for path in made:
        assert ShmRegionSuperblock.decode_body(path.read_bytes()[:64]).pid == stack.process.pid
        assert path.parent.name == str(epoch)
    consumer.close()
    producer.close()
    # the driver keeps this epoch for late readers, beside the next
    with session.consumer(10_000, wait=20) as late:
        assert late.stats.epoch == epoch + 1
    assert made.items() <= regions().items()


@pytest.mark.requirement("D-4.5-1")
def test_what_concerns_a_lease_is_said_on_the_control_stream(session: tp.Session) -> None:
    with TransportClient(session.stack.aeron_dir, name="listener") as transport:
        endpoint = ControlEndpoint(transport)
        session.producer(10_000, shape=1000, slots=8)
        request = endpoint.wait_for(driver.ShmAttachRequest)
        lease_id = endpoint.wait_for(driver.ShmAttachResponse, lambda one: one.correlation_id == request.correlation_id).lease_id
        consumer = session.consumer(10_000, wait=20)
        endpoint.wait_for(driver.ShmLeaseKeepalive, lambda one: one.lease_id == lease_id)
        consumer.close()
        detached = endpoint.wait_for(driver.ShmDetachRequest)
        endpoint.wait_for(driver.ShmDetachResponse, lambda one: one.correlation_id == detached.correlation_id)
        endpoint.wait_for(driver.ShmLeaseRevoked, lambda one: one.lease_id == detached.lease_id)
