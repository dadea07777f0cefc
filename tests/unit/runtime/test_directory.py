"""The runtime directory: where it is, and what it may not be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tensor_pool.errors import ConfigError
from tensor_pool.runtime import RuntimeDirectory


def test_the_variable_of_this_package_wins_then_xdg_then_a_directory_of_the_user() -> None:
    both = {"TENSOR_POOL_RUNTIME_DIR": "/own", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert RuntimeDirectory.locate(both).path == Path("/own")
    assert RuntimeDirectory.locate({"XDG_RUNTIME_DIR": "/run/user/7"}).path == Path("/run/user/7/tensor-pool")
    assert RuntimeDirectory.locate({}, user_id=7, temporary="/t").path == Path("/t/tensor-pool-7")
    # the XDG specification says to ignore it
    assert RuntimeDirectory.locate({"XDG_RUNTIME_DIR": "run"}, user_id=7, temporary="/t").path == Path("/t/tensor-pool-7")


def test_a_relative_directory_of_our_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="not an absolute path"):
        RuntimeDirectory.locate({"TENSOR_POOL_RUNTIME_DIR": "run"})


def test_it_is_made_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = RuntimeDirectory.locate({"TENSOR_POOL_RUNTIME_DIR": str(tmp_path / "a" / "b")}).ensure()
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert directory.ensure() == directory
    assert (directory.stack_file.name, directory.admin_socket.name) == ("stack.json", "admin.sock")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "run"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ConfigError, match="written to by others") as caught:
        RuntimeDirectory(path).ensure()
    assert "chmod 700" in caught.value.hint


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"belongs to user {os.geteuid()}, not to user {os.geteuid() + 1}") as caught:
        RuntimeDirectory(tmp_path, "environment X", os.geteuid() + 1).ensure()
    assert caught.value.source == "environment X"
    assert "TENSOR_POOL_RUNTIME_DIR" in caught.value.hint


def test_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch(mode=0o600)
    for name in ("link", "file"):
        with pytest.raises(ConfigError, match="link or no directory"):
            RuntimeDirectory(tmp_path / name).ensure()


def test_a_place_where_nothing_can_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        RuntimeDirectory(tmp_path / "file" / "run").ensure()
    with pytest.raises(ConfigError, match="cannot be looked at"):
        RuntimeDirectory(tmp_path / "file" / "run").check()


def test_a_path_that_no_socket_can_have_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 100)
    with pytest.raises(ConfigError, match="too long"):
        RuntimeDirectory(path).ensure()
    assert not path.exists()
