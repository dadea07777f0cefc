"""Recorders that die, disks that fill, files that are changed: never a wrong frame, and always words."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensor_pool.errors import RecordingError
from tensor_pool.recorder import RecorderSettings, Recording, RecordingSession
from tensor_pool.recorder.container import Preamble
from tensor_pool.runtime import failpoints
from tensor_pool.stamp import carries_seq, stamp_seq
from tensor_pool.testing.playback import PlayedConsumer, played_frame

RECORDER = """
import sys, threading
import numpy as np
from tensor_pool.recorder import RecorderSettings, RecordingSession
from tensor_pool.runtime import failpoints
from tensor_pool.stamp import stamp_seq
from tensor_pool.testing.playback import PlayedConsumer, played_frame

path, first, point, skip = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if point != "none":
    failpoints.arm(point, "kill", skip=skip)

def frames():
    seq = first
    while True:
        image = np.full((64, 64), seq % 60000, np.uint16)
        stamp_seq(image, seq)
        yield played_frame(image, seq)
        seq += 1

class Noted(PlayedConsumer):
    def read(self, timeout=None):
        if session and session.stats.frames_recorded > 200:
            print(session.stats.frames_recorded, flush=True)
        return super().read(timeout)

session = None
session = RecordingSession([Noted(frames(), first_seq=first)], path, source="dead", settings=RecorderSettings(segment_bytes=300_000))
session.wait(60)
"""

STEPS = [
    "recorder.after_preamble",
    "recorder.before_chunk",
    "recorder.after_chunk",
    "recorder.before_seal",
    "recorder.after_seal",
    "recorder.before_index_rename",
]


def start_recorder(path: Path, *, first_seq: int = 0, point: str = "none", skip: int = 0) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", RECORDER, str(path), str(first_seq), point, str(skip)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def camera_frame(seq: int):
    image = np.full((64, 64), seq % 60000, np.uint16)
    stamp_seq(image, seq)
    return played_frame(image, seq)


def assert_whole(path: Path) -> list[int]:
    """Every frame is the one it says; together with the gaps none is missing. Returns the seqs."""
    recording = Recording(path)
    recording.verify()
    assert all(carries_seq(frame.array, frame.seq) for frame in recording)
    seqs = [frame.seq for frame in recording]
    accounted = sorted(seqs + [seq for gap in recording.gaps() for seq in range(gap.first_seq, gap.last_seq + 1)])
    assert accounted == list(range(accounted[0], accounted[0] + len(accounted))) if accounted else not seqs
    return seqs


def test_after_kill_9_everything_that_was_counted_is_there_and_the_next_recorder_goes_on(tmp_path):
    process = start_recorder(tmp_path)
    try:
        assert process.stdout is not None
        counted = int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()
    seqs = assert_whole(tmp_path)
    assert len(seqs) >= counted > 200
    following = seqs[-1] + 5
    consumer = PlayedConsumer([camera_frame(following)], first_seq=following)
    with RecordingSession([consumer], tmp_path, source="dead"):
        assert consumer.finished.wait(20)
    assert assert_whole(tmp_path) == [*seqs, following]
    gaps = Recording(tmp_path).gaps()
    # in two parts when the tail was torn: the frame in it, and what came after
    assert (gaps[0].first_seq, gaps[-1].last_seq, {gap.cause for gap in gaps}) == (seqs[-1] + 1, following - 1, {"recorder"})
    assert len(list(tmp_path.rglob("*.mcap"))) == len(list(tmp_path.rglob("*.index.parquet")))


@pytest.mark.parametrize("point", STEPS)
def test_killed_at_a_step_of_writing_the_recording_is_whole_and_goes_on(tmp_path, point):
    first_seq = 0
    for skip in (0, 1):
        process = start_recorder(tmp_path, first_seq=first_seq, point=point, skip=skip)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == -signal.SIGKILL
        # a recorder takes no seq twice, and how many this one saw before it died is chance
        first_seq = max(assert_whole(tmp_path), default=0) + 1000
    consumer = PlayedConsumer([camera_frame(first_seq)], first_seq=first_seq)
    with RecordingSession([consumer], tmp_path, source="dead"):
        assert consumer.finished.wait(20)
    assert assert_whole(tmp_path)[-1] == first_seq
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in (".mcap", ".parquet")]


def write_frames(path: Path, count: int) -> RecordingSession:
    consumer = PlayedConsumer([camera_frame(seq) for seq in range(count)])
    session = RecordingSession([consumer], path, source="dead", settings=RecorderSettings(chunk_bytes=1))
    assert consumer.finished.wait(20)
    session.close()
    return session


def test_a_disk_that_is_full_for_a_while_costs_frames_that_are_counted_and_shown_as_a_gap(tmp_path, monkeypatch):
    real, calls = os.writev, []

    def full_for_three_writes(descriptor, parts):
        calls.append(descriptor)
        if 4 <= len(calls) < 10:
            if len(calls) % 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, parts[:1])  # some of it still fits
        return real(descriptor, parts)

    monkeypatch.setattr(os, "writev", full_for_three_writes)
    stats = write_frames(tmp_path, 10).stats
    assert (stats.frames_recorded, stats.frames_dropped_disk, stats.gaps_recorded) == (7, 3, 1)
    assert assert_whole(tmp_path) == [0, 1, 5, 6, 7, 8, 9]
    assert [gap[:3] for gap in Recording(tmp_path).gaps()] == [(2, 4, "disk")]


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="file") as caught:
        RecordingSession([], tmp_path / "file" / "below", source="dead")
    assert caught.value.path == str(tmp_path / "file" / "below")


def test_a_disk_that_takes_no_segment_at_all_costs_every_frame_and_no_crash(tmp_path):
    failpoints.arm("recorder.after_preamble", "error", error_number=errno.ENOSPC)
    try:
        stats = write_frames(tmp_path, 3).stats
    finally:
        failpoints.disarm()
    assert stats.frames_recorded + stats.frames_dropped_disk == 3
    assert stats.frames_dropped_disk == 1
    assert assert_whole(tmp_path) == [1, 2]


def test_a_flipped_pixel_is_an_error_that_names_file_and_row_when_the_frame_is_read(tmp_path):
    write_frames(tmp_path, 5)
    frame = Recording(tmp_path)[3]
    with frame.path.open("r+b") as file:
        file.seek(frame.offset + 100)
        file.write(b"\xff")
    recording = Recording(tmp_path)
    assert recording[2].seq == 2
    with pytest.raises(RecordingError, match=r"000001\.mcap row 3.*crc32c") as caught:
        recording[3]
    assert (caught.value.path, caught.value.row) == (str(frame.path), 3)
    with pytest.raises(RecordingError, match="row 3"):
        recording.verify()
    assert Recording(tmp_path, check=False)[3].seq == 3


@pytest.mark.parametrize("with_index", [True, False])
def test_a_newer_format_is_refused_by_its_number(tmp_path, monkeypatch, with_index):
    monkeypatch.setattr("tensor_pool.recorder.container.FORMAT_VERSION", 2)
    monkeypatch.setattr("tensor_pool.recorder.index.FORMAT_VERSION", 2)
    write_frames(tmp_path, 2)
    monkeypatch.undo()
    (path,) = tmp_path.rglob("*.mcap")
    named = path.with_name("000001.index.parquet")
    if not with_index:
        named.unlink()
        named = path
    with pytest.raises(RecordingError, match="format version 2 is newer than 1") as caught:
        Recording(tmp_path)
    assert (caught.value.path, caught.value.row) == (str(named), 0)
    assert str(named) in str(caught.value)


def test_a_segment_that_is_gone_is_named(tmp_path):
    write_frames(tmp_path, 2)
    (path,) = tmp_path.rglob("*.mcap")
    path.unlink()
    with pytest.raises(RecordingError) as caught:
        Recording(tmp_path)
    assert caught.value.path == str(path)


def test_the_index_of_another_segment_is_found_out(tmp_path):
    write_frames(tmp_path / "a", 3)
    failpoints.disarm()
    consumer = PlayedConsumer([played_frame(np.full((64, 64), 9, np.uint16), seq) for seq in range(3)])
    with RecordingSession([consumer], tmp_path / "b", source="dead", settings=RecorderSettings(chunk_bytes=1)):
        assert consumer.finished.wait(20)
    (mine,), (other,) = (tmp_path / "a").rglob("*.parquet"), (tmp_path / "b").rglob("*.parquet")
    shutil.copy(other, mine)
    with pytest.raises(RecordingError, match="row 0"):
        Recording(tmp_path / "a").verify()
    with pytest.raises(RecordingError, match="row 0"):
        Recording(tmp_path / "a")[0]


def test_without_the_extra_packages_the_package_works_and_a_recording_says_what_is_missing(tmp_path):
    program = f"""
import json, sys
sys.modules.update(dict.fromkeys(("crc32c", "mcap", "google.protobuf", "pyarrow")))
import tensor_pool.recorder as recorder
said = []
for attempt in (lambda: recorder.Recording({str(tmp_path)!r}), lambda: recorder.RecordingSession([], {str(tmp_path)!r}, source="x")):
    try:
        attempt()
    except Exception as error:
        said.append([type(error).__name__, str(error)])
print(json.dumps(said))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    for kind, words in json.loads(done.stdout):
        assert kind == "RecordingError"
        assert "need the package" in words
        assert "pip install 'shm-tensor-pool[record]'" in words


def test_the_preamble_says_whose_frames_these_are(tmp_path):
    write_frames(tmp_path, 1)
    from tensor_pool.recorder.scan import scan_segment

    (path,) = tmp_path.rglob("*.mcap")
    preamble = scan_segment(path).preamble
    assert isinstance(preamble, Preamble)
    assert preamble.origin == ("dead", 10_000, "", 1)
