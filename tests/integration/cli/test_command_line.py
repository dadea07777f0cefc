"""`tensor-pool` as its users run it: in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from tensor_pool.cli.main import COMMANDS, cli

WAIT_S = 60.0
COMMAND = (sys.executable, "-m", "tensor_pool.cli.main")
WAITING_COMMAND = """
import sys, threading, types, click
from tensor_pool.cli import main
module = types.ModuleType("waiting")
@click.command()
def wait():
    print("ready", flush=True)
    threading.Event().wait()
module.wait = wait
sys.modules["waiting"] = module
main.COMMANDS["wait"] = main.Command("waiting", "wait", "Wait.")
main.main(["wait"])
"""
STATUS_LINE = """
from tensor_pool.cli.output import StatusLine
with StatusLine() as status:
    status.show("frames [bold]7[/bold]")
"""


def environment(directory: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TENSOR_POOL_", "XDG_"))}
    return kept | {"TENSOR_POOL_RUNTIME_DIR": str(directory / "run"), **variables}


def run(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=environment(directory, **variables),
        cwd=directory,
        check=False,
    )


def commands_of(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += commands_of(command, (*path, name))
    return found


def test_help_lists_every_command_without_importing_any(tmp_path: Path) -> None:
    program = "import sys; from tensor_pool.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, env=environment(tmp_path), check=True
    )
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout
    heavy = {"numpy", "rich", "tensor_pool._native", "tensor_pool.session", "tensor_pool.stack"}
    assert not heavy & set(result.stderr.split())


def test_every_command_has_help_with_an_example_of_itself() -> None:
    for path, command in commands_of(cli):
        text = command.get_help(click.Context(command, info_name=path[-1]))
        assert "Example:" in text, path
        assert f"tensor-pool {' '.join(path)}" in text, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help or parameter.show_default, (path, parameter.name)


def test_the_version_is_told(tmp_path: Path) -> None:
    result = run(tmp_path, "--version")
    assert (result.returncode, result.stdout.split()[0]) == (0, "tensor-pool,")


@pytest.mark.parametrize("arguments", [("ls",), ("tap", "camera-1"), ("publish", "--seconds", "1")])
def test_without_a_stack_one_sentence_says_so_and_the_hint_starts_one(tmp_path: Path, arguments: Sequence[str]) -> None:
    result = run(tmp_path, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    error, blank, hint = result.stderr.splitlines()
    assert error.startswith("error: no stack is running: ")
    assert (blank, hint) == ("", "hint: start one: tensor-pool up")


@pytest.mark.parametrize(("shape", "dtype", "pixels"), [("4x3", "uint16", 4), ("1x7", "uint8", 8), ("9x1", "float32", 2)])
def test_rows_without_room_for_the_seq_are_a_usage_error(tmp_path: Path, shape: str, dtype: str, pixels: int) -> None:
    result = run(tmp_path, "publish", "--shape", shape, "--dtype", dtype)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"'--shape': rows of {dtype} need {pixels} pixels" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_setting_out_of_range_ends_with_file_line_key_value_and_hint(tmp_path: Path) -> None:
    path = tmp_path / "stack.toml"
    path.write_text("[policies]\n# too often\nannounce_period_ms = 0\n")
    result = run(tmp_path, "config", "show", "--config", str(path), "--json")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith(f"error: {path}:3: policies.announce_period_ms = 0 is below the minimum")
    assert "\nhint: announce_period_ms is " in result.stderr
    document = json.loads(result.stdout)
    assert (document["event"], document["source"], document["key"], document["value"]) == (
        "error",
        f"{path}:3",
        "policies.announce_period_ms",
        "0",
    )


@pytest.mark.parametrize(
    ("content", "words", "hint"),
    [
        ("[policies]\nanounce_period_ms = 5\n", "policies.anounce_period_ms is not a setting", "did you mean policies.announce_period_ms?"),
        ('[policies]\nannounce_period_ms = "5"\n', "'5' is not a whole number", "announce_period_ms is "),
        ("[polcies]\n", "polcies is not a setting", "did you mean policies?"),
        ("policies\n", "is not valid TOML", "https://toml.io"),
    ],
)
def test_a_file_that_is_wrong_ends_with_its_name_and_a_hint(tmp_path: Path, content: str, words: str, hint: str) -> None:
    path = tmp_path / "stack.toml"
    path.write_text(content)
    result = run(tmp_path, "config", "show", "--config", str(path))
    assert (result.returncode, result.stdout) == (2, "")
    assert str(path) in result.stderr
    assert words in result.stderr
    assert f"hint: {hint}" in result.stderr


def test_a_wrong_variable_ends_with_its_name(tmp_path: Path) -> None:
    result = run(tmp_path, "config", "show", TENSOR_POOL_POLICIES__ANNOUNCE_PERIOD_MS="soon")
    assert result.returncode == 2
    assert "error: environment TENSOR_POOL_POLICIES__ANNOUNCE_PERIOD_MS: policies.announce_period_ms = 'soon' is not" in result.stderr


EVERYWHERE = [
    ("[media_driver]\nidle_strategy_arguments = 'garbage'\n", "media_driver.idle_strategy_arguments", "garbage", "nor one sleep"),
    ("[media_driver]\nidle_strategy = 'sleep-ns'\n", "media_driver.idle_strategy_arguments", "1-1-100us-2ms", "is not one sleep"),
    (
        "[driver]\ncontrol_channel = 'aeron:ipc?term-length=3'\n",
        "driver.control_channel",
        "aeron:ipc?term-length=3",
        "term-length=3, which",
    ),
    (
        "[driver]\ncontrol_channel = 'aeron:udp?endpoint=nohost'\n",
        "driver.control_channel",
        "aeron:udp?endpoint=nohost",
        "endpoint=nohost, which",
    ),
    (
        "[profiles.a]\npayload_pools = [{ pool_id = 1, stride_bytes = 100 }]\n",
        "profiles.a.payload_pools.0.stride_bytes",
        "100",
        "64 times a power of two",
    ),
    ("[profiles.a]\nheader_nslots = 3\n", "profiles.a.header_nslots", "3", "is not a power of two"),
]


@pytest.mark.parametrize("command", [("config", "show"), ("up",)])
@pytest.mark.parametrize(("content", "key", "value", "words"), EVERYWHERE)
def test_what_no_stack_could_use_is_refused_by_show_and_by_up_alike(
    tmp_path: Path, command: Sequence[str], content: str, key: str, value: str, words: str
) -> None:
    path = tmp_path / "stack.toml"
    path.write_text(content)
    result = run(tmp_path, *command, "--config", str(path), "--json")
    assert result.returncode == 2
    document = json.loads(result.stdout)
    assert (document["source"], document["key"], document["value"]) == (f"{path}:2", key, value)
    error, blank, hint = result.stderr.splitlines()
    assert error.startswith(f"error: {path}:2: {key} = ")
    assert words in error + hint
    assert (blank, hint.startswith("hint: ")) == ("", True)


AT_THE_START = [
    ("[shm]\nbase_dir = 'relative'\n", "shm.base_dir", "relative", "is not absolute", "begin it with /"),
    ("[shm]\n\nbase_dir = '/nowhere/at/all'\n", "shm.base_dir", "/nowhere/at/all", "is no directory", "make it"),
    ("[shm]\nallowed_base_dirs = ['/proc']\n", "shm.allowed_base_dirs", "('/proc',)", "is outside", "name a base_dir below"),
    ("[shm]\nbase_dir = '/proc'\nrequire_hugepages = true\n", "shm.require_hugepages", "True", "is not on hugetlbfs", "mount -t hugetlbfs"),
    ("[driver]\ncontrol_channel = 'ipc'\n", "driver.control_channel", "ipc", "does not begin with aeron:", "control_channel is"),
    ("[driver]\naeron_dir = 'here'\n", "driver.aeron_dir", "here", "is not absolute", "Directory of a media driver"),
]


@pytest.mark.parametrize(("content", "key", "value", "words", "hint"), AT_THE_START)
def test_a_setting_that_up_cannot_use_ends_with_file_line_key_value_and_hint(
    tmp_path: Path, content: str, key: str, value: str, words: str, hint: str
) -> None:
    path = tmp_path / "stack.toml"
    path.write_text(content)
    line = content.count("\n")
    result = run(tmp_path, "up", "--config", str(path), "--json")
    assert result.returncode == 2
    error, blank, told = result.stderr.splitlines()
    assert error.startswith(f"error: {path}:{line}: ")
    assert key in error
    assert words in error
    assert (blank, told.startswith("hint: "), hint in told) == ("", True, True)
    document = json.loads(result.stdout)
    assert (document["source"], document["key"], document["value"], document["exit_code"]) == (f"{path}:{line}", key, value, 2)


def test_a_variable_that_up_cannot_use_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "up", TENSOR_POOL_SHM__BASE_DIR="relative")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: environment TENSOR_POOL_SHM__BASE_DIR: shm.base_dir = 'relative' is not absolute\n")


def test_show_says_where_each_value_came_from(tmp_path: Path) -> None:
    path = tmp_path / "stack.toml"
    path.write_text('[shm]\nnamespace = "lab"\n[driver]\naeron_dir = "/dev/shm/aeron-lab"\n')
    result = run(tmp_path, "config", "show", "--config", str(path), "--json", TENSOR_POOL_POLICIES__ANNOUNCE_PERIOD_MS="250")
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(result.stdout)}
    assert rows["shm.namespace"] == ('"lab"', f"{path}:2")
    assert rows["policies.announce_period_ms"] == ("250", "environment TENSOR_POOL_POLICIES__ANNOUNCE_PERIOD_MS")
    assert rows["policies.epoch_gc_keep"][1] == "default"
    assert rows["driver.aeron_dir"] == ('"/dev/shm/aeron-lab"', f"{path}:4")
    table = run(tmp_path, "config", "show", "--config", str(path)).stdout.splitlines()
    assert table[0].split() == ["key", "value", "origin"]
    assert f'"lab"  {path}:2' in " ".join(" ".join(line.split()) for line in table).replace('"lab" ', '"lab"  ')


def test_a_generated_file_changes_nothing_and_is_not_written_over(tmp_path: Path) -> None:
    result = run(tmp_path, "config", "generate", "--output", "stack.toml")
    assert (result.returncode, result.stdout) == (0, "")
    assert (tmp_path / "stack.toml").read_text() == run(tmp_path, "config", "generate").stdout
    defaults = json.loads(run(tmp_path, "config", "show", "--json").stdout)
    loaded = json.loads(run(tmp_path, "config", "show", "--config", "stack.toml", "--json").stdout)
    assert [(row["key"], row["value"]) for row in loaded] == [(row["key"], row["value"]) for row in defaults]
    again = run(tmp_path, "config", "generate", "--output", "stack.toml")
    assert again.returncode == 2
    assert "error: stack.toml exists already" in again.stderr
    missing = run(tmp_path, "config", "generate", "--output", "none/stack.toml")
    assert (missing.returncode, "cannot write none/stack.toml" in missing.stderr) == (2, True)


@pytest.mark.requirement("W-12-14-3")
@pytest.mark.requirement("W-15.11-1")
def test_the_generated_file_lists_channel_and_stream_id_of_every_logical_stream(tmp_path: Path) -> None:
    driver = tomllib.loads(run(tmp_path, "config", "generate").stdout)["driver"]
    ids = {name: driver[f"{name}_stream_id"] for name in ("control", "announce", "descriptor", "qos", "metadata")}
    assert ids == {"control": 1000, "announce": 1001, "descriptor": 1100, "qos": 1200, "metadata": 1300}
    assert {driver[f"{name}_channel"] for name in ids} == {"aeron:ipc"}


def test_the_generated_file_has_the_directory_of_a_media_driver_with_a_comment(tmp_path: Path) -> None:
    lines = run(tmp_path, "config", "generate").stdout.splitlines()
    comment = lines[lines.index('aeron_dir = ""') - 2]
    assert comment.startswith("# Directory of a media driver that runs already")


@pytest.mark.requirement("D-4.4-6")
@pytest.mark.requirement("D-4.4-9")
def test_keepalive_interval_and_grace_in_use_are_told_by_config_show(tmp_path: Path) -> None:
    def told(**variables: str) -> tuple[str, str]:
        rows = {row["key"]: row["value"] for row in json.loads(run(tmp_path, "config", "show", "--json", **variables).stdout)}
        return rows["policies.lease_keepalive_interval_ms"], rows["policies.lease_expiry_grace_intervals"]

    assert told() == ("1000", "3")
    changed = {"TENSOR_POOL_POLICIES__LEASE_KEEPALIVE_INTERVAL_MS": "250", "TENSOR_POOL_POLICIES__LEASE_EXPIRY_GRACE_INTERVALS": "5"}
    assert told(**changed) == ("250", "5")


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        result = subprocess.run(
            [*COMMAND, "config", "generate"],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT_S,
            env=environment(tmp_path),
            check=False,
        )
    finally:
        os.close(write_end)
    assert (result.returncode, result.stderr) == (1, "")


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING_COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait(WAIT_S)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize(("terminal", "is_shown"), [("xterm", True), ("dumb", False)])
def test_a_status_line_is_seen_on_a_terminal(tmp_path: Path, terminal: str, is_shown: bool) -> None:
    controller, terminal_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", STATUS_LINE],
        stdout=subprocess.DEVNULL,
        stderr=terminal_end,
        env=environment(tmp_path, TERM=terminal, COLUMNS="80"),
    )
    os.close(terminal_end)
    seen = b""
    try:
        while True:
            try:
                part = os.read(controller, 4096)
            except OSError:
                break
            if not part:
                break
            seen += part
        assert process.wait(WAIT_S) == 0
    finally:
        os.close(controller)
        process.kill()
        process.wait(WAIT_S)
    assert (b"frames [bold]7[/bold]" in seen) == is_shown


def test_colours_only_on_a_terminal_and_never_with_no_color(tmp_path: Path) -> None:
    assert "\x1b" not in run(tmp_path, "nonsense").stderr
    for variables, has_colour in (({}, True), ({"NO_COLOR": "1"}, False)):
        controller, terminal_end = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, "nonsense"], stdout=subprocess.DEVNULL, stderr=terminal_end, env=environment(tmp_path, TERM="xterm", **variables)
        )
        assert process.wait(WAIT_S) == 2
        os.close(terminal_end)
        seen = os.read(controller, 4096)
        os.close(controller)
        assert b"there is no command" in seen
        assert (b"\x1b[" in seen) == has_colour
