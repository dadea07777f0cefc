"""What to do next is in the error: it can be done as it stands there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.config import load
from tensor_pool.driver.config import PoolSection, ProfileSection, StreamSection
from tensor_pool.stack import StackSettings
from tensor_pool.testing import IsolatedDirectories
from tensor_pool.testing.stack import embedded_stack

SHAPE = (64, 100)


def test_a_configured_stream_whose_slots_are_too_small_comes_with_the_lines_that_make_them_fit(
    isolated: IsolatedDirectories, tmp_path: Path
) -> None:
    small = ProfileSection(header_nslots=16, payload_pools=(PoolSection(pool_id=1, stride_bytes=64),))
    settings = StackSettings(profiles={"small": small}, streams={"camera": StreamSection(stream_id=10, profile="small")})
    with embedded_stack(isolated, settings=settings) as session, pytest.raises(tp.ConfigError, match=r"64 bytes.* 12800") as caught:
        session.producer(10, shape=SHAPE, dtype="uint16")
    toml = tmp_path / "stack.toml"
    toml.write_text(caught.value.hint.split(":\n", 1)[1])
    with embedded_stack(isolated, settings=load(StackSettings, toml).settings) as session:
        assert [(stream.name, stream.slots) for stream in session.discover()] == [("camera", 16)]
        with session.producer(10, shape=SHAPE, dtype="uint16") as producer:
            assert producer.publish(np.zeros(SHAPE, np.uint16)) == 0


def test_a_stream_that_is_not_there_can_be_made_by_giving_a_shape(stack_session: tp.Session) -> None:
    with pytest.raises(tp.AttachRejectedError) as caught:
        stack_session.producer(2)
    assert "shape=" in caught.value.hint
    with stack_session.producer(2, shape=8, dtype="uint8"), pytest.raises(tp.AttachRejectedError) as held:
        stack_session.producer(2)
    assert "shape=" not in held.value.hint
