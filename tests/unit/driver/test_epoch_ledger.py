"""Epochs rise, and are written down before they are used."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_pool.driver.epochs import HIGHEST_EPOCH, EpochLedger
from tensor_pool.errors import RegionError

NOW_NS = 1_700_000_000_000_000_000
NOW_MS = NOW_NS // 1_000_000


def ledger(path: Path, *, realtime_ns: int = NOW_NS, on_disk: dict[int, list[int]] | None = None) -> EpochLedger:
    made = EpochLedger(path / "state" / "epochs.json", lambda: realtime_ns)
    made.load(on_disk or {})
    return made


def test_the_first_epoch_is_above_the_clock_and_the_next_is_one_more(tmp_path: Path) -> None:
    one = ledger(tmp_path)
    assert [one.next(7), one.next(7), one.next(8), one.next(7)] == [NOW_MS + 1, NOW_MS + 2, NOW_MS + 1, NOW_MS + 3]


@pytest.mark.requirement("D-10-3")
def test_an_epoch_is_on_disk_before_it_is_given(tmp_path: Path) -> None:
    epoch = ledger(tmp_path).next(7)
    document = json.loads((tmp_path / "state" / "epochs.json").read_text())
    assert document == {"format": 1, "epochs": {"7": epoch}}
    assert stat.S_IMODE((tmp_path / "state" / "epochs.json").stat().st_mode) == 0o600


@settings(deadline=None, max_examples=50)
@given(
    lives=st.lists(
        st.tuples(
            st.integers(0, 10),
            st.integers(-(10**18), 10**18),
            st.booleans(),
            st.lists(st.integers(0, 2**64), max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_epochs_rise_over_any_lives_and_any_clock(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int, bool, list[int]]]
) -> None:
    path = tmp_path_factory.mktemp("lives")
    highest = 0
    for count, step_ns, is_file_lost, strange in lives:
        if is_file_lost:
            (path / "state" / "epochs.json").unlink(missing_ok=True)
        # the directories of the highest epoch are still there, beside what somebody else put there
        one = ledger(path, realtime_ns=max(0, NOW_NS + step_ns), on_disk={7: [highest, *strange]})
        for _ in range(count):
            try:
                epoch = one.next(7)
            except RegionError:
                assert any(HIGHEST_EPOCH - 100 <= number < HIGHEST_EPOCH for number in strange) or highest > HIGHEST_EPOCH - 100
                return
            assert highest < epoch <= HIGHEST_EPOCH
            highest = epoch


def test_a_directory_that_claims_the_last_epoch_does_not_use_them_up(tmp_path: Path) -> None:
    one = ledger(tmp_path, on_disk={7: [2**64 - 1, HIGHEST_EPOCH, 5]})
    assert one.next(7) == NOW_MS + 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 2, "epochs": {}}',
        '{"format": 1}',
        '{"format": 1, "epochs": []}',
        '{"format": 1, "epochs": {"x": 1}}',
        '{"format": 1, "epochs": {"7": "1"}}',
        '{"format": 1, "epochs": {"7": -1}}',
        '{"format": 1, "epochs": {"7": 1.5}}',
        '{"format": 1, "epochs": {"7": 18446744073709551615}}',
    ],
)
def test_a_damaged_file_is_refused_by_name_and_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "state" / "epochs.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(RegionError) as caught:
        ledger(tmp_path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert path.read_text() == content


def test_a_file_that_cannot_be_written_gives_no_epoch(tmp_path: Path) -> None:
    one = ledger(tmp_path)
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(RegionError, match="cannot write"):
        one.next(7)
    os.unlink(tmp_path / "state")
    assert one.next(7) == NOW_MS + 1
