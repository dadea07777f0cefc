"""What goes in comes out: frames, gaps, epochs, segments, and what other tools see of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory

from tensor_pool.errors import ClosedError, ConfigError, MediaDriverTimeoutError, RecordingError
from tensor_pool.recorder import GapRow, RecorderSettings, Recording, RecordingSession
from tensor_pool.stamp import carries_seq, stamp_seq
from tensor_pool.testing.playback import Lost, NewEpoch, PlayedConsumer, played_frame

SETTINGS = RecorderSettings(segment_bytes=100_000)


def camera_frame(seq: int, **fields: object):
    image = np.random.default_rng(seq).integers(0, 60_000, (32, 48), dtype=np.uint16)
    stamp_seq(image, seq)
    return played_frame(image, seq, **fields)


def record(path: Path, script, *, settings=None, stream_id=10_000, names=None, **options):
    consumer = PlayedConsumer(script, stream_id=stream_id, **options)
    session = RecordingSession([consumer], path, source="ab12", settings=settings, names=names)
    assert consumer.finished.wait(20)
    session.close()
    assert consumer.closed.is_set()
    return session.stats


def test_frames_come_back_by_index_and_by_seq(tmp_path):
    stats = record(tmp_path, [camera_frame(seq) for seq in range(100)], settings=SETTINGS, names={10_000: "camera-1"})
    assert (stats.frames_recorded, stats.frames_lost, stats.frames_dropped_disk, stats.frames_waiting) == (100, 0, 0, 0)
    with Recording(tmp_path) as recording:
        assert len(recording) == 100
        assert [frame.seq for frame in recording] == list(range(100))
        assert recording[-1].seq == 99
        assert [frame.seq for frame in recording[97:]] == [97, 98, 99]
        frame = recording.frame(42, stream="camera-1")
        assert (frame.key, frame.name, frame.source) == ((10_000, 1, 42), "camera-1", "ab12")
        assert carries_seq(frame.array, 42)
        assert np.array_equal(frame.array, camera_frame(42).array)
        with pytest.raises(KeyError, match="100"):
            recording.frame(100)
        with pytest.raises(IndexError):
            recording[100]
    assert stats.segments_sealed == len(list(tmp_path.rglob("*.mcap"))) == len(list(tmp_path.rglob("*.index.parquet"))) > 1


def test_arrays_are_read_only_views_of_the_mapped_file(tmp_path):
    record(tmp_path, [camera_frame(seq) for seq in range(3)])
    recording = Recording(tmp_path)
    first, again = recording[1].array, recording[1].array
    assert np.shares_memory(first, again)
    assert not first.flags.writeable
    assert not first.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1
    recording.close()
    assert carries_seq(first, 1), "the array keeps its mapping"


def test_every_payload_lies_at_a_multiple_of_64_bytes_where_the_index_says(tmp_path):
    record(tmp_path, [camera_frame(seq) for seq in range(40)], settings=SETTINGS)
    for row in (row for path in tmp_path.rglob("*.parquet") for row in pq.read_table(path, partitioning=None).to_pylist()):
        data = (tmp_path / row["file"]).read_bytes()[row["offset"] : row["offset"] + row["length"]]
        assert row["offset"] % 64 == 0
        assert np.array_equal(np.frombuffer(data, row["dtype"]).reshape(row["shape"]), camera_frame(row["seq"]).array)


def test_the_mcap_package_reads_a_sealed_segment(tmp_path):
    record(tmp_path, [camera_frame(0), Lost(3), camera_frame(4, publish_timestamp_ns=77, trace_id=2**63, meta_version=5)])
    (path,) = tmp_path.rglob("*.mcap")
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        assert summary.statistics.channel_message_counts == {1: 2, 2: 1}
        messages = [(schema.name, channel.topic, message) for schema, channel, _, message in reader.iter_decoded_messages()]
    images = [message for name, _, message in messages if name == "foxglove.RawImage"]
    assert [image.seq for image in images] == [0, 4]
    for image in images:
        pixels = np.frombuffer(image.data, np.uint16).reshape(image.height, image.width)
        assert (image.encoding, image.step, list(image.shape)) == ("mono16", 96, [32, 48])
        assert np.array_equal(pixels, camera_frame(image.seq).array)
    assert (images[1].publish_timestamp_ns, images[1].trace_id, images[1].meta_version) == (77, 2**63, 5)
    assert images[0].timestamp.seconds == 1
    ((_, topic, gap),) = [entry for entry in messages if entry[0] == "tensor_pool.Gap"]
    assert (topic, gap.first_seq, gap.last_seq, gap.cause) == ("/stream-10000/gaps", 1, 3, "gap")


def test_the_picture_schema_keeps_foxgloves_field_numbers(tmp_path):
    record(tmp_path, [camera_frame(0)])
    (path,) = tmp_path.rglob("*.mcap")
    with path.open("rb") as file:
        (message,) = [entry[3] for entry in make_reader(file, decoder_factories=[DecoderFactory()]).iter_decoded_messages()]
    numbers = {field.name: field.number for field in message.DESCRIPTOR.fields}
    foxglove = {"timestamp": 1, "width": 2, "height": 3, "encoding": 4, "step": 5, "data": 6, "frame_id": 7}
    assert foxglove.items() <= numbers.items()
    assert all(number > 1000 for name, number in numbers.items() if name not in foxglove)


@pytest.mark.parametrize(
    ("shape", "dtype", "schema", "encoding"),
    [
        ((4, 6), "uint8", "foxglove.RawImage", "mono8"),
        ((4, 6, 3), "uint8", "foxglove.RawImage", "rgb8"),
        ((4, 6, 4), "uint8", "foxglove.RawImage", "rgba8"),
        ((4, 6), "uint16", "foxglove.RawImage", "mono16"),
        ((4, 6), "float32", "foxglove.RawImage", "32FC1"),
        ((4, 6, 1), "uint8", "tensor_pool.Tensor", None),
        ((4, 6, 3), "uint16", "tensor_pool.Tensor", None),
        ((4, 6), "int16", "tensor_pool.Tensor", None),
        ((24,), "uint8", "tensor_pool.Tensor", None),
        ((0, 6), "uint8", "tensor_pool.Tensor", None),
    ],
)
def test_what_viewers_can_show_is_an_image_and_the_rest_a_tensor(tmp_path, shape, dtype, schema, encoding):
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    record(tmp_path, [played_frame(array, 0)])
    (path,) = tmp_path.rglob("*.mcap")
    with path.open("rb") as file:
        ((found, _, _, message),) = make_reader(file, decoder_factories=[DecoderFactory()]).iter_decoded_messages()
    assert found.name == schema
    assert getattr(message, "encoding", None) == encoding
    assert message.data == array.tobytes()
    assert np.array_equal(Recording(tmp_path)[0].array, array)


def test_a_stream_that_mixes_pictures_and_other_tensors_goes_on_as_tensors(tmp_path):
    picture, vector = np.ones((4, 4), np.uint8), np.ones(7)
    arrays = [picture, picture, vector, picture, vector]
    record(tmp_path, [played_frame(array, seq) for seq, array in enumerate(arrays)], settings=RecorderSettings(chunk_bytes=1))
    assert [frame.shape for frame in Recording(tmp_path)] == [array.shape for array in arrays]
    assert len(list(tmp_path.rglob("*.mcap"))) <= 2


def test_losses_become_gap_rows_with_the_consumers_cause(tmp_path):
    script = [
        Lost(2),
        camera_frame(2),
        Lost(1, "late"),
        camera_frame(4),
        Lost(1, "gap"),
        Lost(1, "invalid"),
        camera_frame(7),
        Lost(5, "late"),
    ]
    stats = record(tmp_path, script)
    gaps = Recording(tmp_path).gaps()
    assert [(gap.first_seq, gap.last_seq, gap.cause) for gap in gaps] == [
        (0, 1, "gap"),
        (3, 3, "late"),
        (5, 6, "gap+invalid"),
        (8, 12, "late"),
    ]
    assert (stats.frames_recorded, stats.frames_lost, stats.gaps_recorded) == (3, 10, 4)


def test_each_epoch_has_its_directory_and_its_own_seqs(tmp_path):
    script = [camera_frame(0), camera_frame(1), Lost(2), NewEpoch(7), Lost(1), camera_frame(1, epoch=7), camera_frame(2, epoch=7)]
    record(tmp_path, script, names={10_000: "camera-1"})
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.mcap")) == [
        "source=ab12/stream=10000/epoch=1/000001.mcap",
        "source=ab12/stream=10000/epoch=7/000001.mcap",
    ]
    stream = Recording(tmp_path).stream("camera-1")
    assert stream.epochs == [1, 7]
    assert [(frame.epoch, frame.seq) for frame in stream] == [(1, 0), (1, 1), (7, 1), (7, 2)]
    assert stream.frame(1).epoch == 7
    assert stream.frame(1, epoch=1).epoch == 1
    assert [gap[:2] for gap in stream.of_epoch(1).gaps()] == [(2, 3)]
    assert [gap[:2] for gap in stream.of_epoch(7).gaps()] == [(0, 0)]


def test_several_streams_share_a_recording(tmp_path):
    consumers = [
        PlayedConsumer([camera_frame(seq, stream_id=id_) for seq in range(count)], stream_id=id_) for id_, count in ((5, 3), (6, 4))
    ]
    with RecordingSession(consumers, tmp_path, source=99, names={5: "left", 6: "right"}) as session:
        assert session.streams == [5, 6]
        assert all(consumer.finished.wait(20) for consumer in consumers)
    recording = Recording(tmp_path)
    assert [(stream.name, len(stream)) for stream in recording.streams()] == [("left", 3), ("right", 4)]
    assert recording.frame(3, stream=6).seq == 3
    with pytest.raises(KeyError, match="say which one"):
        recording.frame(0)
    with pytest.raises(KeyError, match="left"):
        recording.stream("middle")


def test_a_full_queue_drops_and_counts_and_says_so_in_a_gap(tmp_path, monkeypatch):
    from tensor_pool.recorder.queue import RecordQueue

    fits = iter([True, False, False, True])
    take = RecordQueue.offer
    monkeypatch.setattr(RecordQueue, "offer", lambda queue, item: next(fits) and take(queue, item))
    stats = record(tmp_path, [camera_frame(seq) for seq in range(4)])
    assert (stats.frames_recorded, stats.frames_dropped_disk) == (2, 2)
    recording = Recording(tmp_path)
    assert [frame.seq for frame in recording] == [0, 3]
    assert [gap[:3] for gap in recording.gaps()] == [(1, 2, "disk")]


def test_the_queue_is_bounded_in_frames_and_in_bytes():
    from tensor_pool.recorder.queue import FRAME_OVERHEAD_BYTES, QueuedFrame, QueuedGap, RecordQueue

    item = QueuedFrame(camera_frame(0), 0)
    by_frames, by_bytes = (
        RecordQueue(frames=2, bytes_=1 << 30),
        RecordQueue(frames=99, bytes_=3 * (item.frame.nbytes + FRAME_OVERHEAD_BYTES)),
    )
    assert [by_frames.offer(item) for _ in range(3)] == [True, True, False]
    assert [by_bytes.offer(item) for _ in range(4)] == [True, True, True, False]
    for seq in range(1000):
        by_bytes.put(QueuedGap(10_000, 1, GapRow(seq, seq, "disk")))
    assert len(by_bytes.take(0, largest_bytes=1 << 30, largest_items=99)) == 4, "a run of gaps is one gap"
    assert by_bytes.offer(item), "what was taken makes room"
    assert RecordQueue(frames=1, bytes_=1).offer(item), "one frame always fits"


def test_a_recorder_that_comes_back_goes_on_behind_the_last_segment(tmp_path):
    record(tmp_path, [camera_frame(seq) for seq in range(5)])
    stats = record(tmp_path, [camera_frame(seq) for seq in (4, 9, 10)], first_seq=4)
    recording = Recording(tmp_path)
    assert [frame.seq for frame in recording] == [0, 1, 2, 3, 4, 9, 10]
    assert stats.frames_dropped_duplicate == 1
    assert [gap[:3] for gap in recording.gaps()] == [(5, 8, "gap")]
    record(tmp_path, [camera_frame(20)], first_seq=20)
    assert [gap[:3] for gap in Recording(tmp_path).gaps()] == [(5, 8, "gap"), (11, 19, "recorder")]
    assert len(list(tmp_path.rglob("*.mcap"))) == 3


def test_a_second_recorder_in_the_same_place_is_refused(tmp_path):
    first = PlayedConsumer([camera_frame(0)])
    with RecordingSession([first], tmp_path, source="ab12") as session:
        assert first.finished.wait(20)
        while session.stats.frames_recorded == 0:
            session.wait(0.01)
        second = PlayedConsumer([camera_frame(0)])
        with RecordingSession([second], tmp_path, source="ab12") as other, pytest.raises(RecordingError, match="another recorder"):
            other.wait(20)
    assert len(Recording(tmp_path)) == 1


def test_a_consumer_that_fails_ends_the_recording_with_its_error_and_the_frames_stay(tmp_path):
    consumer = PlayedConsumer([camera_frame(0)], error=MediaDriverTimeoutError("the media driver is gone"))
    session = RecordingSession([consumer], tmp_path, source="ab12")
    with pytest.raises(MediaDriverTimeoutError):
        session.wait(20)
    assert isinstance(session.failure, MediaDriverTimeoutError)
    session.close()
    assert [frame.seq for frame in Recording(tmp_path)] == [0]


def test_closing_twice_and_closing_consumers_elsewhere_is_quiet(tmp_path):
    consumer = PlayedConsumer([camera_frame(0)], error=ClosedError("closed"))
    session = RecordingSession([consumer], tmp_path, source="ab12")
    assert consumer.finished.wait(20)
    session.close()
    session.close()


def test_segments_are_sealed_by_age_even_when_nothing_arrives(tmp_path):
    consumer = PlayedConsumer([camera_frame(0)])
    with RecordingSession([consumer], tmp_path, source="ab12", settings=RecorderSettings(segment_seconds=0.01)) as session:
        for _ in range(2000):
            if session.stats.segments_sealed:
                break
            session.wait(0.01)
        assert session.stats.segments_sealed == 1
        assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_recording_that_grows_can_be_read(tmp_path):
    consumer = PlayedConsumer([camera_frame(seq) for seq in range(30)])
    with RecordingSession([consumer], tmp_path, source="ab12") as session:
        assert consumer.finished.wait(20)
        while session.stats.frames_recorded < 30:
            session.wait(0.01)
        growing = Recording(tmp_path)
        assert [frame.seq for frame in growing] == list(range(30))
        assert all(carries_seq(frame.array, frame.seq) for frame in growing)
        assert growing.verify().frames == 30


def test_an_empty_recording_is_empty(tmp_path):
    record(tmp_path, [])
    recording = Recording(tmp_path)
    assert (len(recording), recording.streams(), recording.gaps(), recording.verify().segments) == (0, [], [], 0)


def test_names_with_odd_characters_stay_inside_the_recording(tmp_path):
    consumer = PlayedConsumer([camera_frame(0)])
    with RecordingSession([consumer], tmp_path / "r", source="../../x y", names={10_000: "../ä"}):
        assert consumer.finished.wait(20)
    (path,) = tmp_path.rglob("*.mcap")
    assert path.is_relative_to(tmp_path / "r")
    assert Recording(tmp_path / "r")[0].name == "../ä"


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="segment_bytes"):
        RecorderSettings(segment_bytes=0)


def test_what_is_not_a_recording_is_refused_by_name(tmp_path):
    with pytest.raises(RecordingError, match="nowhere"):
        Recording(tmp_path / "nowhere")
    (tmp_path / "notes.json").write_text(json.dumps({}))
    with pytest.raises(RecordingError, match="no segments"):
        Recording(tmp_path)
