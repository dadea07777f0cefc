"""Declaring settings: what a section accepts, however it is built."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest

from tensor_pool.config import section, setting
from tensor_pool.config.sections import settings_of
from tensor_pool.errors import ConfigError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@section("camera")
class Camera:
    rate_hz: float = setting(100.0, minimum=0.1, maximum=1e6, unit="Hz", help="Frames a second.")
    slots: int = setting(64, minimum=2, check=lambda value: "" if value.bit_count() == 1 else "is not a power of two")
    colour: Colour = setting(Colour.RED)
    mode: Literal["fast", "slow"] = setting("fast")
    tags: tuple[str, ...] = setting(())
    window: tuple[int, int] = setting((0, 10), minimum=0)
    path: Path = setting(Path("/dev/null"))
    token: str = setting("", is_secret=True)
    name: str | None = setting(None)
    level: int = setting(1, choices=(1, 2, 4))
    is_on: bool = setting(True)

    def __post_init__(self) -> None:
        if self.window[0] > self.window[1]:
            raise ValueError("the window is empty")


@section("with_required")
class WithRequired:
    stream_id: int = setting(minimum=1)


def test_a_section_is_frozen_and_has_its_defaults() -> None:
    camera = Camera()
    assert (camera.rate_hz, camera.slots, camera.colour, camera.name) == (100.0, 64, Colour.RED, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        camera.slots = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rate_hz", 0.01, "below the minimum"),
        ("rate_hz", 2e6, "above the maximum"),
        ("rate_hz", float("nan"), "minimum"),
        ("rate_hz", "100", "not a number"),
        ("rate_hz", True, "not a number"),
        ("slots", True, "not a whole number"),
        ("slots", 4.0, "not a whole number"),
        ("slots", 6, "power of two"),
        ("colour", "green", "not one of red, blue"),
        ("mode", "medium", "not one of fast, slow"),
        ("tags", "lab", "not a list"),
        ("tags", (1,), "not a text"),
        ("window", (1,), "2 elements"),
        ("window", (-1, 5), "below the minimum"),
        ("path", 3, "not a text"),
        ("name", 3, "not a text"),
        ("name", "a\0b", "NUL"),
        ("level", 3, "not one of 1, 2, 4"),
        ("is_on", 1, "not true or false"),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_range_is_refused_with_key_value_and_hint(key: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Camera(**{key: value})
    assert caught.value.key == f"camera.{key}"
    assert caught.value.value == value or value != value
    assert caught.value.hint


def test_values_are_brought_to_their_types() -> None:
    camera = Camera(rate_hz=5, colour="blue", tags=["a", "b"], path="/tmp")
    assert isinstance(camera.rate_hz, float)
    assert (camera.colour, camera.tags, camera.path) == (Colour.BLUE, ("a", "b"), Path("/tmp"))


def test_a_check_of_the_section_sees_checked_fields() -> None:
    with pytest.raises(ValueError, match="window is empty"):
        Camera(window=(3, 2))


def test_a_secret_is_in_no_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Camera(token=12345)
    assert "12345" not in str(caught.value)
    assert caught.value.value == "(secret)"


def test_a_setting_without_a_default_has_to_be_given() -> None:
    with pytest.raises(TypeError):
        WithRequired()
    assert WithRequired(stream_id=1).stream_id == 1


def test_a_mutable_default_is_refused_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="tuple"):
        setting([])


def test_a_type_that_toml_cannot_write_is_refused_with_the_name_of_the_field() -> None:
    @dataclasses.dataclass(frozen=True)
    class Wrong:
        when: complex = 1j

    Wrong.__annotations__["when"] = complex
    with pytest.raises(TypeError, match=r"Wrong\.when"):
        settings_of(Wrong)
