"""Which environment variable sets which key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from tensor_pool import environment
from tensor_pool.config.sections import settings_of
from tensor_pool.errors import ConfigError

Keys = tuple[str, ...]


def plain_keys(root: type, prefix: Keys) -> Iterator[Keys]:
    """The keys that are there whatever the file says: all but those below names that a user gave."""
    for one in settings_of(root):
        if one.kind.shape == "value" and prefix:
            yield (*prefix, one.name)
        elif one.kind.shape == "section" and one.kind.section is not None:
            yield from plain_keys(one.kind.section, (*prefix, one.name))


def plain_name(keys: Iterable[str]) -> str:
    """The variable of a key in the words of the driver's rules: `POLICIES_ANNOUNCE_PERIOD_MS`. The prefixed one goes before it."""
    return "_".join(keys).upper()


def variable_name(keys: Iterable[str]) -> str:
    """The variable that sets a key."""
    return environment.PREFIX + "__".join(key.upper().replace("-", "_") for key in keys)


def keys_of_variable(name: str) -> Keys:
    """The key that a variable with our prefix sets, if there is such a key."""
    return tuple(name.removeprefix(environment.PREFIX).lower().split("__"))


def unknown_variable(name: str, value: str, tables: Sequence[str], known: Iterable[Keys]) -> ConfigError:
    """The error for a variable with our prefix that nobody reads, with the nearest of those that somebody does."""
    keys = keys_of_variable(name)
    # the prefix would make any two names alike
    ends = {full.removeprefix(environment.PREFIX): full for full in (*environment.OURS, *map(variable_name, known))}
    near = [ends[end] for end in difflib.get_close_matches(name.removeprefix(environment.PREFIX), ends, n=1, cutoff=0.7)]
    if not near and len(keys) > 1:
        # what follows the table may be names that a user gave
        near = [variable_name((table, *keys[1:])) for table in difflib.get_close_matches(keys[0], tables, n=1)]
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"known are {', '.join(environment.OURS)}, and {environment.PREFIX}TABLE__KEY with the tables {', '.join(tables)}"
    return ConfigError(
        f"environment {name}: {'.'.join(keys)} is not a setting",
        source=f"environment {name}",
        key=".".join(keys),
        value=value,
        hint=hint,
    )
