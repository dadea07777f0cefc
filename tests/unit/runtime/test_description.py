"""`stack.json`: written in one step, read with suspicion, found in the order of its rules."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tensor_pool.errors import ConfigError
from tensor_pool.runtime import RuntimeDirectory, StackDescription, find_stack

STREAMS = {
    f"{name}_{part}": value
    for number, name in enumerate(("control", "announce", "descriptor", "qos", "metadata"))
    for part, value in (("channel", "aeron:ipc"), ("stream_id", 1000 + number))
}


def a_description(**changes: Any) -> StackDescription:
    values: dict[str, Any] = {
        "pid": os.getpid(),
        "instance_id": "lab",
        "aeron_dir": "/dev/shm/aeron",
        **STREAMS,
        "allowed_base_dirs": ("/dev/shm",),
        "admin_socket": "/run/admin.sock",
        "announce_period_ms": 1000,
        "lease_keepalive_interval_ms": 1000,
    }
    return StackDescription(**(values | changes))


def fields_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def private(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    description = a_description()
    description.write(tmp_path / "stack.json")
    assert StackDescription.read(tmp_path / "stack.json") == description
    assert [path.name for path in tmp_path.iterdir()] == ["stack.json"]


def test_writing_replaces_the_file_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    a_description(instance_id="old").write(path)
    with path.open() as reader:
        a_description(instance_id="new").write(path)
        assert json.load(reader)["instance_id"] == "old"
    assert StackDescription.read(path).instance_id == "new"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stack.json"
    a_description(instance_id="old").write(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        a_description(instance_id="new").write(path)
    assert StackDescription.read(path).instance_id == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["stack.json"]


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="field 'aeron_dir' is not an absolute path"):
        a_description(aeron_dir="relative").write(tmp_path / "stack.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(StackDescription)])
def test_every_field_has_to_be_there_and_of_its_type(tmp_path: Path, name: str) -> None:
    path = tmp_path / "stack.json"
    a_description().write(path)
    good = fields_of(path)
    wrong = [True, None, [], {}, -1, 1.5, "", 2**40, "a" * 5000, "\x1b[31m", ["relative"], [1], "relative\n"]
    for value in [*wrong, ...]:
        bad = {key: one for key, one in good.items() if key != name or value is not ...}
        if value is not ...:
            bad[name] = value
        path.write_text(json.dumps(bad))
        with pytest.raises(ConfigError, match=f"'{name}'") as caught:
            StackDescription.read(path)
        assert (caught.value.source, caught.value.key) == (str(path), name)
        assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("format", 2, "this version reads 1"),
        ("control_channel", "udp", "not an Aeron channel"),
        ("qos_stream_id", 2**31, "whole number"),
        ("admin_socket", "/" + "a" * 107, "107 bytes"),
        ("allowed_base_dirs", ["/a"] * 65, "64"),
        ("surprise", 1, "not a field"),
    ],
)
def test_values_that_mean_nothing_are_refused(tmp_path: Path, name: str, value: Any, words: str) -> None:
    path = tmp_path / "stack.json"
    a_description().write(path)
    path.write_text(json.dumps(fields_of(path) | {name: value}))
    with pytest.raises(ConfigError, match=words):
        StackDescription.read(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b"\xff\xfe", b"null", b"[" * 30_000, b'{"pid": 1, "pid": 2}', b'{"pid": ' + b"9" * 5000 + b"}", b" " * 70_000],
)
def test_garbage_is_refused_with_the_name_of_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "stack.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        StackDescription.read(path)
    assert str(path) in caught.value.message


def test_a_pipe_or_a_directory_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="regular file"):
            StackDescription.read(path)


def test_a_stack_is_found_by_argument_then_variable_then_runtime_directory(tmp_path: Path) -> None:
    directories = {name: private(tmp_path / name) for name in ("argument", "variable", "runtime")}
    for name, directory in directories.items():
        a_description(instance_id=name).write(directory / "stack.json")
    runtime = {"TENSOR_POOL_RUNTIME_DIR": str(directories["runtime"])}
    both = runtime | {"TENSOR_POOL_STACK": str(directories["variable"] / "stack.json")}
    assert find_stack(directories["argument"], both).instance_id == "argument"
    assert find_stack(str(directories["argument"] / "stack.json"), both).instance_id == "argument"
    assert find_stack(None, both).instance_id == "variable"
    assert find_stack(None, runtime).instance_id == "runtime"
    assert find_stack(None, runtime | {"TENSOR_POOL_STACK": ""}).instance_id == "runtime"


@pytest.mark.parametrize(
    "environ", [{"TENSOR_POOL_STACK": "{}/none"}, {"TENSOR_POOL_RUNTIME_DIR": "{}/none"}, {"TENSOR_POOL_RUNTIME_DIR": "{}"}]
)
def test_where_nothing_runs_one_sentence_says_so_and_the_hint_starts_a_stack(tmp_path: Path, environ: dict[str, str]) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ConfigError, match=r"^no stack is running: ") as caught:
        find_stack(None, {name: value.format(tmp_path) for name, value in environ.items()})
    assert "\n" not in caught.value.message
    assert "tensor-pool up" in caught.value.hint


def test_a_description_whose_process_is_gone_is_no_running_stack(tmp_path: Path) -> None:
    a_description(pid=4242).write(tmp_path / "stack.json")
    asked = []

    def is_alive(pid: int) -> bool:
        asked.append(pid)
        return len(asked) == 1

    assert find_stack(tmp_path, {}, is_alive=is_alive).pid == 4242
    with pytest.raises(ConfigError, match="no stack is running: process 4242"):
        find_stack(tmp_path, {}, is_alive=is_alive)


def test_a_garbled_description_is_an_error_and_not_a_stack_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text("{}")
    with pytest.raises(ConfigError, match="field 'format'"):
        find_stack(tmp_path, {})


def test_a_description_in_a_directory_of_others_is_not_believed(tmp_path: Path) -> None:
    directory = private(tmp_path / "run")
    a_description().write(directory / "stack.json")
    with pytest.raises(ConfigError, match="belongs to user"):
        find_stack(None, {}, directory=RuntimeDirectory(directory, "test", user_id=os.geteuid() + 1))
    directory.chmod(0o770)
    with pytest.raises(ConfigError, match="written to by others"):
        find_stack(None, {"TENSOR_POOL_RUNTIME_DIR": str(directory)})
