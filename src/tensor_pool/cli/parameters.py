"""The types of options and arguments that more than one command has."""

from __future__ import annotations

import math
from typing import Any, Final

import click

from tensor_pool.driver.config import HIGHEST_STREAM_ID, is_stream_id
from tensor_pool.errors import ConfigError

# thirty years: whoever means for ever leaves the option out
MOST_SECONDS: Final = 1_000_000_000


class Number(click.FloatRange):
    """A number between two others. click's own range lets nan pass, which is neither below nor above anything."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


verify_option = click.option("--verify", is_flag=True, help="Compare the seq in every row (frames of `tensor-pool publish`).")


def seconds_from(lowest: float) -> Number:
    """A duration in seconds."""
    return Number(lowest, MOST_SECONDS)


class Shape(click.ParamType[tuple[int, int]]):
    """Rows and columns, as in 512x640."""

    name = "HEIGHTxWIDTH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        try:
            height, width = (int(part) for part in str(value).lower().split("x"))
        except ValueError:
            self.fail(f"{value!r} is not a shape; write 512x640 for 512 rows of 640 pixels", param, ctx)
        if height < 1 or width < 1:
            self.fail(f"{value!r}: rows and columns start at 1", param, ctx)
        return height, width


def stream_argument(value: str) -> int | str:
    """A stream id where it is a number, else a name."""
    # not isdigit, for which ² is a number too
    if not value.isdecimal():
        return value
    # a longer text need not be read to know that it is too large, and Python refuses to read a very long one
    if len(value) > len(str(HIGHEST_STREAM_ID)) or not is_stream_id(int(value)):
        raise ConfigError(
            f"{value:.80} is no stream id",
            source="command line",
            key="stream",
            value=value[:80],
            hint=f"ids are 1 to {HIGHEST_STREAM_ID}; names are not numbers",
        )
    return int(value)
