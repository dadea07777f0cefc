"""The checker finds what is wrong in a history, and nothing in a right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensor_pool.testing import Event, EventLog, check_accounting, check_no_bad_frames, read_events


def event(kind: str, seq: int, crc: int | None = None, epoch: int = 1, **more: Any) -> Event:
    return Event(kind, epoch, seq, crc, 0, more)


def totals(epoch: int = 1, **counts: int) -> Event:
    every = dict.fromkeys(("delivered", "skipped", "gap", "late", "invalid", "unseen"), 0)
    return event("totals", -1, epoch=epoch, **{**every, **counts})


PUBLISHED = [event("publish", seq, crc=100 + seq) for seq in range(10)]
ACCEPTED = [event("accept", seq, crc=100 + seq) for seq in (2, 3, 7)]


def test_frames_as_they_were_published_are_good() -> None:
    assert check_no_bad_frames(PUBLISHED, ACCEPTED).passed


@pytest.mark.parametrize(
    "bad", [event("accept", 4, crc=105), event("accept", 10, crc=110), event("accept", 2, crc=102, epoch=2), event("accept", 2, crc=None)]
)
def test_a_frame_that_nobody_published_like_that_is_found(bad: Event) -> None:
    verdict = check_no_bad_frames(PUBLISHED, [*ACCEPTED, bad])
    assert len(verdict.problems) == 1
    with pytest.raises(AssertionError, match=r"1 problems"):
        verdict.require()


def test_a_withdrawn_view_may_hold_anything() -> None:
    assert check_no_bad_frames(PUBLISHED, [event("accept", 4, crc=1), event("withdraw", 4)]).passed


def test_a_frame_of_a_killed_producer_counts_by_its_attempt() -> None:
    assert check_no_bad_frames([event("attempt", 0, crc=7)], [event("accept", 0, crc=7)]).passed


def test_counts_that_add_up_are_good() -> None:
    right = totals(delivered=3, gap=1, late=2, first_seq=2, last_seq=7, unseen=2)
    verdict = check_accounting([*ACCEPTED, right], PUBLISHED)
    assert verdict.passed, verdict.problems
    assert verdict.figures == {"epochs": 1, "totals": 1, "accepted": 3, "seqs": 6, "losses": 3}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (totals(delivered=3, gap=1, late=1, first_seq=2, last_seq=7, unseen=2), "sum up to"),
        (totals(delivered=4, gap=1, late=1, first_seq=2, last_seq=7, unseen=2), "the history has 3 accepts"),
        (totals(delivered=3, gap=1, late=2, first_seq=2, last_seq=7, unseen=1), "were published since"),
        (totals(delivered=3, gap=2, first_seq=3, last_seq=7, unseen=2), "outside"),
    ],
)
def test_counts_that_do_not_add_up_are_found(wrong: Event, words: str) -> None:
    assert any(words in problem for problem in check_accounting([*ACCEPTED, wrong], PUBLISHED).problems)


def test_a_view_given_back_after_its_epoch_ended_may_count_as_delivered() -> None:
    right = totals(delivered=3, gap=1, late=2, first_seq=2, last_seq=7)
    withdrawn = event("accept", 4, crc=1), event("withdraw", 4, after_end=True)
    history = [*ACCEPTED[:2], *withdrawn, ACCEPTED[2]]
    assert check_accounting([*history, right]).passed
    assert check_accounting([*history, totals(delivered=4, gap=1, late=1, first_seq=2, last_seq=7)]).passed
    assert not check_accounting([*history, totals(delivered=5, gap=1, first_seq=2, last_seq=7)]).passed


def test_an_epoch_that_was_counted_in_two_parts_is_two_identities_with_nothing_between_them() -> None:
    first = totals(delivered=2, first_seq=2, last_seq=3, unseen=2)
    second = totals(delivered=1, gap=1, first_seq=6, last_seq=7, unseen=2)
    assert check_accounting([*ACCEPTED, first, second], PUBLISHED).passed
    wrong = totals(delivered=1, gap=2, first_seq=6, last_seq=7, unseen=2)
    assert not check_accounting([*ACCEPTED, first, wrong], PUBLISHED).passed
    holed = totals(delivered=2, first_seq=2, last_seq=3)
    assert any("from seq 6" in problem for problem in check_accounting([*ACCEPTED, holed, second], PUBLISHED).problems)


def test_a_seq_accepted_twice_is_found() -> None:
    history = [event("accept", 2), event("accept", 2), totals(delivered=2, first_seq=2, last_seq=3)]
    assert any("twice" in problem for problem in check_accounting(history).problems)


def test_accepts_without_totals_are_found() -> None:
    assert not check_accounting(ACCEPTED).passed


def test_a_burned_seq_counts_as_published_and_an_abort_does_not() -> None:
    producer = [event("publish", 0), event("abort", 1, burned=True), event("abort", 2)]
    assert check_accounting([event("accept", 0), totals(delivered=1, gap=1, first_seq=0, last_seq=1)], producer).passed


def test_a_log_is_readable_up_to_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog(path) as log:
        log.write("publish", 3, 4, 5, size=6)
        log.write("accept", 3, 4)
    with path.open("ab") as file:
        file.write(b'{"event":"pub')
    first, second = read_events(path)
    assert (first.event, first.epoch, first.seq, first.crc, first.more) == ("publish", 3, 4, 5, {"size": 6})
    assert second.crc is None


def test_a_line_that_is_no_event_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"event": 1}\n')
    with pytest.raises(ValueError, match="not an event"):
        list(read_events(path))
