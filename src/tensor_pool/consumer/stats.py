"""What a consumer knows about every sequence number since it attached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Counts of one epoch. `delivered + skipped + gap + late + invalid == last_seq - first_seq + 1`, always.

    They go on when the consumer lost its lease and won it back in the same epoch: what was published meanwhile is in `gap` as soon as a
    later frame has come, and in `unseen` until then.
    """

    delivered: int = 0
    """Frames handed to the user, whole."""
    skipped: int = 0
    """Frames passed over because the user asked for the newest."""
    gap: int = 0
    """Frames whose descriptor never came, or that lay too far back to be read in time."""
    late: int = 0
    """Frames that the producer had overwritten, wholly or in part, when they were read."""
    invalid: int = 0
    """Frames whose header failed a check."""
    unseen: int = 0
    """Frames in the ring after `last_seq` of which nothing has arrived so far."""
    first_seq: int = 0
    """The first seq this consumer answers for."""
    last_seq: int = -1
    """The last seq accounted for; `first_seq - 1` before the first."""
    epoch: int | None = None
    """The epoch that is mapped, or was mapped last (`consumer.state` says which). None before the first."""
    reattached: int = 0
    """How often the consumer came back by itself after a lost lease, over its whole life."""

    @property
    def balanced(self) -> bool:
        """Whether the accounting identity holds."""
        accounted = self.delivered + self.skipped + self.gap + self.late + self.invalid
        return accounted == self.last_seq - self.first_seq + 1

    @property
    def published(self) -> int:
        """How many frames the producer published since this consumer attached."""
        return self.last_seq - self.first_seq + 1 + self.unseen


def stats_from_counters(counters: dict[str, int], *, reattached: int) -> ConsumerStats:
    last_seq = counters["last_seq"]
    return ConsumerStats(
        delivered=counters["delivered"],
        skipped=counters["skipped"],
        gap=counters["gap"],
        late=counters["late"],
        invalid=counters["invalid"],
        unseen=max(0, counters["newest_committed"] - last_seq),
        first_seq=counters["first_seq"],
        last_seq=last_seq,
        epoch=counters.get("epoch"),
        reattached=reattached,
    )
