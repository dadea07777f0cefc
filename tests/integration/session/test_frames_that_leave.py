"""Owned frames go where their reader wants them: into a pickle, into another process, to another array library."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import tensor_pool as tp

HEADER = (
    "stream_id",
    "epoch",
    "seq",
    "key",
    "timestamp_ns",
    "publish_timestamp_ns",
    "meta_version",
    "trace_id",
    "dtype",
    "major_order",
    "shape",
    "strides",
    "nbytes",
)
PIXELS = np.arange(4 * 6, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def consumer(stack_session: tp.Session) -> Iterator[tp.Consumer]:
    """Of a stream that has one frame by rows and one by columns."""
    producer = stack_session.producer(10_000, shape=PIXELS.shape, dtype=PIXELS.dtype, slots=8, publish_timestamps=True)
    with producer, stack_session.consumer(10_000, wait=10.0) as consumer:
        producer.publish(PIXELS, timestamp_ns=123, trace_id=9)
        producer.publish(np.asfortranarray(PIXELS), timestamp_ns=124)
        yield consumer


def read(consumer: tp.Consumer) -> tp.Frame:
    frame = consumer.read(timeout=10)
    assert frame is not None
    return frame


def read_into(consumer: tp.Consumer) -> tp.Frame:
    # longer than the frame: what lies behind it is none of the frame's
    frame = consumer.read_into(np.full(PIXELS.nbytes + 8, 255, np.uint8), timeout=10)
    assert frame is not None
    return frame


def header(frame: tp.Frame) -> dict[str, Any]:
    return {name: getattr(frame, name) for name in HEADER}


def in_words(frame: tp.Frame) -> tuple[dict[str, Any], bytes, list[list[float]]]:
    """What a frame is to whoever holds it."""
    return header(frame), bytes(frame.payload), frame.array.tolist()


@pytest.mark.parametrize("way", [read, read_into])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_frame_has_the_header_and_the_bytes_of_the_one_it_was_made_of(
    consumer: tp.Consumer, way: Callable[[tp.Consumer], tp.Frame], protocol: int
) -> None:
    for frame in (way(consumer), way(consumer)):
        again = pickle.loads(pickle.dumps(frame, protocol))
        assert type(again) is tp.Frame
        assert in_words(again) == in_words(frame)
        assert (again.array == PIXELS).all()
        assert again.array.flags.f_contiguous == frame.array.flags.f_contiguous
        twice = pickle.loads(pickle.dumps(again, protocol))
        assert in_words(twice) == in_words(frame)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda frame: pickle.loads(pickle.dumps(frame))], ids=["copy", "deep", "pickle"]
)
def test_a_copy_is_writable_and_shares_nothing(consumer: tp.Consumer, copied: Callable[[tp.Frame], tp.Frame]) -> None:
    frame = read(consumer)
    again = copied(frame)
    assert not np.shares_memory(again.array, frame.array)
    again.array[:] = -1
    assert (frame.array == PIXELS).all()


def test_a_frame_is_sent_to_another_process_and_back(consumer: tp.Consumer) -> None:
    frames = [read(consumer), read_into(consumer)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        told = list(other.map(in_words, frames))
        returned = list(other.map(copy.copy, frames))
    assert told == [in_words(frame) for frame in frames]
    assert [in_words(frame) for frame in returned] == told


def test_an_owned_frame_is_given_to_another_array_library_without_a_copy(consumer: tp.Consumer) -> None:
    frame = read(consumer)
    cpu = 1
    assert frame.__dlpack_device__() == (cpu, 0)
    exported = np.from_dlpack(frame)
    assert (exported.dtype, exported.shape) == (PIXELS.dtype, PIXELS.shape)
    assert np.shares_memory(exported, frame.array)
    frame.array[0, 0] = 77
    assert exported[0, 0] == 77


def test_what_another_array_library_was_given_outlives_the_frame_and_its_consumer(consumer: tp.Consumer) -> None:
    exported = [np.from_dlpack(read(consumer)), np.from_dlpack(pickle.loads(pickle.dumps(read_into(consumer))))]
    consumer.close()
    for array in exported:
        assert (array == PIXELS).all()
