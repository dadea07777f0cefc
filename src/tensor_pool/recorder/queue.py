"""What waits for the disk: bounded in frames and in bytes, and nobody waits to get in."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

from tensor_pool.consumer.frame import Frame
from tensor_pool.recorder.rows import GapRow

FRAME_OVERHEAD_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class QueuedFrame:
    """A frame as it arrived."""

    frame: Frame
    recorded_ns: int


@dataclass(frozen=True, slots=True)
class QueuedGap:
    """Frames that did not arrive, in the place where they would have."""

    stream_id: int
    epoch: int
    gap: GapRow


Queued = QueuedFrame | QueuedGap


class RecordQueue:
    """Between the threads that read and the one that writes."""

    def __init__(self, *, frames: int, bytes_: int) -> None:
        self._largest_frames = frames
        self._largest_bytes = bytes_
        self._items: deque[Queued] = deque()
        self._frames = 0
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, item: QueuedFrame) -> bool:
        """Take a frame, unless the queue is full. One frame always fits into an empty queue."""
        with self._changed:
            nbytes = item.frame.nbytes + FRAME_OVERHEAD_BYTES
            if self._closed or (self._frames and (self._frames >= self._largest_frames or self._bytes + nbytes > self._largest_bytes)):
                return False
            self._items.append(item)
            self._frames += 1
            self._bytes += nbytes
            self._changed.notify()
            return True

    def put(self, item: QueuedGap) -> None:
        """Gaps are small and always have room; a run of them becomes one, however long the disk is away."""
        with self._changed:
            last = self._items[-1] if self._items else None
            if isinstance(last, QueuedGap) and (last.stream_id, last.epoch) == (item.stream_id, item.epoch):
                before, gap = last.gap, item.gap
                if before.cause == gap.cause and before.last_seq + 1 == gap.first_seq:
                    self._items[-1] = QueuedGap(item.stream_id, item.epoch, before._replace(last_seq=gap.last_seq))
                    return
            self._items.append(item)
            self._changed.notify()

    def take(self, timeout: float, *, largest_bytes: int, largest_items: int) -> list[Queued]:
        """What is there: one frame of any size, and more as long as they are small together. Empty after `timeout` seconds."""
        with self._changed:
            if not self._items and not self._closed:
                self._changed.wait(timeout)
            taken: list[Queued] = []
            total = 0
            while self._items and len(taken) < largest_items:
                item = self._items[0]
                nbytes = item.frame.nbytes if isinstance(item, QueuedFrame) else 0
                if taken and total + nbytes > largest_bytes:
                    break
                taken.append(self._items.popleft())
                total += nbytes
                if isinstance(item, QueuedFrame):
                    self._frames -= 1
                    self._bytes -= nbytes + FRAME_OVERHEAD_BYTES
            return taken

    def close(self) -> None:
        """No more frames; what is there can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_drained(self) -> bool:
        with self._changed:
            return self._closed and not self._items

    @property
    def frames(self) -> int:
        """How many frames wait."""
        with self._changed:
            return self._frames
