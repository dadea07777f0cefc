"""What callers name streams by, checked before anything is asked of the driver. numpy's integers are integers."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from tensor_pool.driver.config import HIGHEST_STREAM_ID
from tensor_pool.errors import ConfigError


def integer(value: object, name: str, *, what: str = "an integer") -> int:
    """`value` as an int; `TypeError` for whatever is none."""
    # True is no number that anybody meant
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} is {value!r}, not {what}")
    return operator.index(value)  # type: ignore[arg-type] # looked at above


def stream_id(value: object, name: str = "stream_id", *, what: str = "an integer") -> int:
    """A stream's id."""
    number = integer(value, name, what=what)
    if not 1 <= number <= HIGHEST_STREAM_ID:
        hint = "`tensor-pool ls` lists the streams of the stack"
        raise ConfigError(f"{name} is {number}, not 1 to {HIGHEST_STREAM_ID}", key=name, value=number, hint=hint)
    return number


def stream_id_or_name(value: object) -> int | str:
    """By what a stream is read."""
    if not isinstance(value, str):
        return stream_id(value, "stream", what="an id (an integer) or a name (a str)")
    if not value:
        raise ConfigError("stream is '', not an id or a name", key="stream", value=value, hint="give the id of a stream without a name")
    return value


def streams(value: object) -> list[int | str]:
    """One stream or several, by id or by name."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return [stream_id_or_name(value)]
    return [stream_id_or_name(each) for each in value]


def tags(value: str | Iterable[str]) -> tuple[str, ...]:
    """One tag or several."""
    return (value,) if isinstance(value, str) else tuple(value)
