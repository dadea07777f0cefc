"""The types that a setting may have: what TOML value fits, how text from the environment becomes one, how it is written."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
import types
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Refusal(Exception):  # noqa: N818 - never leaves this room: it becomes a ConfigError where file and key are known
    """Why a value does not fit, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One type. `convert` takes a TOML value or one that has the type already; `parse` takes text. Both raise `Refusal`."""

    words: str
    convert: Callable[[Any], Any]
    parse: Callable[[str], Any]
    shape: Literal["value", "section", "sections_by_name", "list_of_sections"] = "value"
    section: type | None = None
    is_optional: bool = False


def kind_of(annotation: Any, where: str) -> Kind:
    """The kind for a type annotation; `TypeError` names the field whose type no setting can have."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _of_section(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _of_enum(annotation)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _optional(kind_of(next(argument for argument in arguments if argument is not type(None)), where))
    if origin is Literal:
        return _of_choices(arguments)
    if origin is tuple and arguments:
        return _of_tuple(arguments, where)
    if origin is dict and arguments[0] is str and isinstance(arguments[1], type) and dataclasses.is_dataclass(arguments[1]):
        return _of_sections_by_name(arguments[1])
    raise TypeError(f"{where}: no setting can be a {annotation}")


def to_toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return to_toml(value.value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ("nan" if math.isnan(value) else f"{'-' if value < 0 else ''}inf")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (str, Path)):
        # TOML's basic strings are JSON's, but for DEL
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(to_toml(element) for element in value)}]"
    raise TypeError(f"no setting can be a {type(value).__name__}")


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refusal("is not a whole number")
    return value


def _parse_whole_number(text: str) -> int:
    try:
        return int(text.strip().replace("_", ""), 0)
    except ValueError:
        raise Refusal("is not a whole number") from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refusal("is not a number")
    try:
        return float(value)
    except OverflowError:
        raise Refusal("is too large for a number") from None


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refusal("is not a number") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Refusal("is not a text in quotes")
    if "\0" in value:
        raise Refusal("holds a NUL")
    return value


def _path(value: Any) -> Path:
    return value if isinstance(value, Path) else Path(_text(value))


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Refusal("is not true or false")
    return value


def _parse_truth(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise Refusal("is not true or false")


_PLAIN: Final[dict[Any, Kind]] = {
    int: Kind("a whole number", _whole_number, _parse_whole_number),
    float: Kind("a number", _number, _parse_number),
    str: Kind("a text in quotes", _text, _text),
    bool: Kind("true or false", _truth, _parse_truth),
    Path: Kind("a path in quotes", _path, _path),
}


def _optional(inner: Kind) -> Kind:
    def convert(value: Any) -> Any:
        return None if value is None else inner.convert(value)

    def parse(text: str) -> Any:
        return None if text == "" else inner.parse(text)

    return dataclasses.replace(inner, words=f"{inner.words}, or absent", convert=convert, parse=parse, is_optional=True)


def _of_choices(choices: tuple[Any, ...]) -> Kind:
    words = f"one of {', '.join(map(str, choices))}"

    def convert(value: Any) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return choice
        raise Refusal(f"is not {words}")

    def parse(text: str) -> Any:
        for choice in choices:
            if str(choice) == text:
                return choice
        raise Refusal(f"is not {words}")

    return Kind(words, convert, parse)


def _of_enum(enum: type[Enum]) -> Kind:
    inner = _of_choices(tuple(member.value for member in enum))
    return Kind(
        inner.words,
        lambda value: value if isinstance(value, enum) else enum(inner.convert(value)),
        lambda text: enum(inner.parse(text)),
    )


def _of_tuple(arguments: tuple[Any, ...], where: str) -> Kind:
    is_open = len(arguments) == 2 and arguments[1] is Ellipsis
    elements = [kind_of(argument, where) for argument in (arguments[:1] if is_open else arguments)]
    if is_open and elements[0].shape == "section":
        return _of_list_of_sections(elements[0])
    if any(element.shape != "value" for element in elements):
        raise TypeError(f"{where}: a list holds values, or sections of one kind")
    words = f"a list, each {elements[0].words}" if is_open else f"a list of {len(elements)}: {', '.join(one.words for one in elements)}"

    def each(value: Any, one: Callable[[Kind, Any], Any]) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise Refusal("is not a list")
        if not is_open and len(value) != len(elements):
            raise Refusal(f"does not have {len(elements)} elements")
        return tuple(one(elements[0 if is_open else index], element) for index, element in enumerate(value))

    def convert(value: Any) -> Any:
        return each(value, lambda kind, element: kind.convert(element))

    def parse(text: str) -> Any:
        if text.lstrip().startswith("["):
            try:
                return convert(tomllib.loads(f"value = {text}")["value"])
            except tomllib.TOMLDecodeError as error:
                raise Refusal(f"is not a list as TOML writes it: {error}") from None
        return each([part.strip() for part in text.split(",")] if text.strip() else [], lambda kind, element: kind.parse(element))

    return Kind(words, convert, parse)


def _of_section(section: type) -> Kind:
    return Kind("a table", _instance_of(section), _no_text, "section", section)


def _of_list_of_sections(element: Kind) -> Kind:
    def convert(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise Refusal("is not a list of tables")
        return tuple(element.convert(one) for one in value)

    return Kind("a list of tables", convert, _no_text, "list_of_sections", element.section)


def _of_sections_by_name(section: type) -> Kind:
    one = _instance_of(section)

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Refusal("is not a table of tables")
        for name in value:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise Refusal(f"has the name {name!r}; names are letters, digits, - and _")
        return {name: one(element) for name, element in value.items()}

    return Kind("tables with a name each", convert, _no_text, "sections_by_name", section)


def _instance_of(section: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, section):
            raise Refusal(f"is not a {section.__name__}")
        return value

    return convert


def _no_text(text: str) -> Any:
    raise Refusal("is a text where tables are expected")
