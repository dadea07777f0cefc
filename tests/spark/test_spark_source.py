"""Spark reads recordings: rows that refer to pixels, and functions on those pixels in workers of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import PySparkException

from tensor_pool.recorder import Recording
from tensor_pool.spark import map_frames
from tensor_pool.stamp import carries_seq

pytestmark = pytest.mark.spark


@pytest.fixture
def frames(spark, recorded):
    return spark.read.format("tensor_pool").load(str(recorded))


def test_there_is_one_row_a_frame_and_it_says_where_the_frame_lies(frames, recorded):
    rows = {(row.stream, row.epoch, row.seq): row for row in frames.collect()}
    recording = Recording(recorded)
    assert frames.count() == len(rows) == len(recording) == 370
    for frame in recording:
        row = rows[frame.key]
        assert (row.file, row.row, row.offset, row.length, row.crc32c) == (
            str(frame.path),
            frame.row,
            frame.offset,
            frame.nbytes,
            frame.crc32c,
        )
        assert (row.source, row.name, row.dtype, row.shape) == (frame.source, frame.name, str(frame.array.dtype), list(frame.shape))
        assert (row.kind, row.order, row.strides, row.meta_version) == ("frame", "row", None, 0)
        assert (row.timestamp_ns, row.publish_timestamp_ns) == (frame.timestamp_ns, frame.publish_timestamp_ns)
        assert row.recorded_at.timestamp() == pytest.approx(row.recorded_ns / 1e9, abs=1e-5)
        with open(row.file, "rb") as file:
            file.seek(row.offset)
            assert file.read(row.length) == frame.array.tobytes()


def test_gaps_are_rows_where_they_are_asked_for(spark, recorded):
    frames = spark.read.format("tensor_pool").option("gaps", "true").load(str(recorded))
    (gap,) = frames.where("kind = 'gap'").collect()
    assert (gap.stream, gap.epoch, gap.seq, gap.last_seq, gap.cause, gap.row, gap.offset) == (10_000, 1, 100, 103, "late", None, None)
    assert frames.count() == 371
    assert map_frames(frames, lambda frame: (frame.seq,), "seq long").count() == 370


def test_partitions_follow_the_segments(frames, recorded):
    assert frames.rdd.getNumPartitions() == len(list(recorded.rglob("*.mcap"))) > 3


def test_map_frames_gives_numpy_to_a_function_in_workers_of_their_own(frames, recorded):
    driver = os.getpid()

    def measure(frame):
        array = frame.array
        assert not array.flags.writeable
        assert not array.flags.owndata
        return {
            "stream": frame.stream_id,
            "epoch": frame.epoch,
            "seq": frame.seq,
            "mean": array.mean(),
            "std": array.std(),
            "carries": bool(carries_seq(array, frame.seq)) if array.ndim == 2 else None,
            "pid": os.getpid(),
        }

    schema = "stream long, epoch long, seq long, mean double, std double, carries boolean, pid long"
    rows = map_frames(frames, measure, schema).collect()
    measured = {(row.stream, row.epoch, row.seq): row for row in rows}
    assert len(rows) == len(measured) == 370
    for frame in Recording(recorded):
        row = measured[frame.key]
        assert (row.mean, row.std) == (frame.array.mean(), frame.array.std())
        assert row.carries in (True, None)
    assert sum(row.carries is True for row in rows) == 350
    assert driver not in {row.pid for row in rows}


def test_map_frames_takes_tuples_leaves_out_none_and_feeds_sql(frames, spark):
    even = map_frames(
        frames.where("stream = 7"),
        lambda frame: (frame.seq, float(frame.array.sum())) if frame.seq % 2 == 0 else None,
        "seq long, total double",
    )
    even.createOrReplaceTempView("even")
    assert spark.sql("select count(*), max(total) from even").first()[:] == (10, 18 * 10.0)


def test_filters_choose_rows_with_and_without_the_source_doing_it(spark, recorded):
    chosen = "stream = 10000 and epoch = 2 and seq >= 10 and seq < 15 and source in ('c0ffee', 'tea')"
    plain = spark.read.format("tensor_pool").load(str(recorded)).where(chosen)
    pushed = spark.read.format("tensor_pool").option("pushdown", "true").load(str(recorded)).where(chosen)
    assert sorted(row.seq for row in plain.collect()) == sorted(row.seq for row in pushed.collect()) == [10, 11, 12, 13, 14]
    in_spark, in_source = (frames._jdf.queryExecution().executedPlan().toString() for frames in (plain, pushed))
    assert " Filter (" in in_spark
    assert " Filter (" not in in_source
    assert pushed.rdd.getNumPartitions() < plain.rdd.getNumPartitions()
    odd = spark.read.format("tensor_pool").option("pushdown", "true").load(str(recorded)).where("seq % 2 = 1 and stream = 7")
    assert odd.count() == 10


def test_where_there_is_no_segment_there_are_no_rows(spark, recorded, tmp_path):
    assert spark.read.format("tensor_pool").load(str(tmp_path)).count() == 0
    assert spark.read.format("tensor_pool").option("pushdown", "true").load(str(recorded)).where("stream = 99").count() == 0


def test_the_format_is_found_without_registering(spark, recorded):
    assert spark.newSession().read.format("tensor_pool").load(str(recorded)).where("stream = 7").count() == 20


def test_an_error_in_the_function_names_file_and_row(frames):
    def fail(frame):
        raise ZeroDivisionError("mine")

    with pytest.raises(PySparkException, match=r"mine[\s\S]*000001\.mcap row \d+ \(seq \d+\)"):
        map_frames(frames.where("stream = 7"), fail, "seq long").collect()
    with pytest.raises(PySparkException, match="expected a mapping or tuple of seq"):
        map_frames(frames.where("stream = 7"), lambda frame: frame.seq, "seq long").collect()


def test_a_value_of_the_wrong_type_names_its_column_and_where_it_came_from(frames):
    def odd(frame):
        return frame.seq, "many" if frame.seq == 13 else 0.5

    with pytest.raises(PySparkException, match=r"in the column mean \(double\)[\s\S]*000001\.mcap row 13 \(seq 13\)"):
        map_frames(frames.where("stream = 7"), odd, "seq long, mean double").collect()


@pytest.mark.parametrize("part", ["preamble", "head", "summary", "index"])
def test_damage_outside_of_the_pixels_is_found_by_a_job_too(spark, recorded, tmp_path, part):
    copy = tmp_path / "copy"
    shutil.copytree(recorded / "source=c0ffee" / "stream=7", copy)
    path, frames = Recording(copy)[6].path, spark.read.format("tensor_pool").load(str(copy))
    row = frames.where("seq = 6").first()
    # a job reads the rows before the pixels, so the index is damaged in what it says to both
    index = path.with_suffix(".index.parquet")
    damaged, position, named = {
        "preamble": (path, 200, "row 0: its first bytes"),
        "head": (path, row.offset - 40, "row 6: the header of seq 6"),
        "summary": (path, path.stat().st_size - 60, "row 20: its last bytes"),
        "index": (index, index.read_bytes().rindex(b"tail_crc32c") + 15, "row 0: the index is damaged"),
    }[part]
    data = bytearray(damaged.read_bytes())
    data[position] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(PySparkException, match=f"{damaged} {named}"):
        map_frames(frames, lambda frame: (frame.seq,), "seq long").collect()


def test_a_recording_with_a_segment_missing_is_not_counted_as_if_it_were_whole(spark, recorded, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(recorded, copy)
    gone = sorted(copy.glob("source=*/stream=10000/epoch=1/*"))[2:4]
    for path in gone:
        path.unlink()
    frames = spark.read.format("tensor_pool").option("pushdown", "true").load(str(copy))
    with pytest.raises(PySparkException, match=r"000002\.mcap row 0: the segment is missing"):
        frames.count()
    assert frames.where("stream = 7").count() == 20


def test_directories_are_found_by_url_too(spark, recorded, tmp_path):
    copy = tmp_path / "a b%20c"
    shutil.copytree(recorded / "source=c0ffee" / "stream=7", copy)
    for url in (str(copy), copy.as_uri(), f"file:{copy.as_uri().removeprefix('file://')}", copy.as_uri().replace("///", "//localhost/")):
        assert spark.read.format("tensor_pool").load(url).count() == 20, url
    for url in ("file://elsewhere/r", f"{copy.as_uri()}#1"):
        with pytest.raises(PySparkException, match="is not the URL of a local directory"):
            spark.read.format("tensor_pool").load(url)


def test_a_damaged_recording_is_an_error_that_names_file_and_row(spark, recorded, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(recorded / "source=c0ffee" / "stream=7", copy)
    frame = Recording(copy)[6]
    with frame.path.open("r+b") as file:
        file.seek(frame.offset)
        file.write(b"\xff")
    frames = spark.read.format("tensor_pool").load(str(copy))
    with pytest.raises(PySparkException, match=rf"{frame.path} row 6: the pixels of seq 6 do not match their crc32c"):
        map_frames(frames, lambda frame: (frame.seq,), "seq long").collect()
    assert map_frames(frames, lambda frame: (frame.seq,), "seq long", check=False).count() == 20
    os.truncate(frame.path, frame.offset + 3)
    with pytest.raises(PySparkException, match=rf"{frame.path} row 6"):
        spark.read.format("tensor_pool").load(str(copy)).collect()


def test_what_cannot_be_read_is_said_in_words(spark, frames, recorded, tmp_path):
    with pytest.raises(PySparkException, match="does not exist"):
        spark.read.format("tensor_pool").load(str(tmp_path / "nowhere")).collect()
    with pytest.raises(PySparkException, match="did you mean 'pushdown'"):
        spark.read.format("tensor_pool").option("pushdwn", "true").load(str(recorded)).collect()
    with pytest.raises(PySparkException, match="it is true or false"):
        spark.read.format("tensor_pool").option("gaps", "some").load(str(recorded)).collect()
    with pytest.raises(PySparkException, match="needs a directory"):
        spark.read.format("tensor_pool").load().collect()
    with pytest.raises(ValueError, match="missing: file"):
        map_frames(frames.drop("file"), lambda frame: None, "seq long")


def test_a_recording_that_grows_is_read_as_it_is(spark, tmp_path):
    from tensor_pool.recorder import RecordingSession
    from tensor_pool.testing.playback import PlayedConsumer, played_frame

    consumer = PlayedConsumer([played_frame(np.full(64, seq, np.uint8), seq) for seq in range(12)])
    with RecordingSession([consumer], tmp_path, source="live") as session:
        assert consumer.finished.wait(20)
        while session.stats.frames_recorded < 12:
            session.wait(0.01)
        assert not list(tmp_path.rglob("*.parquet"))
        frames = spark.read.format("tensor_pool").load(str(tmp_path))
        assert map_frames(frames, lambda frame: (int(frame.array.sum()),), "total long").groupBy().sum("total").first()[0] == 64 * 66


PROGRAM = """
import sys
from tensor_pool.errors import ConfigError
from tensor_pool.spark import spark_session
try:
    with spark_session():
        sys.exit("it started")
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize("environment", [{"PATH": ""}, {"PATH": "", "JAVA_HOME": "/nonexistent/jdk"}])
def test_without_java_one_sentence_says_so_and_names_the_package(tmp_path, environment):
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Spark needs Java 17 or newer")
    assert "openjdk-17-jre-headless" in done.stdout
    assert len(done.stdout.strip().splitlines()) == 3
    assert done.stderr == ""


def test_a_java_that_is_too_old_is_named(tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    environment = {"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    assert "is 11" in done.stdout, done.stderr


def test_nothing_is_left_in_the_working_directory_or_the_temporary_one(tmp_path, recorded):
    program = f"""
from tensor_pool.spark import map_frames, spark_session
with spark_session(config={{"spark.driver.memory": "512m"}}) as spark:
    frames = spark.read.format("tensor_pool").load({str(recorded)!r})
    print(map_frames(frames, lambda frame: (frame.nbytes,), "nbytes long").groupBy().sum("nbytes").first()[0])
"""
    workplace, temporary = tmp_path / "work", tmp_path / "tmp"
    workplace.mkdir()
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100, cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(frame.nbytes for frame in Recording(recorded))
    assert list(workplace.iterdir()) == []
    assert list(Path(temporary).iterdir()) == []
