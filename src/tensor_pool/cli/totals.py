"""What became of every frame, over all epochs that a consumer saw: its own counts are the current one's, which ends with the camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensor_pool.client.consumer import Consumer
from tensor_pool.consumer.stats import ConsumerStats


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of the counts of epochs. `epochs` are those in which anything was published, `balanced` says that each of them adds up."""

    delivered: int = 0
    skipped: int = 0
    gap: int = 0
    late: int = 0
    invalid: int = 0
    unseen: int = 0
    epochs: int = 0
    balanced: bool = True

    def plus(self, epoch: ConsumerStats) -> Totals:
        """These and one more epoch."""
        return Totals(
            delivered=self.delivered + epoch.delivered,
            skipped=self.skipped + epoch.skipped,
            gap=self.gap + epoch.gap,
            late=self.late + epoch.late,
            invalid=self.invalid + epoch.invalid,
            unseen=self.unseen + epoch.unseen,
            epochs=self.epochs + (epoch.published > 0),
            balanced=self.balanced and epoch.balanced,
        )


class EpochTotals:
    """Adds up epochs as they end, since a consumer keeps only the last ones."""

    def __init__(self) -> None:
        self._ended = Totals()
        self._newest: ConsumerStats | None = None

    def with_current(self, earlier: Sequence[ConsumerStats], current: ConsumerStats) -> Totals:
        """Everything so far. `earlier` are the epochs that have ended, oldest first, as far as the consumer still has them."""
        # by identity: two epochs may well have the same counts
        known = next((index for index, epoch in enumerate(earlier, 1) if epoch is self._newest), 0)
        for epoch in earlier[known:]:
            self._ended = self._ended.plus(epoch)
            self._newest = epoch
        return self._ended.plus(current)


def counted_epochs(consumer: Consumer) -> tuple[tuple[ConsumerStats, ...], ConsumerStats]:
    """The epochs that have ended, and the current one; looked at again where one ended meanwhile, which would count twice or not at all."""
    while True:
        earlier = consumer.earlier_stats
        current = consumer.stats
        if consumer.earlier_stats == earlier:
            return earlier, current
