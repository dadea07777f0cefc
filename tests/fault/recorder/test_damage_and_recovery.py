"""What the next recorder and readers do with segments that are torn, damaged, missing or cannot be sealed."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tensor_pool.errors import RecordingError
from tensor_pool.recorder import RecorderSettings, Recording, RecordingSession
from tensor_pool.runtime import failpoints
from tensor_pool.stamp import carries_seq, stamp_seq
from tensor_pool.testing.playback import PlayedConsumer, played_frame

SEGMENT_OF_ONE = RecorderSettings(segment_bytes=1, chunk_bytes=1)
ONE_CHUNK_A_FRAME = RecorderSettings(chunk_bytes=1)
WATCHDOG_S = 60

RECORDER = """
import sys
import numpy as np
from tensor_pool.recorder import RecorderSettings, RecordingSession
from tensor_pool.stamp import stamp_seq
from tensor_pool.testing.playback import PlayedConsumer, played_frame

path, epoch = sys.argv[1], int(sys.argv[2])

def frames():
    seq = 0
    while True:
        image = np.full((64, 64), seq % 60000, np.uint16)
        stamp_seq(image, seq)
        yield played_frame(image, seq, epoch=epoch)
        seq += 1
        if session and session.stats.frames_recorded > 100:
            print(session.stats.frames_recorded, flush=True)

