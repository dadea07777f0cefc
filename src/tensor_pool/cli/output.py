"""What commands print: data on stdout, the rest on stderr, readable without colour."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from rich.live import Live

_MOST_COLUMNS: Final = 6
_Command = TypeVar("_Command", bound=Callable[..., Any])


def example(*lines: str) -> str:
    """The epilog of a command: how it is used, on lines that click does not wrap."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def stack_option(command: _Command) -> _Command:
    """`--stack`: which stack a command talks to."""
    return click.option(
        "--stack",
        default=None,
        metavar="PATH",
        help="Runtime directory of the stack, or its stack.json; without it TENSOR_POOL_STACK, else the stack that this user runs.",
    )(command)


def print_json(value: Any) -> None:
    """One JSON document on a line of stdout, at once: others read it while we run."""
    click.echo(json.dumps(value, default=_as_json, ensure_ascii=False))
    sys.stdout.flush()


def print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows on stdout, one a line; a single row with many columns is turned, one column a line."""
    if not rows:
        click.echo(f"{title}: none", err=True)
        return
    if len(rows) == 1 and len(rows[0]) > _MOST_COLUMNS:
        width = max(map(len, rows[0]))
        lines = [f"{name:<{width}}  {_cell(value)}" for name, value in rows[0].items()]
    else:
        names = list(dict.fromkeys(name for row in rows for name in row))
        cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
        is_number = [all(_is_number(row.get(name)) for row in rows) for name in names]
        lines = [
            "  ".join(
                f"{cell:>{width}}" if right else f"{cell:<{width}}" for cell, width, right in zip(line, widths, is_number, strict=True)
            )
            for line in cells
        ]
    click.echo(f"{title}:", err=True)
    for line in lines:
        click.echo(line.rstrip())
    sys.stdout.flush()


class StatusLine:
    """One line on a terminal's stderr that is written over again and again; nothing where nobody looks."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._is_shown = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._live: Live | None = None

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._live is not None:
            # a Text, so that brackets in names are not taken for markup
            from rich.text import Text

            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def __enter__(self) -> StatusLine:
        if self._is_shown:
            # here, since most runs of a command have no terminal and rich takes a while to import
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot print a {type(value).__name__} as JSON")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    """One line, and nothing that a terminal would obey: names come from other processes."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(_cell, value)) or "-"
    text = str(value.value if isinstance(value, Enum) else value)
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)
