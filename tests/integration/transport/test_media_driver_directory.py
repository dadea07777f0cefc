"""A media driver empties its directory and removes it in the end: so it is given none that holds anything of somebody else's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tensor_pool import _native
from tensor_pool.errors import ConfigError, TransportError
from tensor_pool.testing import IsolatedDirectories, ProcessHarness
from tensor_pool.transport import EmbeddedMediaDriver, MediaDriverSettings, TransportClient, exclusive_channel
from tests.integration.transport.waiting import once_it_is_free

COMMAND = "tensor_pool.cli.main:main"
KILLED_DRIVER_TIMEOUT_MS = 500


@pytest.fixture
def directory(isolated: IsolatedDirectories) -> Path:
    return isolated.aeron_dir


def a_file(directory: Path) -> None:
    (directory / "a.txt").write_text("precious")


def a_directory(directory: Path) -> None:
    (directory / "photographs").mkdir()


def a_file_beside_those_of_a_driver(directory: Path) -> None:
    (directory / "cnc.dat").touch()
    a_file(directory)


def pictures(directory: Path) -> None:
    (directory / "images").mkdir()
    (directory / "images" / "cat.png").write_text("precious")


def a_link_among_the_logs(directory: Path) -> None:
    (directory / "publications").mkdir()
    (directory / "publications" / "1.logbuffer").symlink_to("/etc/passwd")


def a_program_for_a_milling_machine(directory: Path) -> None:
    (directory / "cnc.dat").write_text("G0 X0 Y0")


def a_linked_command_file(directory: Path) -> None:
    (directory / "cnc.dat").symlink_to("/dev/zero")


FOREIGN: list[tuple[Callable[[Path], None], str]] = [
    (a_file, "holds a.txt,"),
    (a_directory, "holds photographs,"),
    (a_file_beside_those_of_a_driver, "holds a.txt,"),
    (pictures, "holds images/cat.png,"),
    (a_link_among_the_logs, "holds publications/1.logbuffer,"),
    (a_program_for_a_milling_machine, "holds cnc.dat,"),
    (a_linked_command_file, "holds cnc.dat,"),
]


@pytest.mark.parametrize(("arrange", "words"), FOREIGN)
def test_a_directory_with_anything_else_in_it_is_refused_and_stays(directory: Path, arrange: Callable[[Path], None], words: str) -> None:
    directory.mkdir()
    arrange(directory)
    before = sorted(directory.rglob("*"))
    with pytest.raises(ConfigError, match=words) as refused:
        EmbeddedMediaDriver(directory)
    assert (refused.value.key, refused.value.value) == ("aeron_dir", str(directory))
    assert str(directory) in refused.value.message
    assert refused.value.hint
    assert sorted(directory.rglob("*")) == before


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/.", "{}/../link"])
def test_a_link_is_refused_and_stays(directory: Path, spelling: str) -> None:
    directory.mkdir()
    link = directory.with_name("link")
    link.symlink_to(directory)
    with pytest.raises(ConfigError, match=f"is a link to {directory}"):
        EmbeddedMediaDriver(spelling.format(link))
    assert link.is_symlink()
    assert directory.is_dir()


def test_a_file_is_no_directory(directory: Path) -> None:
    directory.write_text("precious")
    with pytest.raises(ConfigError, match="is no directory"):
        EmbeddedMediaDriver(directory)
    assert directory.read_text() == "precious"


def test_the_command_refuses_in_words_and_keeps_what_is_there(harness: ProcessHarness, isolated: IsolatedDirectories) -> None:
    precious = isolated.root / "precious"
    precious.mkdir()
    (precious / "a.txt").write_text("hi\n")
    child = harness.python("media", COMMAND, "media-driver", "--aeron-dir", precious)
    child.expect_exit(2)
    error, blank, hint = child.stderr().splitlines()
    assert error.startswith(f"error: the directory of a media driver, {precious}, holds a.txt")
    assert (blank, hint.startswith("hint: ")) == ("", True)
    assert (precious / "a.txt").read_text() == "hi\n"


def leave_nothing(directory: Path) -> None:
    pass


def leave_it_empty(directory: Path) -> None:
    directory.mkdir()


def leave_it_half_made(directory: Path) -> None:
    for name in ("publications", "images"):
        (directory / name).mkdir(parents=True)
    (directory / "cnc.dat").write_bytes(bytes(4096))


@pytest.mark.parametrize("arrange", [leave_nothing, leave_it_empty, leave_it_half_made])
def test_a_directory_that_holds_nothing_of_anybodys_is_taken_and_removed_in_the_end(
    directory: Path, arrange: Callable[[Path], None]
) -> None:
    arrange(directory)
    with EmbeddedMediaDriver(directory) as driver, TransportClient(driver.directory) as client:
        client.publish(exclusive_channel("aeron:ipc", "64k"), 1)
    assert not directory.exists()


def test_a_relative_directory_is_made_where_the_driver_was_started(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory.parent)
    with EmbeddedMediaDriver(directory.name) as driver:
        assert driver.directory == str(directory)


def test_the_directory_of_a_live_driver_is_still_refused_by_aeron(directory: Path) -> None:
    with EmbeddedMediaDriver(directory) as driver, TransportClient(driver.directory) as client:
        client.publish(exclusive_channel("aeron:ipc", "64k"), 1)
        with pytest.raises(TransportError) as refused:
            EmbeddedMediaDriver(directory)
        assert refused.value.code == errno.EBUSY
        assert _native.media_driver_is_active(str(directory), 1000)


def test_the_directory_of_a_killed_driver_is_taken_with_its_logs(directory: Path, harness: ProcessHarness, tmp_path: Path) -> None:
    config = tmp_path / "media-driver.toml"
    config.write_text(f"[media_driver]\ndriver_timeout_ms = {KILLED_DRIVER_TIMEOUT_MS}\n")
    killed = harness.python("media", COMMAND, "media-driver", "--aeron-dir", directory, "--config", config, "--json")
    killed.wait_for_message(event="ready")
    with TransportClient(directory) as client:
        client.publish(exclusive_channel("aeron:ipc", "64k"), 1)
        killed.kill()
        killed.wait()
    assert len(os.listdir(directory / "publications")) == 1
    once_it_is_free(lambda: EmbeddedMediaDriver(directory, MediaDriverSettings(driver_timeout_ms=KILLED_DRIVER_TIMEOUT_MS))).close()
    assert not directory.exists()
