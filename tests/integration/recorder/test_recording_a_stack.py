"""Frames cross processes and are recorded: driver, camera and recorder each in a process of its own, pixels compared."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterable

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.client.admin import AdminClient
from tensor_pool.stamp import carries_seq
from tensor_pool.testing import ChildProcess, IsolatedDirectories, ProcessHarness
from tensor_pool.testing.failpoints import Failpoint

COMMAND = "tensor_pool.cli.main:main"


class Stack:
    """`tensor-pool up` and other commands against it."""

    def __init__(self, harness: ProcessHarness, directories: IsolatedDirectories) -> None:
        self._harness = harness
        self._environment = {
            **directories.environment(),
            "TENSOR_POOL_SHM__BASE_DIR": str(directories.shm_base_dir),
            "TENSOR_POOL_POLICIES__ANNOUNCE_PERIOD_MS": "100",
            "TENSOR_POOL_POLICIES__LEASE_KEEPALIVE_INTERVAL_MS": "100",
        }
        self.stack_file = directories.runtime_dir / "tensor-pool" / "stack.json"
        self.process = self.command("stack", "up", "--json")
        self.process.wait_for_message(event="ready")

    def command(self, name: str, *arguments: object, failpoints: Iterable[Failpoint] = ()) -> ChildProcess:
        return self._harness.python(name, COMMAND, *arguments, environment=self._environment, failpoints=failpoints)

    @property
    def instance_id(self) -> str:
        return str(json.loads(self.stack_file.read_text())["instance_id"])


@pytest.fixture
def stack(harness: ProcessHarness, isolated: IsolatedDirectories) -> Stack:
    return Stack(harness, isolated)


def publish(stack: Stack, *arguments: object) -> ChildProcess:
    return stack.command("camera", "publish", "--shape", "64x80", "--json", *arguments)


def accounted_seqs(stream: tp.RecordedStream) -> list[int]:
    lost = [seq for gap in stream.gaps() for seq in range(gap.first_seq, gap.last_seq + 1)]
    return sorted(lost + [frame.seq for frame in stream])


def test_every_published_frame_is_recorded_or_in_a_gap_and_carries_its_seq(stack: Stack, tmp_path) -> None:
    recorder = stack.command("recorder", "record", "camera-1", "--output", tmp_path / "r", "--json")
    camera = publish(stack, "--rate", 300, "--seconds", 3, "--wait-for-start")
    recorder.wait_for_message(event="attached")
    camera.send("start")
    published = camera.wait_for_message(event="summary")["published"]
    assert recorder.terminate() == 0
    camera.send("end")
    camera.expect_exit()
    summary = recorder.wait_for_message(event="summary")
    recording = tp.Recording(tmp_path / "r")
    stream = recording.stream("camera-1")
    assert (stream.source, stream.stream_id, len(recording.streams())) == (stack.instance_id, 10_000, 1)
    assert published > 100
    assert len(stream) == summary["frames_recorded"]
    assert accounted_seqs(stream) == list(range(published))
    assert all(carries_seq(frame.array, frame.seq) for frame in stream)
    assert recording.verify().frames == len(stream)
    assert sum(gap.frames for gap in stream.gaps()) == summary["frames_lost"] + summary["frames_dropped_disk"]


def test_a_recorder_that_lost_its_lease_has_a_gap_there_and_counts_it_once(stack: Stack, tmp_path) -> None:
    recorder = stack.command("recorder", "record", "camera-1", "--output", tmp_path / "r", "--json")
    camera = publish(stack, "--rate", 1000, "--seconds", 3, "--wait-for-start")
    recorder.wait_for_message(event="attached")
    camera.send("start")
    recorder.wait_for_message(event="progress")
    revoked: set[int] = set()
    with AdminClient(json.loads(stack.stack_file.read_text())["admin_socket"]) as admin:
        while len(revoked) < 3:
            for lease in admin.leases():
                if lease.role == "consumer" and lease.lease_id not in revoked:
                    admin.revoke(lease.lease_id)
                    revoked.add(lease.lease_id)
    published = camera.wait_for_message(event="summary")["published"]
    assert recorder.terminate() == 0
    camera.send("end")
    camera.expect_exit()
    summary = recorder.wait_for_message(event="summary")
    stream = tp.Recording(tmp_path / "r").stream("camera-1")
    assert len(stream.epochs) == 1
    assert accounted_seqs(stream) == list(range(published))
    assert summary["frames_recorded"] + summary["frames_lost"] + summary["frames_dropped_disk"] == published
    assert summary["frames_lost"] > 0


def test_a_recorder_that_is_killed_leaves_what_it_had_and_the_next_goes_on_in_the_same_epoch(stack: Stack, tmp_path) -> None:
    camera = publish(stack, "--rate", 200, "--seconds", 60)
    for life in range(2):
        recorder = stack.command(f"recorder-{life}", "record", "10000", "--output", tmp_path / "r", "--json")
        recorder.wait_for_message(event="progress", timeout_s=20)
        recorder.kill()
    last = stack.command("recorder-last", "record", "10000", "--output", tmp_path / "r", "--json", "--seconds", "1")
    last.expect_exit()
    camera.kill()
    recording = tp.Recording(tmp_path / "r")
    (stream,) = recording.streams()
    recording.verify()
    assert len(stream.epochs) == 1
    seqs = accounted_seqs(stream)
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert all(carries_seq(frame.array, frame.seq) for frame in stream)
    assert "recorder" in {gap.cause for gap in stream.gaps()}


def test_a_recorder_whose_stack_dies_ends_in_words_and_its_recording_is_sealed(stack: Stack, tmp_path) -> None:
    camera = publish(stack, "--rate", 200, "--seconds", 60)
    recorder = stack.command("recorder", "record", "10000", "--output", tmp_path / "r", "--json")
    recorder.wait_for_message(event="progress")
    stack.process.kill()
    assert recorder.wait(60) not in (0, -signal.SIGKILL)
    assert "Traceback" not in recorder.stderr()
    assert recorder.stderr().strip()
    camera.kill()
    recording = tp.Recording(tmp_path / "r")
    assert recording.verify().frames == len(recording) > 0
    assert not [path for path in (tmp_path / "r").rglob("*.mcap") if not path.with_suffix(".index.parquet").exists()]


def test_a_session_records_what_its_own_process_publishes(isolated: IsolatedDirectories, tmp_path) -> None:
    from tensor_pool.testing.stack import embedded_stack

    with embedded_stack(isolated) as session, session.producer(5, shape=(8, 16), dtype="float32", name="f", slots=64) as producer:
        with session.record(["f"], tmp_path / "r") as recording:
            for value in range(10):
                producer.publish(np.full((8, 16), value, np.float32))
            while recording.stats.frames_recorded + recording.stats.frames_lost < 10:
                recording.wait(0.01)
        assert recording.stats.frames_recorded == 10
    assert [frame.array[0, 0] for frame in tp.Recording(tmp_path / "r").stream("f")] == list(range(10))
    shutil.rmtree(tmp_path / "r")


def test_streams_are_recorded_by_id_and_by_name_at_the_same_time(isolated: IsolatedDirectories, tmp_path) -> None:
    from tensor_pool.testing.stack import embedded_stack

    with (
        embedded_stack(isolated) as session,
        session.producer(5, shape=4, name="left", slots=64) as left,
        session.producer(6, shape=4, name="right", slots=64) as right,
    ):
        with session.record([6, "left"], tmp_path / "r", wait=20) as recording:
            assert recording.streams == [6, 5]
            for value in range(10):
                left.publish(np.full(4, value, np.uint8))
                right.publish(np.full(4, 100 + value, np.uint8))
            while recording.stats.frames_recorded + recording.stats.frames_lost < 20:
                recording.wait(0.01)
        assert recording.stats.frames_recorded == 20
    recorded = tp.Recording(tmp_path / "r")
    assert {(stream.stream_id, stream.name) for stream in recorded.streams()} == {(5, "left"), (6, "right")}
    assert [frame.array[0] for frame in recorded.stream("left")] == list(range(10))
    assert [frame.array[0] for frame in recorded.stream("right")] == list(range(100, 110))


def test_record_verify_counts_frames_with_the_pixels_of_another_and_ends_with_words(stack: Stack, tmp_path) -> None:
    camera = publish(stack, "--rate", 200, "--seconds", 60)
    good = stack.command("recorder", "record", "camera-1", "--verify", "--output", tmp_path / "good", "--json", "--seconds", "1")
    good.expect_exit(0)
    summary = good.wait_for_message(event="summary")
    assert (summary["verified"], summary["bad_pixels"]) == (True, 0)
    assert summary["frames_recorded"] > 0
    camera.kill()
    with tp.connect(stack.stack_file) as session, session.producer(7, shape=(8, 8), name="unstamped", slots=64) as producer:
        bad = stack.command("recorder", "record", "unstamped", "--verify", "--output", tmp_path / "bad", "--json")
        bad.wait_for_message(event="attached")
        producer.publish(np.full((8, 8), 9, np.uint8))
        bad.wait_for_message(event="progress", frames_recorded=1)
        assert bad.terminate() == 1
    summary = bad.wait_for_message(event="summary")
    assert (summary["frames_recorded"], summary["bad_pixels"]) == (1, 1)
    assert "did not carry their seq in every row" in bad.stderr()
    assert tp.Recording(tmp_path / "bad").verify().frames == 1


def test_record_ends_with_words_when_a_segment_cannot_be_sealed(stack: Stack, tmp_path) -> None:
    publish(stack, "--rate", 200, "--seconds", 60)
    full = [Failpoint("recorder.before_seal", "error", error_number="ENOSPC")]
    recorder = stack.command("recorder", "record", "camera-1", "--output", tmp_path / "r", "--json", "--seconds", "1", failpoints=full)
    assert recorder.wait() == 1
    assert "could not be sealed" in recorder.stderr()
    assert "Traceback" not in recorder.stderr()
    assert len(tp.Recording(tmp_path / "r")) > 0
