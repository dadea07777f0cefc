"""A generated file loads back to the defaults, whatever they are; and keys are found on their lines in any TOML."""

from __future__ import annotations

import dataclasses
import tempfile
import tomllib
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from tensor_pool.config import generate, load, section, setting, show
from tensor_pool.config.kinds import to_toml
from tensor_pool.config.toml_lines import key_lines
from tensor_pool.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)


class Colour(Enum):
    RED = "red"
    BLUE = 'b"l\\ue\n'


@section("inner")
class Inner:
    """With a docstring, which becomes a comment."""

    number: int = setting(0, help="Some help.")
    words: tuple[str, ...] = setting(())


@section("outer")
class Outer:
    number: int = setting(0, unit="ms")
    factor: float = setting(0.0)
    text: str = setting("", help='Help with """quotes"""\nand a second line.')
    is_on: bool = setting(False)
    colour: Colour = setting(Colour.RED)
    mode: Literal["a", "b"] = setting("a")
    maybe: int | None = setting(None)
    pair: tuple[int, float] = setting((0, 0.0))
    inner: Inner = setting(default_factory=Inner)
    many: tuple[Inner, ...] = setting(())
    named: dict[str, Inner] = setting(default_factory=dict)
    optional: Inner | None = setting(None)


INNER = st.builds(Inner, number=st.integers(), words=st.lists(TEXT, max_size=3).map(tuple))
OUTER = st.builds(
    Outer,
    number=st.integers(),
    factor=st.floats(allow_nan=False),
    text=TEXT,
    is_on=st.booleans(),
    colour=st.sampled_from(Colour),
    mode=st.sampled_from(["a", "b"]),
    maybe=st.none() | st.integers(),
    pair=st.tuples(st.integers(), st.floats(allow_nan=False)),
    inner=INNER,
    many=st.lists(INNER, max_size=3).map(tuple),
    named=st.dictionaries(NAMES, INNER, max_size=3),
    optional=st.none() | INNER,
)


def loads(root: type[Any], text: str, environ: dict[str, str] | None = None) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "generated.toml"
        path.write_text(text, encoding="utf-8", newline="")
        return load(root, path, environ or {})


@given(OUTER)
def test_a_generated_file_loads_back_to_exactly_the_defaults(outer: Outer) -> None:
    fields = [("outer", Outer, dataclasses.field(default_factory=lambda: outer))]
    root = dataclasses.make_dataclass("Root", fields, frozen=True)
    loaded = loads(root, generate(root))
    assert loaded.settings == root()
    assert loaded.settings.outer == outer
    # every value that the file holds came from the file
    expected = {row.key for row in show(loaded) if row.value and row.value not in ("{}", "[]")}
    assert expected <= {key for key, origin in loaded.origin.items() if "generated.toml:" in origin}


@given(st.integers() | st.floats() | TEXT | st.booleans() | st.lists(TEXT, max_size=3).map(tuple))
def test_values_are_written_as_toml_reads_them(value: Any) -> None:
    read = tomllib.loads(f"value = {to_toml(value)}")["value"]
    assert repr(tuple(read) if isinstance(value, tuple) else read) == repr(value)


@given(
    st.dictionaries(st.from_regex(r"TENSOR_POOL_(OUTER|OUTR|NAMED)(__[A-Z0-9_]{0,8}){0,4}", fullmatch=True), TEXT, max_size=3),
    st.binary(max_size=60),
)
def test_garbage_in_environment_and_file_is_a_config_error_or_fine(environ: dict[str, str], content: bytes) -> None:
    root = dataclasses.make_dataclass("Root", [("outer", Outer, dataclasses.field(default_factory=Outer))], frozen=True)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "garbage.toml"
        path.write_bytes(content)
        with suppress(ConfigError):
            load(root, path, environ)


# --- lines -----------------------------------------------------------------------------------------------------------------

KEYS = NAMES | st.sampled_from(['"quoted key"', "'with.dot'", '"esc\\"aped"', '""', "'#'"])
VALUES = st.recursive(
    st.sampled_from(
        [
            "1",
            "-2.5e3",
            "true",
            '"text"',
            "'# no comment'",
            '"""\nlong " text ""\nline"""',
            "'''a\n[b]\n'''",
            '"""x""""',
            "2026-01-01 10:00:00",
            '"a\\\\"',
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: "[ # comment ]\n" + ",\n".join(parts) + "\n]")
        | st.dictionaries(KEYS, inner, max_size=2).map(
            lambda table: "{ " + ", ".join(f"{key} = {value}" for key, value in table.items()) + " }"
        )
    ),
    max_leaves=5,
)
STATEMENTS = st.one_of(
    st.tuples(KEYS, VALUES).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    st.tuples(KEYS, KEYS, VALUES).map(lambda three: f" {three[0]} . {three[1]}={three[2]} # comment"),
    KEYS.map(lambda key: f"[{key}] # [x]"),
    st.tuples(KEYS, KEYS).map(lambda pair: f"[ {pair[0]}.{pair[1]} ]"),
    KEYS.map(lambda key: f"[[{key}]]"),
    st.just(""),
)


def paths_of(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    elements = (
        value.items()
        if isinstance(value, dict)
        else ((str(index), one) for index, one in enumerate(value))
        if isinstance(value, list)
        else ()
    )
    found = {path} if path else set()
    for name, element in elements:
        found |= paths_of(element, (*path, name))
    return found


@given(st.lists(STATEMENTS, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_every_key_of_a_toml_text_is_found(statements: list[str], line_end: str) -> None:
    accepted = ""
    for statement in statements:
        candidate = accepted + statement.replace("\n", line_end) + line_end
        try:
            tomllib.loads(candidate)
        except tomllib.TOMLDecodeError:
            continue
        accepted = candidate
    assert set(key_lines(accepted)) == paths_of(tomllib.loads(accepted))


@given(st.lists(st.tuples(st.sampled_from(["", "# x", '"""\n"""', "[\n1,\n]"]), st.just(0)), max_size=10))
def test_a_key_is_on_the_line_where_it_begins(fillers: list[tuple[str, int]]) -> None:
    text = "".join(f"k{index} = {filler}\n" if filler and filler[0] != "#" else f"{filler}\n" for index, (filler, _) in enumerate(fillers))
    lines = key_lines(f"{text}wanted = 1\n")
    assert lines[("wanted",)] == text.count("\n") + 1
