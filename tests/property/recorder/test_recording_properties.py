"""Whatever is recorded comes back, and whatever happens to a file, no frame comes back wrong."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensor_pool.errors import RecordingError
from tensor_pool.recorder import RecorderSettings, Recording, RecordingSession
from tensor_pool.recorder.index import index_path
from tensor_pool.recorder.losses import LossTracker
from tensor_pool.testing.playback import Lost, NewEpoch, PlayedConsumer, played_frame

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64", "bool"]
U64 = st.integers(0, 2**64 - 1)


def record(path: Path, script, *, chunk_bytes=100):
    consumer = PlayedConsumer(script)
    with RecordingSession([consumer], path, source="f00d", settings=RecorderSettings(chunk_bytes=chunk_bytes)):
        assert consumer.finished.wait(20)


@st.composite
def tensors(draw):
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=8, min_side=0, max_side=4))
    array = draw(hnp.arrays(draw(st.sampled_from(DTYPES)), shape))
    return np.asfortranarray(array) if draw(st.booleans()) else array


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(tensors(), U64, st.none() | U64, st.integers(0, 2**32 - 1), U64), min_size=1, max_size=4))
def test_every_tensor_comes_back_as_it_was(frames):
    script = [
        played_frame(array, seq, timestamp_ns=time, publish_timestamp_ns=published, meta_version=version, trace_id=trace)
        for seq, (array, time, published, version, trace) in enumerate(frames)
    ]
    with tempfile.TemporaryDirectory() as name:
        record(Path(name), script)
        recording = Recording(name)
        recording.verify()
        for sent, got in zip(script, recording, strict=True):
            for field in (
                "key",
                "timestamp_ns",
                "publish_timestamp_ns",
                "meta_version",
                "trace_id",
                "dtype",
                "major_order",
                "shape",
                "strides",
            ):
                assert getattr(sent, field) == getattr(got, field)
            assert sent.array.tobytes() == got.array.tobytes()
            assert got.offset % 64 == 0


STEPS = st.lists(
    st.one_of(
        st.just("frame"),
        st.builds(Lost, st.integers(1, 5), st.sampled_from(["gap", "late", "invalid"])),
        st.just("epoch"),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(0, 50))
def test_frames_and_gaps_together_are_every_seq_the_consumer_answers_for(steps, first_seq):
    script, seq, epoch, expected = [], first_seq, 1, {}
    for step in steps:
        if step == "frame":
            script.append(played_frame(np.zeros(1, np.uint8), seq, epoch=epoch))
            expected.setdefault(epoch, []).append(seq)
            seq += 1
        elif step == "epoch":
            epoch, seq = epoch + 1, 0
            script.append(NewEpoch(epoch))
        else:
            script.append(step)
            expected.setdefault(epoch, []).extend(range(seq, seq + step.frames))
            seq += step.frames
    consumer, tracker, found = PlayedConsumer(script, first_seq=first_seq), LossTracker(), {}
    consumer.close()

    def note(gaps):
        for key, gap in gaps:
            found.setdefault(key, []).extend(range(gap.first_seq, gap.last_seq + 1))

    while (frame := consumer.read(0)) is not None:
        note(tracker.arrived(frame.epoch, frame.seq, (*consumer.earlier_stats, consumer.stats)))
        found.setdefault(frame.epoch, []).append(frame.seq)
    note(tracker.ended((*consumer.earlier_stats, consumer.stats)))
    first_epoch_with_frames = next((frame.epoch for frame in script if not isinstance(frame, (Lost, NewEpoch))), None)
    if first_epoch_with_frames is None:
        first_epoch_with_frames = epoch
    assert found == {key: seqs for key, seqs in expected.items() if key >= first_epoch_with_frames}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A sealed segment of five small frames and two gaps, its index, and what its frames are."""
    root = tmp_path_factory.mktemp("small")
    arrays = {seq: np.full((3, 8), seq, np.uint16) for seq in (0, 1, 3, 4, 7)}
    script = [step for seq in range(8) for step in ([played_frame(arrays[seq], seq)] if seq in arrays else [Lost(1)])]
    record(root, script, chunk_bytes=1)
    (path,) = root.rglob("*.mcap")
    return path.read_bytes(), index_path(path).read_bytes(), arrays


def frames_of(root: Path, data: bytes, index: bytes | None) -> dict[int, np.ndarray]:
    """The frames of a segment with these bytes; verified."""
    path = root / "000001.mcap"
    path.write_bytes(data)
    index_path(path).unlink(missing_ok=True)
    if index is not None:
        index_path(path).write_bytes(index)
    with Recording(root) as recording:
        frames = {frame.seq: frame.array.copy() for frame in recording}
        recording.verify()
    return frames


