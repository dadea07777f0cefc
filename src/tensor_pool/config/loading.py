"""Settings from their defaults, a TOML file, the environment and the command line, later ones over earlier ones."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from tensor_pool import environment
from tensor_pool.config.kinds import NAME, Kind, Refusal
from tensor_pool.config.sections import Setting, leaves_of, refused, section_name, settings_of
from tensor_pool.config.toml_lines import key_lines
from tensor_pool.config.variables import keys_of_variable, plain_keys, plain_name, unknown_variable
from tensor_pool.errors import ConfigError

DEFAULT: Final = "default"
COMMAND_LINE: Final = "command line"
_MAXIMUM_BYTES: Final = 1 << 20
_T = TypeVar("_T")
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loaded(Generic[_T]):
    """Settings, and for each dotted key where its value came from: `default`, `file:line`, `environment NAME` or `command line`."""

    settings: _T
    origin: Mapping[str, str]

    @contextmanager
    def naming_origins(self) -> Iterator[None]:
        """Around what judges the settings when they are used: its `ConfigError` about one of them says where that came from."""
        try:
            yield
        except ConfigError as error:
            origin = self.origin.get(error.key, DEFAULT)
            if error.source or origin == DEFAULT:
                raise
            raise ConfigError(f"{origin}: {error.message}", source=origin, key=error.key, value=error.value, hint=error.hint) from None


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as somebody wrote it."""

    value: Any
    origin: str
    is_text: bool


# what was given: a tree whose leaves are `_Given`; lists of tables are trees with "0", "1", … as keys
_Tree = dict[str, Any]


