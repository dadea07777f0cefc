"""A consumer without a stack: plays frames and losses from a script, and counts like the real one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tensor_pool.consumer.frame import Frame, FrameFields
from tensor_pool.consumer.stats import ConsumerStats
from tensor_pool.tensors import validate_publishable

DEFAULT_STREAM_ID = 10_000


class Lost(NamedTuple):
    """A step of a script: the next `frames` seqs do not arrive."""

    frames: int
    cause: str = "gap"


class NewEpoch(NamedTuple):
    """A step of a script: the producer comes back."""

    epoch: int
    first_seq: int = 0


def played_frame(array: np.ndarray[Any, Any], seq: int, *, epoch: int = 1, stream_id: int = DEFAULT_STREAM_ID, **fields: Any) -> Frame:
    """The frame that a consumer would give out for this array. `fields` are those of `FrameFields`."""
    layout = validate_publishable(array)
    values: dict[str, Any] = {
        "buffer": memoryview(array.tobytes(order="A")),
        "timestamp_ns": 1_000_000_000 + seq * 2_000_000,
        "publish_timestamp_ns": None,
        "meta_version": 0,
        "trace_id": 0,
        "dtype": layout.dtype,
        "major_order": layout.major_order,
        "shape": layout.shape,
        "strides": None,
        "nbytes": array.nbytes,
    }
    return Frame(FrameFields(seq=seq, epoch=epoch, **(values | fields)), stream_id)


class PlayedConsumer:
    """Reads like a consumer. `finished` is set when the script is over."""

    def __init__(
        self,
        script: Sequence[Frame | Lost | NewEpoch],
        *,
        stream_id: int = DEFAULT_STREAM_ID,
        epoch: int = 1,
        first_seq: int = 0,
        error: Exception | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.finished = threading.Event()
        self.closed = threading.Event()
        self.earlier_stats: tuple[ConsumerStats, ...] = ()
        self.stats = ConsumerStats(epoch=epoch, first_seq=first_seq, last_seq=first_seq - 1)
        self._steps = iter(script)
        self._error = error

    def read(self, timeout: float | None = None) -> Frame | None:
        for step in self._steps:
            if isinstance(step, NewEpoch):
                self.earlier_stats = (*self.earlier_stats, self.stats)
                self.stats = ConsumerStats(epoch=step.epoch, first_seq=step.first_seq, last_seq=step.first_seq - 1)
            elif isinstance(step, Lost):
                self._count(step.cause, step.frames)
            else:
                self._count("delivered", 1)
                return step
        self.finished.set()
        if self._error is not None:
            raise self._error
        self.closed.wait(timeout)
        return None

    def _count(self, name: str, frames: int) -> None:
        counted = {name: getattr(self.stats, name) + frames, "last_seq": self.stats.last_seq + frames}
        self.stats = replace(self.stats, **counted)

    def close(self) -> None:
        self.closed.set()