session = None
session = RecordingSession([PlayedConsumer(frames(), epoch=epoch)], path, source="dead", settings=RecorderSettings(segment_bytes=300_000))
session.wait(60)
"""


def record_until_killed(path: Path, epoch: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", RECORDER, str(path), str(epoch)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL


def camera_frame(seq: int, epoch: int = 1, stream_id: int = 10_000):
    image = np.full((64, 64), seq % 60000, np.uint16)
    stamp_seq(image, seq)
    return played_frame(image, seq, epoch=epoch, stream_id=stream_id)


def record(path: Path, seqs: Iterable[int], *, settings: RecorderSettings | None = None, epoch: int = 1, stream_id: int = 10_000):
    """A whole recording session; returns it closed."""
    script = [camera_frame(seq, epoch, stream_id) for seq in seqs]
    consumer = PlayedConsumer(script, epoch=epoch, first_seq=script[0].seq, stream_id=stream_id)
    session = RecordingSession([consumer], path, source="dead", settings=settings)
    assert consumer.finished.wait(WATCHDOG_S)
    session.close()
    return session


def segment(path: Path, number: int, *, epoch: int = 1) -> Path:
    return path / "source=dead" / "stream=10000" / f"epoch={epoch}" / f"{number:06}.mcap"


def index(path: Path) -> Path:
    return path.with_suffix(".index.parquet")


def reopen_segment(path: Path, *, without: int = 0) -> None:
    """Make a sealed segment one whose recorder was killed before it sealed it, `without` bytes of its last chunk."""
    frames = list(Recording(path))
    index(path).unlink()
    data = path.read_bytes()
    # behind the last payload: the message index of its chunk, then the end of the data
    end = data.index(b"\x0f\x04", frames[-1].offset + frames[-1].nbytes)
    os.truncate(path, end - without)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes((byte ^ 1,)))


def assert_damaged(path: Path, named: Path, words: str) -> Recording:
    """Opened it says so; whoever asks for all of it, or verifies, gets the same in words."""
    recording = Recording(path)
    assert [damage.path for damage in recording.damaged] == [str(named)]
    for ask in (list, len, Recording.gaps, Recording.verify, lambda recording: recording[-1]):
        with pytest.raises(RecordingError, match=words) as caught:
            ask(recording)
        assert caught.value.path == str(named)
        assert str(named) in str(caught.value)
    return recording


# --- segments that do not go on where the one before ends ---------------------------------------------------------------


def three_segments(path: Path) -> list[Path]:
    record(path, range(3), settings=SEGMENT_OF_ONE)
    return [segment(path, number) for number in (1, 2, 3)]


@pytest.mark.parametrize("without", [5, 3000, 20_000])
def test_a_cut_segment_with_a_later_one_beside_it_is_damage_and_the_next_recorder_leaves_it_alone(tmp_path, caplog, without):
    record(tmp_path, range(4), settings=ONE_CHUNK_A_FRAME)
    record(tmp_path, range(4, 8), settings=ONE_CHUNK_A_FRAME)
    first = segment(tmp_path, 1)
    reopen_segment(first, without=without)
    before = first.read_bytes()
    recording = assert_damaged(tmp_path, first, "there is a later segment")
    assert recording[0].seq == 0, "what lies before the damage can be read"
    assert recording.stream(10_000).frame(6).seq == 6, "and what lies behind, by its seq"
    with pytest.raises(RecordingError):
        recording.stream(10_000).frame(3)
    with caplog.at_level(logging.WARNING, "tensor_pool.recorder"):
        record(tmp_path, [8, 9])
    assert first.read_bytes() == before
    assert not index(first).exists()
    assert f"left as it is: {first}" in caplog.text
    assert "recovered" not in caplog.text
    skipped = Recording(tmp_path, skip_damaged=True)
    seqs = [frame.seq for frame in skipped]
    assert seqs == [*range(seqs.index(4)), *range(4, 10)]
    assert len(skipped.damaged) == 1


def test_a_segment_cut_between_two_chunks_is_missed_by_the_next_one(tmp_path, caplog):
    record(tmp_path, range(4), settings=ONE_CHUNK_A_FRAME)
    record(tmp_path, range(4, 6), settings=ONE_CHUNK_A_FRAME)
    first = segment(tmp_path, 1)
    second_chunk = first.read_bytes().index(b"\x06", Recording(first)[1].offset + 8192 + 15)
    index(first).unlink()
    os.truncate(first, second_chunk)
    before = first.read_bytes()
    assert len(Recording(shutil.copy(first, tmp_path.parent / "alone.mcap"))) == 2, "for itself it is a segment that grows"
    assert_damaged(tmp_path, first, r"seq 2 to 3 are neither here nor in a gap")
    with caplog.at_level(logging.WARNING, "tensor_pool.recorder"):
        record(tmp_path, [6])
    assert first.read_bytes() == before
    assert f"left as it is: {first}" in caplog.text


def test_a_segment_that_was_never_sealed_but_is_whole_is_read_and_sealed_by_the_next_recorder(tmp_path):
    record(tmp_path, range(4), settings=ONE_CHUNK_A_FRAME)
    record(tmp_path, range(4, 6))
    reopen_segment(segment(tmp_path, 1))
    assert [frame.seq for frame in Recording(tmp_path)] == list(range(6))
    assert Recording(tmp_path).verify().frames == 6
    record(tmp_path, [6], epoch=2)
    assert index(segment(tmp_path, 1)).exists()
    assert Recording(tmp_path).verify().gaps == 0


@pytest.mark.parametrize("number", [1, 2])
def test_a_segment_that_is_missing_is_named(tmp_path, number):
    gone = three_segments(tmp_path)[number - 1]
    gone.unlink()
    index(gone).unlink()
    recording = assert_damaged(tmp_path, gone, "the segment is missing")
    assert recording.stream(10_000).frame(2).seq == 2
    assert [frame.seq for frame in Recording(tmp_path, skip_damaged=True)] == [seq for seq in range(3) if seq != number - 1]


def test_several_missing_segments_are_one_piece_of_damage(tmp_path):
    gone = three_segments(tmp_path)[:2]
    for path in gone:
        path.unlink()
        index(path).unlink()
    assert_damaged(tmp_path, gone[0], "missing with all before 000003.mcap")


def test_segments_that_were_copied_elsewhere_need_not_begin_with_the_first(tmp_path):
    (tmp_path / "copy").mkdir()
    for path in three_segments(tmp_path / "r")[1:]:
        shutil.copy(path, tmp_path / "copy")
        shutil.copy(index(path), tmp_path / "copy")
    assert [frame.seq for frame in Recording(tmp_path / "copy")] == [1, 2]
    assert Recording(tmp_path / "copy").verify().frames == 2


def test_a_hole_between_two_segments_is_found_when_the_recording_is_opened(tmp_path):
    first, second, third = three_segments(tmp_path)
    third.rename(second)
    index(third).rename(index(second))
    assert_damaged(tmp_path, first, r"in 000002\.mcap, which is the next one: seq 1 to 1 are neither here nor in a gap")


def test_a_hole_between_two_chunks_is_found_by_verify(tmp_path):
    record(tmp_path, range(3), settings=ONE_CHUNK_A_FRAME)
    path = segment(tmp_path, 1)
    reopen_segment(path)
    data, (first, second, _) = path.read_bytes(), Recording(path)
    begin, end = (data.index(b"\x06", frame.offset + frame.nbytes + 15) for frame in (first, second))
    path.write_bytes(data[:begin] + data[end:])
    with pytest.raises(RecordingError, match=r"000001\.mcap row 1: seq 1 to 1 are neither here nor in a gap"):
        Recording(tmp_path).verify()


# --- recorders that were killed -----------------------------------------------------------------------------------------


def test_a_recorder_of_another_epoch_finishes_what_a_killed_one_left(tmp_path):
    record_until_killed(tmp_path, epoch=1)
    open_segment = max(segment(tmp_path, 1).parent.glob("*.mcap"))
    assert not index(open_segment).exists()
    record_until_killed(tmp_path, epoch=2)
    assert index(open_segment).exists()
    stream = Recording(tmp_path).stream(10_000).of_epoch(1)
    seqs = [frame.seq for frame in stream]
    assert seqs == list(range(len(seqs)))
    assert len(seqs) > 100
    assert all(carries_seq(frame.array, frame.seq) for frame in stream)
    assert Recording(segment(tmp_path, 1).parent).verify().frames == len(seqs)


def test_the_frame_in_a_torn_tail_of_another_epoch_becomes_a_gap(tmp_path):
    record(tmp_path, range(5), settings=ONE_CHUNK_A_FRAME)
    reopen_segment(segment(tmp_path, 1), without=300)
    record(tmp_path, range(3), epoch=2)
    recording = Recording(tmp_path)
    old = recording.stream(10_000).of_epoch(1)
    assert [frame.seq for frame in old] == [0, 1, 2, 3]
    assert [gap[:3] for gap in old.gaps()] == [(4, 4, "recorder")]
    recording.verify()
    # and a recorder that goes on in that epoch says it once
    record(tmp_path, [9])
    assert [gap[:3] for gap in Recording(tmp_path).stream(10_000).of_epoch(1).gaps()] == [(4, 4, "recorder"), (5, 8, "recorder")]


def test_what_a_recorder_that_runs_has_open_is_left_alone(tmp_path):
    consumer = PlayedConsumer([camera_frame(seq) for seq in range(3)])
    with RecordingSession([consumer], tmp_path, source="dead") as session:
        assert consumer.finished.wait(WATCHDOG_S)
        while session.stats.frames_recorded < 3:
            session.wait(0.01)
        before = segment(tmp_path, 1).read_bytes()
        record(tmp_path, range(2), epoch=2)
        assert segment(tmp_path, 1).read_bytes() == before
        assert not index(segment(tmp_path, 1)).exists()
    assert Recording(tmp_path).verify().frames == 5


def test_a_segment_that_was_abandoned_at_its_first_bytes_leaves_no_hole_in_the_numbers(tmp_path):
    record(tmp_path, [0])
    segment(tmp_path, 2).write_bytes(segment(tmp_path, 1).read_bytes()[:100])
    record(tmp_path, [1])
    assert [frame.seq for frame in Recording(tmp_path)] == [0, 1]
    assert segment(tmp_path, 2).exists()
    assert not segment(tmp_path, 3).exists()


def test_frames_of_a_directory_that_could_not_be_made_are_a_gap_behind_those_before(tmp_path):
    record(tmp_path, [0])
    hidden = tmp_path / "hidden"
    (tmp_path / "source=dead").rename(hidden)
    (tmp_path / "source=dead").write_text("in the way")

    is_free = threading.Event()

    def frames():
        yield camera_frame(3)
        assert is_free.wait(WATCHDOG_S)
        yield camera_frame(4)

    consumer = PlayedConsumer(frames(), first_seq=3)
    with RecordingSession([consumer], tmp_path, source="dead") as session:
        while session.stats.frames_dropped_disk < 1:
            session.wait(0.01)
        (tmp_path / "source=dead").unlink()
        hidden.rename(tmp_path / "source=dead")
        is_free.set()
        assert consumer.finished.wait(WATCHDOG_S)
    recording = Recording(tmp_path)
    assert [frame.seq for frame in recording] == [0, 4]
    assert [gap[:3] for gap in recording.gaps()] == [(1, 2, "recorder"), (3, 3, "disk")]
    recording.verify()


# --- a damaged segment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_later", [False, True])
def test_a_recorder_goes_on_behind_a_damaged_segment_and_records_no_seq_twice(tmp_path, has_later):
    record(tmp_path, range(10), settings=ONE_CHUNK_A_FRAME)
    path = segment(tmp_path, 1)
    fourth, last = Recording(tmp_path)[4], Recording(tmp_path)[9]
    reopen_segment(path)
    flip(path, fourth.offset - 100)
    if has_later:
        record(tmp_path, range(5, 12))
    record(tmp_path, range(6, 14))
    recording = assert_damaged(tmp_path, path, "is damaged at byte")
    assert [recording[number].seq for number in range(4)] == [0, 1, 2, 3]
    readable = [frame.seq for frame in Recording(tmp_path, skip_damaged=True)]
    assert readable == [0, 1, 2, 3, *range(last.seq + 1, 14)]


def test_a_damaged_segment_does_not_hide_other_streams_and_epochs(tmp_path):
    record(tmp_path, range(3), settings=ONE_CHUNK_A_FRAME)
    record(tmp_path, range(3), epoch=2)
    record(tmp_path, range(4), stream_id=7)
    path = segment(tmp_path, 1)
    index(path).unlink()
    flip(path, 200)
    recording = assert_damaged(tmp_path, path, "its first bytes do not match")
    assert [frame.seq for frame in recording.stream(7)] == [0, 1, 2, 3]
    assert [(stream.stream_id, stream.epochs) for stream in recording.streams()] == [(7, [1]), (10_000, [1, 2])]
    assert [frame.seq for frame in recording.stream(10_000).of_epoch(2)] == [0, 1, 2]
    assert recording.stream(10_000).frame(1).epoch == 2
    with pytest.raises(RecordingError):
        recording.stream(10_000).frame(1, epoch=1)
    assert "damage" in repr(recording)


def test_a_damaged_index_is_named_and_does_not_stop_the_recorder_from_knowing_what_is_there(tmp_path):
    record(tmp_path, range(3))
    record(tmp_path, [3])
    index(segment(tmp_path, 2)).write_bytes(b"PAR1 no more")
    record(tmp_path, range(2, 6))
    assert_damaged(tmp_path, index(segment(tmp_path, 2)), "the index is damaged")
    assert [frame.seq for frame in Recording(tmp_path, skip_damaged=True)] == [0, 1, 2, 4, 5]
    index(segment(tmp_path, 2)).unlink()
    assert [frame.seq for frame in Recording(tmp_path)] == list(range(6))


# --- a segment that cannot be sealed ------------------------------------------------------------------------------------


@pytest.fixture
def full_disk_at():
    def arm(point: str, skip: int = 0) -> None:
        failpoints.arm(point, "error", error_number=errno.ENOSPC, skip=skip)

    yield arm
    failpoints.disarm()


@pytest.mark.parametrize("point", ["recorder.before_seal", "recorder.after_seal", "recorder.before_index_rename"])
def test_a_segment_that_cannot_be_sealed_at_the_end_is_an_error_in_words(tmp_path, full_disk_at, point):
    full_disk_at(point)
    consumer = PlayedConsumer([camera_frame(seq) for seq in range(3)])
    session = RecordingSession([consumer], tmp_path, source="dead")
    assert consumer.finished.wait(WATCHDOG_S)
    with pytest.raises(RecordingError, match=r"could not be sealed.*No space left") as caught:
        session.close()
    assert caught.value.path == str(segment(tmp_path, 1))
    assert session.failure is caught.value
    session.close()
    assert [frame.seq for frame in Recording(tmp_path)] == [0, 1, 2], "its frames can be read all the same"
    record(tmp_path, [3])
    assert [frame.seq for frame in Recording(tmp_path)] == [0, 1, 2, 3]
    assert index(segment(tmp_path, 1)).exists()


def test_an_error_of_the_body_is_not_replaced_by_that_of_the_end(tmp_path, full_disk_at):
    full_disk_at("recorder.before_seal")
    consumer = PlayedConsumer([camera_frame(0)])

    def fail_in_the_body() -> None:
        with RecordingSession([consumer], tmp_path, source="dead") as session:
            assert consumer.finished.wait(WATCHDOG_S)
            sessions.append(session)
            raise ZeroDivisionError

    sessions: list[RecordingSession] = []
    with pytest.raises(ZeroDivisionError):
        fail_in_the_body()
    assert isinstance(sessions[0].failure, RecordingError)


def test_a_segment_that_could_not_be_sealed_for_a_while_is_sealed_later(tmp_path, full_disk_at):
    full_disk_at("recorder.before_seal", skip=1)
    session = record(tmp_path, range(4), settings=SEGMENT_OF_ONE)
    assert session.failure is None
    assert session.stats.segments_sealed == 4
    assert Recording(tmp_path).verify().frames == 4
    assert all(index(path).exists() for path in tmp_path.rglob("*.mcap"))


def test_gaps_that_the_disk_does_not_take_at_the_end_are_an_error(tmp_path, full_disk_at):
    full_disk_at("recorder.before_chunk", skip=1)
    consumer = PlayedConsumer([camera_frame(seq) for seq in range(2)])
    session = RecordingSession([consumer], tmp_path, source="dead", settings=ONE_CHUNK_A_FRAME)
    assert consumer.finished.wait(WATCHDOG_S)
    while session.stats.frames_dropped_disk + session.stats.frames_recorded < 2:
        session.wait(0.01)
    full_disk_at("recorder.before_chunk")
    with pytest.raises(RecordingError, match="does not take the gaps at its end, seq 1 to 1"):
        session.close()
