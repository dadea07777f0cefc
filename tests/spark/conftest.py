"""One Spark for all tests here, and one recording."""

from __future__ import annotations

import numpy as np
import pytest

from tensor_pool.recorder import RecorderSettings, RecordingSession
from tensor_pool.spark import spark_session
from tensor_pool.stamp import stamp_seq
from tensor_pool.testing.playback import Lost, NewEpoch, PlayedConsumer, played_frame


def camera_image(seq: int) -> np.ndarray:
    image = np.random.default_rng(seq).integers(0, 60_000, (64, 80), dtype=np.uint16)
    stamp_seq(image, seq)
    return image


@pytest.fixture(scope="session")
def spark():
    with spark_session("tests") as session:
        yield session


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Stream 10000: 300 frames and 4 lost ones of epoch 1, 50 frames of epoch 2. Stream 7: 20 vectors of float64."""
    path = tmp_path_factory.mktemp("recorded")
    camera = [played_frame(camera_image(seq), seq) for seq in range(100)]
    camera += [Lost(4, "late"), *(played_frame(camera_image(seq), seq) for seq in range(104, 304))]
    camera += [NewEpoch(2), *(played_frame(camera_image(seq), seq, epoch=2) for seq in range(50))]
    vectors = [played_frame(np.arange(5) * float(seq), seq, stream_id=7, publish_timestamp_ns=seq) for seq in range(20)]
    consumers = [PlayedConsumer(camera), PlayedConsumer(vectors, stream_id=7)]
    names = {10_000: "camera-1", 7: "vectors"}
    with RecordingSession(consumers, path, source="c0ffee", names=names, settings=RecorderSettings(segment_bytes=1_000_000)):
        assert all(consumer.finished.wait(30) for consumer in consumers)
    return path
