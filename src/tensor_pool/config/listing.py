"""What the settings are and where each came from, and a file with all of them to start from."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tensor_pool.config.kinds import to_toml
from tensor_pool.config.loading import DEFAULT, Loaded
from tensor_pool.config.sections import Setting, leaves_of_section, section_name, settings_of

_WIDTH: Final = 100


class Row(NamedTuple):
    """One setting. `value` is as TOML writes it; empty where an optional setting is absent."""

    key: str
    value: str
    origin: str


def show(loaded: Loaded[Any]) -> list[Row]:
    """Every setting with its value and origin; secrets are not shown."""
    name = section_name(type(loaded.settings))
    rows = []
    for path, one, value in leaves_of_section(loaded.settings, (name,) if name else ()):
        key = ".".join(path)
        rows.append(Row(key, _shown(one, value), loaded.origin.get(key, DEFAULT)))
    return rows


def generate(root: type[Any]) -> str:
    """A TOML file with every setting at its default and a comment on each; it loads back to exactly the defaults."""
    name = section_name(root)
    lines = list(_section_lines(root, (name,) if name else (), {}))
    return "\n".join(lines).strip("\n") + "\n"


def _shown(one: Setting, value: Any) -> str:
    if one.rule.is_secret and value:
        return "(secret)"
    if isinstance(value, dict):
        return "{}"
    return "" if value is None else to_toml(value)


def _section_lines(
    cls: type, path: tuple[str, ...], given: dict[str, Any], *, is_example: bool = False, header: str = "[{}]"
) -> Iterator[str]:
    """One table: its own keys first, as TOML wants it, then the tables in it."""
    mark = "# " if is_example else ""
    settings = settings_of(cls)
    own = [one for one in settings if one.kind.shape == "value"]
    if path:
        yield ""
        yield from _comment(_description(cls))
        yield mark + header.format(".".join(path))
    for one in own:
        yield from _setting_lines(one, given, mark)
    for one in settings:
        if one.kind.shape == "value":
            continue
        assert one.kind.section is not None
        inner = (*path, one.name)
        value = given[one.name] if one.name in given else one.default() if one.default is not None else None
        yield from _inner_lines(one, one.kind.section, value, inner, is_example=is_example)


def _inner_lines(one: Setting, cls: type, value: Any, path: tuple[str, ...], *, is_example: bool) -> Iterator[str]:
    if one.kind.shape == "section":
        values = {} if value is None else _values_of(value)
        yield from _section_lines(cls, path, values, is_example=is_example or (value is None and one.kind.is_optional))
        return
    if one.rule.help:
        yield ""
        yield from _comment(one.rule.help)
    if one.kind.shape == "list_of_sections":
        for element in value or ():
            yield from _section_lines(cls, path, _values_of(element), is_example=is_example, header="[[{}]]")
        if not value:
            yield from _section_lines(cls, path, {}, is_example=True, header="[[{}]]")
        return
    for name, element in (value or {}).items():
        yield from _section_lines(cls, (*path, name), _values_of(element), is_example=is_example)
    if not value:
        yield from _section_lines(cls, (*path, "NAME"), {}, is_example=True)


def _setting_lines(one: Setting, given: dict[str, Any], mark: str) -> Iterator[str]:
    allowed = one.rule.allowed() or one.kind.words
    words = (one.rule.help.rstrip("."), allowed[0].upper() + allowed[1:])
    yield from _comment("".join(f"{part}. " for part in words if part))
    if one.name in given:
        value = given[one.name]
    elif one.default is not None:
        value = one.default()
    else:
        yield f"# {one.name} =   (has to be set)"
        return
    yield f"# {one.name} =" if value is None else f"{mark}{one.name} = {to_toml(value)}"


def _description(cls: type) -> str:
    text = inspect.getdoc(cls) or ""
    # what dataclass writes where a class has no docstring
    return "" if text.startswith(f"{cls.__name__}(") else text


def _comment(text: str) -> Iterator[str]:
    for paragraph in text.splitlines():
        for line in textwrap.wrap(paragraph, _WIDTH):
            yield f"# {line}"


def _values_of(section: Any) -> dict[str, Any]:
    return {one.name: getattr(section, one.name) for one in settings_of(type(section))}