def load(
    root: type[_T],
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Loaded[_T]:
    """Read settings of type `root`: a section, or a dataclass whose fields are the tables of the file.

    `overrides` are dotted keys from the command line; None there means not given. Whatever is unknown, of the wrong type or out of
    range is a `ConfigError`.
    """
    tree: _Tree = {}
    lines: Mapping[Keys, int] = {}
    source = ""
    if path is not None:
        source = os.fspath(path)
        document, lines = _read(Path(path))
        tree = _from_toml(document, (), _Place(source, lines))
    prefix: Keys = (section_name(root),) if section_name(root) else ()
    given = os.environ if environ is None else environ
    for keys in plain_keys(root, prefix):
        if (value := given.get(plain_name(keys))) is not None:
            _put(tree, keys, _Given(value, f"environment {plain_name(keys)}", is_text=True))
    for name, value in sorted(given.items()):
        _put_environment(tree, root, prefix, name, value)
    for key, value in (overrides or {}).items():
        if value is not None:
            _put(tree, tuple(key.split(".")), _from_command_line(value))
    builder = _Builder(source)
    if prefix:
        unknown = [name for name in tree if name != prefix[0]]
        if unknown:
            raise builder.unknown((unknown[0],), tree[unknown[0]], prefix)
        tree = builder.table(tree.get(prefix[0], {}), prefix)
    return Loaded(builder.build(root, tree, prefix), builder.origin)


class _Place:
    """Names the line of a path, or of the nearest thing around it that has one."""

    def __init__(self, source: str, lines: Mapping[Keys, int]) -> None:
        self._source = source
        self._lines = lines

    def __call__(self, keys: Keys) -> str:
        while keys and keys not in self._lines:
            keys = keys[:-1]
        return f"{self._source}:{self._lines[keys]}" if keys else self._source


class _Builder:
    """Turns a tree into sections and notes the origin of every value."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.origin: dict[str, str] = {}

    def build(self, cls: type[_T], tree: _Tree, keys: Keys, defaults: _T | None = None) -> _T:
        """A section from what was given; `defaults` is the one that whoever holds it has when nothing is."""
        settings = {one.name: one for one in settings_of(cls)}
        for name in tree:
            if name not in settings:
                raise self.unknown((*keys, name), tree[name], settings)
        if defaults is not None:
            settings = {name: replace(one, default=partial(getattr, defaults, name)) for name, one in settings.items()}
        values = {name: self._value(one, tree.get(name), (*keys, name)) for name, one in settings.items()}
        try:
            return cls(**values)
        except ConfigError as error:
            raise self._located(error, cls, tree, keys) from None
        except ValueError as error:
            key = ".".join(keys)
            raise ConfigError(f"{_prefixed(self._source)}{key or 'settings'}: {error}", source=self._source, key=key) from None

    def table(self, given: Any, keys: Keys) -> _Tree:
        if isinstance(given, _Given):
            raise self._not_a_table(given, keys, "a table")
        tree: _Tree = given
        return tree

    def unknown(self, keys: Keys, given: Any, known: Iterable[str]) -> ConfigError:
        first = next(_leaves(given), None)
        source = first.origin if first is not None else self._source
        near = difflib.get_close_matches(keys[-1].lower(), list(known), n=1)
        key = ".".join(keys)
        hint = f"did you mean {'.'.join((*keys[:-1], near[0]))}?" if near else f"known here: {', '.join(sorted(known)) or 'nothing'}"
        return ConfigError(
            f"{_prefixed(source)}{key} is not a setting",
            source=source,
            key=key,
            value=given.value if isinstance(given, _Given) else None,
            hint=hint,
        )

    def _value(self, one: Setting, given: Any, keys: Keys) -> Any:
        if one.kind.shape == "section" and one.kind.section is not None:
            if given is None and one.kind.is_optional:
                return self._default(one, keys)
            defaults = None if one.default is None else one.default()
            return self.build(one.kind.section, {} if given is None else self.table(given, keys), keys, defaults)
        if given is None:
            return self._default(one, keys)
        if one.kind.shape == "value":
            return self._leaf(one, given, keys)
        return self._sections(one, one.kind, given, keys)

    def _sections(self, one: Setting, kind: Kind, given: Any, keys: Keys) -> Any:
        assert kind.section is not None
        tree = {} if isinstance(given, _Given) and given.value == [] else self.table(given, keys)
        if kind.shape == "list_of_sections":
            indices = sorted(tree, key=lambda name: int(name) if name.isdecimal() else -1)
            if indices != [str(index) for index in range(len(tree))]:
                raise self._not_a_table(next(_leaves(tree)), keys, "a list of tables, counted from 0 without gaps")
            made: Any = tuple(self.build(kind.section, self.table(tree[name], (*keys, name)), (*keys, name)) for name in indices)
        else:
            made = {}
            for name, element in tree.items():
                if not NAME.fullmatch(name):
                    raise ConfigError(
                        f"{_prefixed(self._source)}{'.'.join(keys)} has the name {name!r}",
                        source=self._source,
                        key=".".join(keys),
                        value=name,
                        hint="names are letters, digits, - and _",
                    )
                made[name] = self.build(kind.section, self.table(element, (*keys, name)), (*keys, name))
        complaint = one.rule.complaint(made) if kind.shape == "list_of_sections" else ""
        if complaint:
            raise refused(one, ".".join(keys), made, Refusal(complaint), self._source)
        if not made:
            self.origin[".".join(keys)] = self._source or DEFAULT
        return made

    def _leaf(self, one: Setting, given: Any, keys: Keys) -> Any:
        key = ".".join(keys)
        if not isinstance(given, _Given):
            first = next(_leaves(given), _Given({}, self._source, is_text=False))
            raise refused(one, key, _plain(given), Refusal(f"is not {one.kind.words}"), first.origin)
        try:
            value = one.convert(one.kind.parse(given.value) if given.is_text else given.value)
        except Refusal as refusal:
            raise refused(one, key, given.value, refusal, given.origin) from None
        self.origin[key] = given.origin
        return value

    def _default(self, one: Setting, keys: Keys) -> Any:
        if one.default is None:
            key = ".".join(keys)
            raise ConfigError(
                f"{_prefixed(self._source)}{key} has to be set",
                source=self._source,
                key=key,
                hint=f"{one.name} is {one.rule.allowed() or one.kind.words}" + (f" ({one.rule.help.rstrip('.')})" if one.rule.help else ""),
            )
        value = one.default()
        for path, _, _ in leaves_of(one, value, keys):
            self.origin[".".join(path)] = DEFAULT
        return value

    def _located(self, error: ConfigError, cls: type, tree: _Tree, keys: Keys) -> ConfigError:
        """What a section says about values that do not fit together, with the place of the key that it names."""
        named = tuple(error.key.split(".")) if error.key else ()
        if named and named[0] == section_name(cls):
            named = named[1:]
        given: Any = tree
        for name in named:
            given = given.get(name, given) if isinstance(given, dict) else given
        first = next(_leaves(given), None)
        source = error.source or (first.origin if first is not None else self._source)
        key = ".".join((*keys, *named))
        # a section knows the name of its table, not where that stands
        message = error.message.replace(error.key, key, 1) if error.key else error.message
        return ConfigError(f"{_prefixed(source)}{message}", source=source, key=key, value=error.value, hint=error.hint)

    def _not_a_table(self, given: _Given, keys: Keys, expected: str) -> ConfigError:
        key = ".".join(keys)
        return ConfigError(
            f"{_prefixed(given.origin)}{key} = {given.value!r} is not {expected}",
            source=given.origin,
            key=key,
            value=given.value,
            hint=f"write [{key}] on a line of its own, and its keys below" if expected == "a table" else "",
        )


def _read(path: Path) -> tuple[dict[str, Any], Mapping[Keys, int]]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAXIMUM_BYTES + 1)
        if len(data) > _MAXIMUM_BYTES:
            raise ConfigError(f"{path} is larger than {_MAXIMUM_BYTES} bytes", source=str(path), hint="is this a configuration file?")
        text = data.decode("utf-8")
        return tomllib.loads(text), key_lines(text)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", source=str(path), hint="`tensor-pool config generate --output FILE` writes one"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: byte {error.start}", source=str(path), hint="TOML files are UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{path} is not valid TOML: {reason}", source=str(path), hint="https://toml.io has the syntax") from error


def _from_toml(value: dict[str, Any], keys: Keys, place: _Place) -> _Tree:
    tree: _Tree = {}
    for name, element in value.items():
        path = (*keys, name)
        if isinstance(element, dict):
            tree[name] = _from_toml(element, path, place)
        elif isinstance(element, list) and element and all(isinstance(one, dict) for one in element):
            tree[name] = {str(index): _from_toml(one, (*path, str(index)), place) for index, one in enumerate(element)}
        else:
            tree[name] = _Given(element, place(path), is_text=False)
    return tree


def _from_command_line(value: Any) -> _Given:
    return _Given(value, COMMAND_LINE, is_text=isinstance(value, str))


def _put_environment(tree: _Tree, root: type, prefix: Keys, name: str, value: str) -> None:
    """`TENSOR_POOL_DRIVER__INSTANCE_ID` is `driver.instance_id`. A variable of ours that no table has and nobody else reads is refused."""
    if not name.startswith(environment.PREFIX) or name in environment.OURS:
        return
    tables = prefix or tuple(one.name for one in settings_of(root))
    keys = keys_of_variable(name)
    if len(keys) < 2 or keys[0] not in tables:
        raise unknown_variable(name, value, tables, plain_keys(root, prefix))
    _put(tree, keys, _Given(value, f"environment {name}", is_text=True))


def _put(tree: _Tree, keys: Keys, given: _Given) -> None:
    """Names that the tree has already are found whatever their case, since a variable cannot tell."""
    *parents, last = keys
    for key in parents:
        name = _existing(tree, key)
        below = tree.get(name)
        if not isinstance(below, dict):
            below = tree[name] = {}
        tree = below
    tree[_existing(tree, last)] = given


def _existing(tree: _Tree, key: str) -> str:
    if key in tree:
        return key
    return next((name for name in tree if name.lower().replace("-", "_") == key), key)


def _prefixed(source: str) -> str:
    return f"{source}: " if source else ""


def _leaves(given: Any) -> Iterator[_Given]:
    if isinstance(given, _Given):
        yield given
    elif isinstance(given, dict):
        for element in given.values():
            yield from _leaves(element)


def _plain(given: Any) -> Any:
    return given.value if isinstance(given, _Given) else {name: _plain(element) for name, element in given.items()}
