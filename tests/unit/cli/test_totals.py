"""What `tap` says at the end of several epochs."""

from __future__ import annotations

from tensor_pool.cli.totals import EpochTotals, Totals
from tensor_pool.consumer.stats import ConsumerStats

FRESH = ConsumerStats()


def epoch_of(frames: int, **counts: int) -> ConsumerStats:
    return ConsumerStats(delivered=frames - sum(counts.values()), first_seq=0, last_seq=frames - 1, epoch=1, **counts)


def test_the_current_epoch_and_those_that_ended_are_added_up() -> None:
    totals = EpochTotals()
    assert totals.with_current((), FRESH) == Totals()
    assert totals.with_current((), epoch_of(5, gap=1)) == Totals(delivered=4, gap=1, epochs=1)
    assert totals.with_current((epoch_of(9, gap=1, late=2),), FRESH) == Totals(delivered=6, gap=1, late=2, epochs=1)


def test_each_epoch_counts_once_though_the_consumer_forgets_the_oldest() -> None:
    totals = EpochTotals()
    # alike on purpose: a camera that is started over and over again
    ended = [epoch_of(10, skipped=2, invalid=1) for _ in range(100)]
    for number in range(1, 101):
        said = totals.with_current(ended[max(0, number - 64) : number], FRESH)
        assert said == Totals(delivered=7 * number, skipped=2 * number, invalid=number, epochs=number)
        assert totals.with_current(ended[max(0, number - 64) : number], FRESH) == said


def test_an_epoch_of_which_nothing_was_read_is_counted_and_an_empty_one_is_none() -> None:
    unread = ConsumerStats(unseen=3, first_seq=0, last_seq=-1, epoch=2)
    empty = ConsumerStats(first_seq=7, last_seq=6, epoch=3)
    assert EpochTotals().with_current((unread, empty), FRESH) == Totals(unseen=3, epochs=1)


def test_one_epoch_that_does_not_add_up_is_seen() -> None:
    wrong = ConsumerStats(delivered=1, first_seq=0, last_seq=4, epoch=1)
    assert not EpochTotals().with_current((wrong, epoch_of(3)), FRESH).balanced
