"""What callers give: numpy's numbers are numbers, and what cannot be meant is refused in words before anything happens."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_pool as tp

NO_TIMES = [float("nan"), -1, -1e-9, float("-inf"), np.float64("nan")]
FOR_EVER = [None, 1e300, float("inf")]


def test_numpy_integers_name_streams_slots_and_shapes(stack_session: tp.Session, tmp_path: Path) -> None:
    stream_id = np.uint16(10_000)
    with stack_session.producer(stream_id, shape=(np.int64(4), np.uint8(6)), dtype="uint16", slots=np.int32(16), tags="lab") as producer:
        assert (producer.stream_id, stack_session.discover()[0].slots) == (10_000, 16)
        with stack_session.consumer(np.int64(10_000), wait=np.float32(5)) as consumer:
            producer.publish(np.ones((4, 6), np.uint16))
            frame = consumer.read(timeout=np.float64(5))
            assert frame is not None
        assert [stream.stream_id for stream in stack_session.discover(stream_id=np.int64(10_000))] == [10_000]
    with stack_session.producer(10_001, shape=np.int64(6)) as vector, stack_session.producer(10_002, shape=np.array([2, 3])) as matrix:
        assert [producer.declared.shape for producer in (vector, matrix) if producer.declared] == [(6,), (2, 3)]


def test_one_tag_and_one_stream_need_no_list(stack_session: tp.Session, tmp_path: Path) -> None:
    with stack_session.producer(10_000, shape=8, name="cam", tags="lab") as producer:
        assert stack_session.discover()[0].tags == ("lab",)
        assert [stream.name for stream in stack_session.discover(tags="lab")] == ["cam"]
        assert stack_session.discover(tags="la") == []
        for number, streams in enumerate(("cam", 10_000, np.int64(10_000), ["cam"], (10_000,), np.array([10_000]))):
            with stack_session.record(streams, tmp_path / str(number), wait=5) as recording:
                assert list(recording.streams) == [10_000]
        assert producer.publish(np.zeros(8, np.uint8)) == 0


@pytest.mark.parametrize("stream", [None, 1.5, b"x", True, np.float64(3), [10_000], -1, 0, 0xFFFFFFFF, ""])
def test_what_is_no_stream_is_refused_in_words(stack_session: tp.Session, tmp_path: Path, stream: Any) -> None:
    expected = tp.ConfigError if isinstance(stream, int | str) and stream is not True else TypeError
    with pytest.raises(expected, match="stream"):
        stack_session.consumer(stream, wait=0)
    with pytest.raises(expected if stream != "" else TypeError, match="stream_id"):
        stack_session.producer(stream, shape=8)
    with pytest.raises(expected, match="stream"):
        stack_session.record([stream], tmp_path / "r", wait=0)
    assert stack_session.discover() == []


@pytest.mark.parametrize("slots", [8.0, None, True, "8"])
def test_what_is_no_number_of_slots_is_refused_in_words(stack_session: tp.Session, slots: Any) -> None:
    with pytest.raises(TypeError, match="slots"):
        stack_session.producer(10_000, shape=8, slots=slots)
    with pytest.raises(TypeError):
        stack_session.producer(10_000, shape=(2.5, 3))
    assert stack_session.discover() == []


def test_what_is_no_time_is_refused_by_every_wait(stack_session: tp.Session, tmp_path: Path) -> None:
    session = stack_session
    out = np.zeros(8, np.uint8)
    with (
        session.producer(10_000, shape=8) as producer,
        session.consumer(10_000) as consumer,
        session.record(10_000, tmp_path / "r") as recording,
    ):
        for timeout in NO_TIMES:
            for wait in (consumer.read, consumer.latest, consumer.borrow, lambda timeout: consumer.read_into(out, timeout), recording.wait):
                with pytest.raises(ValueError, match="timeout"):
                    wait(timeout)
            with pytest.raises(ValueError, match="wait"):
                session.consumer(10_000, wait=timeout)
            with pytest.raises(ValueError, match="wait"):
                session.producer(10_001, shape=8, wait=timeout)
            with pytest.raises(ValueError, match="driver_timeout"):
                tp.connect(driver_timeout=timeout)
        with pytest.raises(TypeError, match="timeout"):
            consumer.read("1")  # type: ignore[arg-type]
        assert producer.publish(out) == 0


def test_a_time_too_long_to_count_is_for_ever(stack_session: tp.Session) -> None:
    with stack_session.producer(10_000, shape=8) as producer:
        for timeout in FOR_EVER:
            with stack_session.consumer(10_000, wait=timeout) as consumer:
                publishing = threading.Timer(0.05, producer.publish, (np.zeros(8, np.uint8),))
                publishing.start()
                assert consumer.read(timeout) is not None
                publishing.join()
