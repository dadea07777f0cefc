"""How a command ends: exit codes, words, JSON."""

from __future__ import annotations

import json
import sys
import types

import click
import pytest

from tensor_pool.cli import main as entry
from tensor_pool.errors import AttachTimeoutError, ConfigError, TensorPoolError


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch):
    """Adds a command `fail` that raises what it is given, and runs it."""

    def run(error: BaseException | None, *options: str) -> int:
        @click.command()
        @click.option("--json", "as_json", is_flag=True)
        @click.option("--count", type=int)
        def fail(as_json: bool, count: int | None) -> None:
            """Fail."""
            if error is not None:
                raise error

        module = types.ModuleType("tensor_pool_test_commands")
        module.fail = fail
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(entry.COMMANDS, "fail", entry.Command(module.__name__, "fail", "Fail."))
        return entry.run(["fail", *options])

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (ConfigError("wrong"), 2),
        (TensorPoolError("broken"), 1),
        (AttachTimeoutError("nobody"), 1),
        (click.UsageError("how"), 2),
        (click.ClickException("what"), 1),
        (click.exceptions.Exit(7), 7),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_each_kind_of_error_has_its_exit_code(ends_with, error: BaseException | None, code: int) -> None:
    assert ends_with(error) == code


def test_an_error_is_words_and_a_hint_after_a_blank_line_on_stderr(ends_with, capsys: pytest.CaptureFixture[str]) -> None:
    ends_with(ConfigError("it is wrong", hint="make it right"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: it is wrong\n\nhint: make it right\n"


def test_an_error_without_a_hint_is_one_line(ends_with, capsys: pytest.CaptureFixture[str]) -> None:
    ends_with(TensorPoolError("it is wrong"))
    assert capsys.readouterr().err == "error: it is wrong\n"


def test_with_json_the_error_is_a_document_on_stdout_too(ends_with, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(ConfigError("wrong", source="a.toml:3", key="a.b", value=7, hint="do"), "--json") == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "event": "error",
        "type": "ConfigError",
        "message": "wrong",
        "hint": "do",
        "exit_code": 2,
        "source": "a.toml:3",
        "key": "a.b",
        "value": "7",
    }
    assert captured.err.startswith("error: wrong\n")


def test_an_option_of_the_wrong_type_names_it_and_the_help(ends_with, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(None, "--count", "many") == 2
    error = capsys.readouterr().err
    assert "--count" in error
    assert "`tensor-pool fail --help`" in error


def test_an_error_that_is_a_bug_keeps_its_traceback(ends_with) -> None:
    with pytest.raises(ZeroDivisionError):
        ends_with(ZeroDivisionError())


def test_a_missing_extra_is_named_with_the_command_that_installs_it(ends_with, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(ModuleNotFoundError("No module named 'mcap'", name="mcap.writer")) == 1
    assert capsys.readouterr().err == "error: mcap.writer is not installed\n\nhint: pip install 'shm-tensor-pool[record]'\n"
    with pytest.raises(ModuleNotFoundError):
        ends_with(ModuleNotFoundError("No module named 'tensor_pool.x'", name="tensor_pool.x"))


@pytest.mark.parametrize(("arguments", "command"), [((), "publish"), (("config",), "generate")])
def test_without_a_command_there_is_help_and_no_error(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], command: str) -> None:
    assert entry.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: tensor-pool ")
    assert f"\n  {command} " in captured.err
    assert "error:" not in captured.err
    assert "hint:" not in captured.err


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["pubish"]) == 2
    assert "hint: did you mean `tensor-pool publish`?" in capsys.readouterr().err
    assert entry.run(["zzz"]) == 2
    assert "hint: `tensor-pool --help` lists the commands" in capsys.readouterr().err
