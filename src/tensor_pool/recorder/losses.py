"""Which frames a recorder did not get, from the seqs that arrive and the consumer's own counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tensor_pool.consumer.stats import ConsumerStats
from tensor_pool.recorder.rows import GapRow

CAUSES: Final = ("gap", "late", "invalid", "skipped")


@dataclass(slots=True)
class LossTracker:
    """Every seq the consumer answers for is either a frame that arrived or in one of the gaps returned here."""

    _epoch: int | None = None
    _next_seq: int = 0
    _counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))

    def expects(self, epoch: int, seq: int) -> bool:
        """Whether this frame is simply the next one: then there is no need to ask the consumer for its counts."""
        return epoch == self._epoch and seq == self._next_seq

    def arrived(self, epoch: int, seq: int, known: Iterable[ConsumerStats]) -> list[tuple[int, GapRow]]:
        """Frame `seq` is here. Returns (epoch, gap) for what is missing before it; `known` are the consumer's counts, all epochs."""
        counts = _by_epoch(known)
        gaps = self._turn_to(epoch, counts, first_seq=seq) if epoch != self._epoch else []
        gaps += self._missing_before(seq, counts.get(epoch))
        self._next_seq = max(self._next_seq, seq + 1)
        return gaps

    def ended(self, known: Iterable[ConsumerStats]) -> list[tuple[int, GapRow]]:
        """No more frames: what was lost after the last one, and epochs of which none came."""
        counts = _by_epoch(known)
        newest = max(counts, default=None)
        gaps = self._turn_to(newest, counts) if newest is not None and (self._epoch is None or newest > self._epoch) else []
        if self._epoch in counts:
            gaps += self._missing_before(counts[self._epoch].last_seq + 1, counts[self._epoch])
        return gaps

    def _turn_to(self, epoch: int, counts: dict[int, ConsumerStats], first_seq: int = 0) -> list[tuple[int, GapRow]]:
        """Close the books of the epochs before and open those of this one."""
        gaps = []
        if self._epoch is not None:
            passed = sorted(key for key in counts if self._epoch <= key < epoch)
            for key in passed:
                if key != self._epoch:
                    self._open(key, counts[key].first_seq)
                gaps += self._missing_before(counts[key].last_seq + 1, counts[key])
        self._open(epoch, counts[epoch].first_seq if epoch in counts else first_seq)
        return gaps

    def _open(self, epoch: int, first_seq: int) -> None:
        self._epoch, self._next_seq = epoch, first_seq
        self._counted = dict.fromkeys(CAUSES, 0)

    def _missing_before(self, seq: int, stats: ConsumerStats | None) -> list[tuple[int, GapRow]]:
        if self._epoch is None or seq <= self._next_seq:
            return []
        causes = []
        if stats is not None:
            for cause in CAUSES:
                now = getattr(stats, cause)
                if now > self._counted[cause]:
                    causes.append(cause)
                self._counted[cause] = now
        gap = GapRow(self._next_seq, seq - 1, "+".join(causes) or "gap")
        self._next_seq = seq
        return [(self._epoch, gap)]


def _by_epoch(known: Iterable[ConsumerStats]) -> dict[int, ConsumerStats]:
    return {stats.epoch: stats for stats in known if stats.epoch is not None}
