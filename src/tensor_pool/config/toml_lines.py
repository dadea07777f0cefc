"""On which line of a TOML file each key stands. tomllib does not tell, and an error without its line is half an error."""

from __future__ import annotations

import tomllib
from typing import Final

Path = tuple[str, ...]
_BLANK: Final = " \t\r\n"


def key_lines(text: str) -> dict[Path, int]:
    """Line numbers by path, for a text that tomllib has accepted. Elements of arrays of tables have their index as part of the path."""
    return _Scanner(text).scan()


class _Scanner:
    """Walks a valid TOML text statement by statement; of values it only needs to know where they end."""

    def __init__(self, text: str) -> None:
        # tomllib sees line ends so too; without this a CR would count as part of a bare word
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._lines: dict[Path, int] = {}
        self._array_lengths: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self._skip_blank()
        while self._at < len(self._text):
            if self._text.startswith("[[", self._at):
                table = self._array_header()
            elif self._text[self._at] == "[":
                table = self._header()
            else:
                self._key_value(table)
            self._skip_blank()
        return self._lines

    def _header(self) -> Path:
        line = self._line()
        self._at += 1
        table = self._resolve(self._dotted_key("]"))
        self._at += 1
        self._note(table, line)
        return table

    def _array_header(self) -> Path:
        line = self._line()
        self._at += 2
        *parents, last = self._dotted_key("]")
        self._at += 2
        array = (*self._resolve(tuple(parents)), last)
        index = self._array_lengths.get(array, 0)
        self._array_lengths[array] = index + 1
        self._note(array, line)
        self._note((*array, str(index)), line)
        return (*array, str(index))

    def _resolve(self, key: Path) -> Path:
        """`[a.b]` below `[[a]]` means the newest element of `a`."""
        resolved: Path = ()
        for part in key:
            resolved = (*resolved, part)
            if resolved in self._array_lengths:
                resolved = (*resolved, str(self._array_lengths[resolved] - 1))
        return resolved

    def _key_value(self, table: Path) -> None:
        line = self._line()
        path = (*table, *self._dotted_key("="))
        self._at += 1
        self._note(path, line)
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip_blank()
        character = self._text[self._at]
        if character in "\"'":
            self._string()
        elif character == "[":
            self._array(path)
        elif character == "{":
            self._inline_table(path)
        else:
            while self._at < len(self._text) and self._text[self._at] not in ",]}#\n":
                self._at += 1

    def _array(self, path: Path) -> None:
        self._at += 1
        index = 0
        self._skip_blank()
        while self._text[self._at] != "]":
            element = (*path, str(index))
            self._note(element, self._line())
            self._value(element)
            self._skip_blank()
            if self._text[self._at] == ",":
                self._at += 1
                index += 1
            self._skip_blank()
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        self._skip_blank()
        while self._text[self._at] != "}":
            self._key_value(path)
            self._skip_blank()
            if self._text[self._at] == ",":
                self._at += 1
            self._skip_blank()
        self._at += 1

    def _dotted_key(self, end: str) -> Path:
        parts: list[str] = []
        while True:
            self._skip_blank()
            parts.append(self._simple_key())
            self._skip_blank()
            if self._text[self._at] == end:
                return tuple(parts)
            self._at += 1

    def _simple_key(self) -> str:
        begin = self._at
        if self._text[begin] in "\"'":
            self._string()
            return str(tomllib.loads(f"key = {self._text[begin : self._at]}")["key"])
        while self._text[self._at] not in " \t.=]":
            self._at += 1
        return self._text[begin : self._at]

    def _string(self) -> None:
        quote = self._text[self._at]
        is_long = self._text.startswith(quote * 3, self._at)
        mark = quote * 3 if is_long else quote
        self._at += len(mark)
        while not self._text.startswith(mark, self._at):
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._at += len(mark)
        # up to two quotes may stand before the three that end a long string
        while is_long and self._at < len(self._text) and self._text[self._at] == quote:
            self._at += 1

    def _skip_blank(self) -> None:
        while self._at < len(self._text):
            if self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._text[self._at] not in _BLANK:
                return
            self._at += 1

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _note(self, path: Path, line: int) -> None:
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], line)
