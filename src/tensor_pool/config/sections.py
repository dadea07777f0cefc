"""How a role room declares its settings: frozen dataclasses whose fields know their help, range and unit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final, TypeVar, cast, dataclass_transform, get_type_hints

from tensor_pool.config.kinds import Kind, Refusal, kind_of
from tensor_pool.errors import ConfigError

_KEY: Final = "tensor_pool.setting"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value of one setting has to be, beyond its type, and what a person is told about it."""

    help: str = ""
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    check: Callable[[Any], str] | None = None
    is_secret: bool = False

    def complaint(self, value: Any) -> str:
        """What is wrong with a value of the right type; empty where nothing is. Of a tuple every element has to keep the rule."""
        if value is None:
            return ""
        for element in value if isinstance(value, tuple) else (value,):
            if self.choices and element not in self.choices:
                return f"is not one of {', '.join(map(str, self.choices))}"
            if self.minimum is not None and not element >= self.minimum:
                return f"is below the minimum, {self.minimum}"
            if self.maximum is not None and not element <= self.maximum:
                return f"is above the maximum, {self.maximum}"
        return self.check(value) if self.check is not None else ""

    def allowed(self) -> str:
        """The range in words, for comments and hints."""
        words = ""
        if self.minimum is not None and self.maximum is not None:
            words = f"{self.minimum} to {self.maximum}"
        elif self.minimum is not None:
            words = f"at least {self.minimum}"
        elif self.maximum is not None:
            words = f"at most {self.maximum}"
        elif self.choices:
            words = f"one of {', '.join(map(str, self.choices))}"
        if self.unit:
            return f"{words} {self.unit}" if words else f"in {self.unit}"
        return words

    def shown(self, value: Any) -> str:
        """The value as an error may print it."""
        return "(secret)" if self.is_secret else repr(value)


_NO_RULE: Final = Rule()


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a section, ready to be read, written and explained."""

    name: str
    kind: Kind
    rule: Rule
    default: Callable[[], Any] | None

    def convert(self, value: Any) -> Any:
        """The value of the right type and within its range; `Refusal` otherwise."""
        converted = self.kind.convert(value)
        complaint = self.rule.complaint(converted)
        if complaint:
            raise Refusal(complaint)
        return converted


def setting(
    default: Any = MISSING,
    *,
    default_factory: Callable[[], Any] | None = None,
    help: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[Any, ...] | list[Any] = (),
    unit: str = "",
    check: Callable[[Any], str] | None = None,
    is_secret: bool = False,
) -> Any:
    """One key. Without a default it has to be given. `check` returns what is wrong with a value, or an empty string."""
    metadata = {_KEY: Rule(help, unit, minimum, maximum, tuple(choices), check, is_secret)}
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    if isinstance(default, (list, dict)):
        raise TypeError("settings do not change: give a tuple, or default_factory=dict")
    return dataclasses.field(default=default, metadata=metadata)


# `setting` is no field specifier on purpose: type checkers would then read its default only when given by keyword
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def section(name: str) -> Callable[[type[_T]], type[_T]]:
    """Make a class a section: a frozen dataclass with keyword arguments that refuses values out of range however it is built.

    `name` is the table that it is read from when it is loaded by itself; inside another section the field's name is the table.
    A `__post_init__` of its own sees checked fields and raises `ConfigError` or `ValueError` for what they must not be together.
    """

    def decorate(cls: type[_T]) -> type[_T]:
        own_check = cls.__dict__.get("__post_init__")

        def check_fields(self: Any) -> None:
            for one in settings_of(type(self)):
                value = getattr(self, one.name)
                try:
                    object.__setattr__(self, one.name, one.convert(value))
                except Refusal as refusal:
                    raise refused(one, f"{name}.{one.name}", value, refusal) from None
            if own_check is not None:
                own_check(self)

        cls.__post_init__ = check_fields  # type: ignore[attr-defined]
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        made.section_name = name  # type: ignore[attr-defined]
        return made

    return decorate


def power_of_two_complaint(value: int) -> str:
    """A `check` for numbers that have to be a power of two."""
    return "" if value > 0 and value.bit_count() == 1 else "is not a power of two"


def refused(one: Setting, key: str, value: Any, refusal: Refusal, source: str = "") -> ConfigError:
    """The error for a value that a setting does not take."""
    where = f"{source}: " if source else ""
    allowed = one.rule.allowed() or one.kind.words
    return ConfigError(
        f"{where}{key} = {one.rule.shown(value)} {refusal}",
        source=source,
        key=key,
        value="(secret)" if one.rule.is_secret else value,
        hint=f"{one.name} is {allowed}" + (f" ({one.rule.help.rstrip('.')})" if one.rule.help else ""),
    )


def section_name(cls: type) -> str:
    """The name that `@section` gave; empty for a plain dataclass, whose fields are then the tables of a file."""
    return cast("str", getattr(cls, "section_name", ""))


def settings_of(cls: type) -> tuple[Setting, ...]:
    """The settings of a section, in the order in which they are written."""
    known: Mapping[type, tuple[Setting, ...]] = _settings
    if cls not in known:
        hints = get_type_hints(cls)
        _settings[cls] = tuple(
            Setting(
                field.name, kind_of(hints[field.name], f"{cls.__name__}.{field.name}"), field.metadata.get(_KEY, _NO_RULE), _default(field)
            )
            for field in dataclasses.fields(cls)
        )
    return _settings[cls]


def leaves_of(one: Setting, value: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Setting, Any]]:
    """The plain values below a setting with their paths; an empty table of tables or list of tables is one itself."""
    if value and one.kind.shape == "sections_by_name":
        for name, element in value.items():
            yield from leaves_of_section(element, (*keys, name))
    elif value and one.kind.shape == "list_of_sections":
        for index, element in enumerate(value):
            yield from leaves_of_section(element, (*keys, str(index)))
    elif value is not None and one.kind.shape == "section":
        yield from leaves_of_section(value, keys)
    else:
        yield keys, one, value


def leaves_of_section(section: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Setting, Any]]:
    """The same for everything in a section."""
    for one in settings_of(type(section)):
        yield from leaves_of(one, getattr(section, one.name), (*keys, one.name))


# type hints are slow to resolve, and a class does not change
_settings: dict[type, tuple[Setting, ...]] = {}


def _default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not MISSING:
        return field.default_factory
    if field.default is MISSING:
        return None
    value = field.default
    return lambda: value
