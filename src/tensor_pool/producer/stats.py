"""What a producer counts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ProducerState(Enum):
    """Whether `publish` works now."""

    ATTACHED = "attached"
    WAITING = "waiting"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Counts over the producer's life; `last_seq` and `epoch` are of the current epoch."""

    published: int = 0
    """Frames that were written and committed."""
    aborted: int = 0
    """Claims that were given up."""
    dropped_too_large: int = 0
    """Frames that no pool could hold."""
    descriptors_sent: int = 0
    descriptors_back_pressured: int = 0
    """Descriptors that Aeron refused because a reader is behind: the frames are in the ring all the same."""
    descriptors_not_connected: int = 0
    """Descriptors that nobody was there to read."""
    descriptors_closed: int = 0
    last_seq: int = -1
    """-1 before the first frame of the epoch."""
    epoch: int | None = None
    reattached: int = 0


COUNTER_NAMES = {
    "published": "frames_published",
    "aborted": "frames_aborted",
    "dropped_too_large": "frames_dropped_too_large",
    "descriptors_sent": "descriptors_sent",
    "descriptors_back_pressured": "descriptors_back_pressured",
    "descriptors_not_connected": "descriptors_not_connected",
    "descriptors_closed": "descriptors_closed",
}