def assert_names_the_file_and_a_row(error: RecordingError, root: Path, name: str = "000001.") -> None:
    assert error.path.startswith(str(root / name))
    assert error.path in str(error)
    assert error.row is not None
    assert f"row {error.row}" in str(error)


def test_cut_anywhere_an_open_segment_gives_its_first_frames_or_an_error_that_names_it(small, tmp_path):
    data, _, arrays = small
    counts = []
    for size in range(len(data)):
        try:
            frames = frames_of(tmp_path, data[:size], None)
        except RecordingError as error:
            assert_names_the_file_and_a_row(error, tmp_path)
            continue
        assert list(frames) == list(arrays)[: len(frames)]
        assert all(np.array_equal(frames[seq], arrays[seq]) for seq in frames)
        counts.append(len(frames))
    assert counts == sorted(counts)
    assert set(counts) == set(range(len(arrays) + 1)), "each frame appears as soon as its chunk is whole"
    assert len(counts) > len(data) * 0.8, "cut tails are recovered, not refused"


def test_cut_anywhere_a_sealed_segment_is_refused_with_file_and_row(small, tmp_path):
    data, index, arrays = small
    rows = set()
    for size in range(0, len(data), 3):
        with pytest.raises(RecordingError) as caught:
            frames_of(tmp_path, data[:size], index)
        assert_names_the_file_and_a_row(caught.value, tmp_path)
        rows.add(caught.value.row)
    assert rows == set(range(len(arrays) + 1)), "the row is the first that is cut"


def test_any_changed_byte_of_a_segment_is_found_with_or_without_its_index(small, tmp_path):
    data, index, arrays = small
    chunks = range(data.index(b"monotonic_offset_ns"), data.rindex(b"tensor_pool.Gap"))
    # the schemas are long and one checksum covers them: every tenth byte of those
    for position in sorted({*chunks, *range(0, len(data), 10), *range(64), *range(len(data) - 400, len(data))}):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        with pytest.raises(RecordingError) as caught:
            frames_of(tmp_path, bytes(changed), (index, None)[position // 8 % 2])
        assert_names_the_file_and_a_row(caught.value, tmp_path)
        assert caught.value.row is not None
        assert 0 <= caught.value.row <= len(arrays)


def test_any_changed_byte_of_a_sealed_segment_is_found_when_its_frames_are_read(small, tmp_path):
    data, index, arrays = small
    path = tmp_path / "000001.mcap"
    path.write_bytes(data)
    index_path(path).write_bytes(index)
    rows = pq.read_table(path.with_suffix(".index.parquet"), partitioning=None).to_pylist()[: len(arrays)]
    begin, ends = rows[0]["offset"] - rows[0]["head_length"], [row["offset"] + row["length"] for row in rows]

    def reading_finds_it(recording: Recording, row: int, named: int) -> None:
        with pytest.raises(RecordingError) as caught:
            recording[row]
        assert (caught.value.path, caught.value.row) == (str(path), named)
        assert_names_the_file_and_a_row(caught.value, tmp_path)

    with Recording(tmp_path) as opened, path.open("r+b", buffering=0) as file:
        assert len(list(opened)) == len(arrays)
        # beginning and end are compared when a segment is opened; the schemas in them are long and one checksum covers them
        for position in (*range(0, begin, 20), *range(begin, ends[-1]), *range(ends[-1], len(data), 7)):
            os.pwrite(file.fileno(), bytes((data[position] ^ 1 << position % 8,)), position)
            if position < begin:
                reading_finds_it(Recording(tmp_path), 4, 0)
            elif position >= ends[-1]:
                reading_finds_it(Recording(tmp_path), 0, len(arrays))
            else:
                row = bisect_right(ends, position)
                reading_finds_it(opened, row, row)
            os.pwrite(file.fileno(), data[position : position + 1], position)
        assert len(list(Recording(tmp_path))) == len(arrays)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_index_is_refused_or_says_the_same(small, tmp_path, data):
    segment, index, arrays = small
    position = data.draw(st.integers(0, len(index) - 1))
    changed = bytearray(index)
    changed[position] ^= data.draw(st.integers(1, 255))
    try:
        frames = frames_of(tmp_path, segment, bytes(changed))
    except RecordingError as error:
        assert_names_the_file_and_a_row(error, tmp_path, "000001.index.parquet")
        return
    assert {seq: frame.tobytes() for seq, frame in frames.items()} == {seq: array.tobytes() for seq, array in arrays.items()}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.integers(0, 5000))
def test_a_segment_with_anything_behind_it_is_refused_or_gives_only_its_own_frames(small, tmp_path, tail, size):
    data, _, arrays = small
    try:
        frames = frames_of(tmp_path, data[: min(size, len(data))] + tail, None)
    except RecordingError as error:
        assert_names_the_file_and_a_row(error, tmp_path)
        return
    assert all(np.array_equal(frames[seq], arrays[seq]) for seq in frames)
