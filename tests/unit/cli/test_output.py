"""Tables, JSON lines and the status line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import click
import pytest

from tensor_pool.cli.output import StatusLine, example, print_json, print_table, stack_option


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: int


def test_a_table_has_aligned_columns_on_stdout_and_its_title_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("streams", [{"id": 7, "name": "camera", "tags": ["a", "b"]}, {"id": 10000, "name": None, "tags": [], "on": True}])
    captured = capsys.readouterr()
    assert captured.err == "streams:\n"
    assert captured.out == "   id  name    tags  on\n    7  camera  a, b  -\n10000  -       -     yes\n"


def test_a_single_wide_row_is_turned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("read", [{f"column_{number}": number for number in range(8)}])
    assert capsys.readouterr().out.splitlines()[:2] == ["column_0  0", "column_1  1"]


def test_a_table_without_rows_says_so_on_stderr_alone(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("streams", [])
    assert capsys.readouterr() == ("", "streams: none\n")


def test_names_from_other_processes_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("streams", [{"name": "\x1b[31mred\nnext", "tags": ("\x07",)}])
    assert capsys.readouterr().out == "name           tags\n?[31mred?next  ?\n"


def test_json_is_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "a\nb", "colour": Colour.RED, "path": Path("/a"), "point": Point(1), "set": {2, 1}, "tuple": (1,)})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"text": "a\nb", "colour": "red", "path": "/a", "point": {"x": 1}, "set": [1, 2], "tuple": [1]}
    with pytest.raises(TypeError, match="object"):
        print_json(object())


def test_a_status_line_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    for status in (StatusLine(), StatusLine(quiet=True)):
        with status:
            status.show("hello")
        status.show("after the end")
    assert capsys.readouterr() == ("", "")


def test_examples_keep_their_lines() -> None:
    @click.command(epilog=example("tensor-pool one", "tensor-pool two"))
    @stack_option
    def command(stack: str | None) -> None:
        """Do it."""

    text = command.get_help(click.Context(command))
    assert "  tensor-pool one\n" in text
    assert text.rstrip().endswith("  tensor-pool two")
    assert "--stack PATH" in text
