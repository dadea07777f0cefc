"""A stack on a media driver that runs already: named in the file, in the environment, on the command line, or by a program."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.driver.config import DriverSection, ShmSection
from tensor_pool.testing import IsolatedDirectories, ProcessHarness

COMMAND = "tensor_pool.cli.main:main"


@pytest.fixture
def media_driver(harness: ProcessHarness, isolated: IsolatedDirectories, environment: dict[str, str]) -> str:
    """The directory of a media driver in a process of its own."""
    directory = str(isolated.aeron_dir / "driver")
    media = harness.python("media", COMMAND, "media-driver", "--aeron-dir", directory, "--json", environment=environment)
    media.wait_for_message(event="ready")
    return directory


@pytest.mark.parametrize("how", ["file", "environment", "option over both", "relative option"])
def test_up_uses_the_media_driver_that_it_is_told(
    harness: ProcessHarness, environment: dict[str, str], media_driver: str, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "stack.toml"
    file.write_text(f"[driver]\naeron_dir = {json.dumps(media_driver if how == 'file' else '/nowhere')}\n")
    if how != "file":
        environment["TENSOR_POOL_DRIVER__AERON_DIR"] = media_driver if how == "environment" else "/nowhere/either"
    options = {"option over both": ["--aeron-dir", media_driver], "relative option": ["--aeron-dir", os.path.relpath(media_driver)]}
    arguments = ["up", "--config", file, "--json", *options.get(how, [])]
    stack = harness.python("stack", COMMAND, *arguments, environment=environment)
    assert stack.wait_for_message(event="ready")["aeron_dir"] == media_driver
    camera = harness.python("camera", COMMAND, "publish", "--shape", "8x8", "--json", environment=environment)
    tap = harness.python("tap", COMMAND, "tap", "camera-1", "--verify", "--frames", 5, "--json", environment=environment)
    tap.expect_exit(0)
    assert camera.terminate() == 0
    assert stack.terminate() == 0
    # it was somebody else's, and stays
    assert Path(media_driver).is_dir()


@pytest.mark.parametrize("how", ["file", "option"])
def test_a_directory_where_no_media_driver_answers_is_named_with_where_it_was_set(
    harness: ProcessHarness, environment: dict[str, str], isolated: IsolatedDirectories, tmp_path: Path, how: str
) -> None:
    nobody = str(isolated.aeron_dir / "nobody")
    file = tmp_path / "stack.toml"
    file.write_text(
        f"[media_driver]\ndriver_timeout_ms = 100\n[driver]\naeron_dir = {json.dumps(nobody if how == 'file' else '/elsewhere')}\n"
    )
    options = ["--aeron-dir", nobody] if how == "option" else []
    stack = harness.python("stack", COMMAND, "up", "--config", file, "--json", *options, environment=environment)
    stack.expect_exit(2)
    said = stack.wait_for_message(event="error")
    assert (said["source"], said["key"], said["value"]) == (f"{file}:4" if how == "file" else "command line", "driver.aeron_dir", nobody)
    assert said["hint"] == f"start one: tensor-pool media-driver --aeron-dir {nobody}"


def test_a_stack_whose_media_driver_is_killed_ends_in_one_sentence_with_what_to_start(
    harness: ProcessHarness, environment: dict[str, str], isolated: IsolatedDirectories
) -> None:
    directory = isolated.aeron_dir
    environment["TENSOR_POOL_MEDIA_DRIVER__DRIVER_TIMEOUT_MS"] = "1000"
    media = harness.python("media", COMMAND, "media-driver", "--aeron-dir", directory, "--json", environment=environment)
    media.wait_for_message(event="ready")
    stack = harness.python("stack", COMMAND, "up", "--aeron-dir", directory, "--json", environment=environment)
    stack.wait_for_message(event="ready")
    media.kill()
    stack.expect_exit(1)
    error, blank, hint = stack.stderr().splitlines()
    assert error == f"error: the stack has ended: the media driver of {directory} is gone, or took it for dead"
    assert blank == ""
    assert hint.startswith(f"hint: start both again: tensor-pool media-driver --aeron-dir {directory}, ")


def test_an_embedded_stack_uses_the_media_driver_of_its_settings(
    isolated: IsolatedDirectories, media_driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in isolated.environment().items():
        monkeypatch.setenv(name, value)
    settings = tp.StackSettings(driver=DriverSection(aeron_dir=media_driver), shm=ShmSection(base_dir=str(isolated.shm_base_dir)))
    with tp.embedded(settings=settings) as session:
        assert session.stack.aeron_dir == media_driver
        producer = session.producer(10_000, shape=(4, 4), dtype="uint8")
        consumer = session.consumer(10_000, wait=20)
        producer.publish(np.full((4, 4), 7, np.uint8))
        frame = consumer.read(timeout=10)
        assert frame is not None
        assert int(frame.array.sum()) == 7 * 16
    assert Path(media_driver).is_dir()
