"""The embedded stack of the test kit is a real one, in directories of its own."""

from __future__ import annotations

import os

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.errors import ConfigError
from tensor_pool.session import Session
from tensor_pool.testing import IsolatedDirectories, check_frame, stamp_frame


def test_frames_go_through_a_real_ring_below_the_isolated_directory(stack_session: Session, isolated: IsolatedDirectories) -> None:
    with stack_session.producer(10_000, shape=4096, slots=8) as producer, stack_session.consumer(10_000, wait=10.0) as consumer:
        frame = np.empty(4096, dtype=np.uint8)
        for seq in range(20):
            stamp_frame(frame, seq)
            assert producer.publish(frame) == seq
            received = consumer.read(5.0)
            assert received is not None
            assert check_frame(received.array, seq)
        assert list(isolated.shm_base_dir.rglob("header.ring"))
    assert os.environ["XDG_RUNTIME_DIR"] == str(isolated.runtime_dir)


def test_an_embedded_stack_without_settings_takes_them_from_the_environment(
    isolated: IsolatedDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in isolated.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TENSOR_POOL_SHM__BASE_DIR", str(isolated.shm_base_dir))
    with tp.embedded() as session:
        # quick where nobody says otherwise
        assert session.stack.announce_period_ms == 200
        assert session.stack.allowed_base_dirs == (str(isolated.shm_base_dir),)
        with session.producer(10_000, shape=64, slots=2):
            assert list(isolated.shm_base_dir.rglob("header.ring"))
    monkeypatch.setenv("TENSOR_POOL_POLICIES__ANNOUNCE_PERIOD_MS", "1000")
    with tp.embedded() as session:
        assert session.stack.announce_period_ms == 1000
    monkeypatch.setenv("TENSOR_POOL_SHM__BASE_DIRECTORY", "/x")
    with pytest.raises(ConfigError, match="environment TENSOR_POOL_SHM__BASE_DIRECTORY: "):
        tp.embedded()
