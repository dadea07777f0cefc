"""Options and arguments that are no numbers anybody can use: words and exit code 2, before anything is done."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tensor_pool.cli import main as entry
from tensor_pool.cli.parameters import stream_argument

NO_NUMBERS = [
    *(("publish", "--seconds", value) for value in ("nan", "inf", "1e300")),
    *(("publish", "--rate", value) for value in ("nan", "inf")),
    *(("publish", "--wait", value) for value in ("nan", "inf")),
    *(("tap", "camera-1", option, value) for option in ("--wait", "--seconds") for value in ("nan", "inf")),
    *(("record", "camera-1", "--output", "x", option, value) for option in ("--wait", "--seconds") for value in ("nan", "inf")),
    *(("publish", "--shape", shape) for shape in ("100000x100000", f"1x{'9' * 50}", f"1x{'9' * 5000}")),
    *(("tap", value) for value in ("99999999999", "0", "9" * 5000)),
]


@pytest.mark.parametrize("arguments", NO_NUMBERS, ids=lambda arguments: " ".join(arguments)[:40])
def test_what_cannot_be_counted_to_or_held_in_memory_is_a_usage_error(arguments: Sequence[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert entry.run(arguments) == 2
    said = capfd.readouterr()
    assert said.out == ""
    error, *more = said.err.splitlines()
    assert error.startswith("error: ")
    assert "no stack is running" not in error
    assert more[0] == ""
    assert more[1].startswith("hint: ")
    assert len(said.err) < 6000


def test_a_sky_that_the_machine_has_no_memory_for_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert entry.run(["publish", "--shape", "2000x2000"]) == 2
    assert "'--shape': the sky of such frames takes 192000000 bytes, of the 4096000 of this machine" in capfd.readouterr().err


def test_memory_that_is_not_given_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tensor_pool.cli.stream_commands.SyntheticCamera", refuse)
    assert entry.run(["publish"]) == 2
    assert "'--shape': the sky of such frames takes " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "stream"), [("1", 1), ("4294967294", 4294967294), ("٣", 3), ("²", "²"), ("camera-1", "camera-1"), ("-1", "-1")]
)
def test_a_number_is_a_stream_id_and_all_else_a_name(text: str, stream: int | str) -> None:
    assert stream_argument(text) == stream
