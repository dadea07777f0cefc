"""What a reader gets: an owned frame, or a view of the slot itself. Both are made in native code; here is what few frames need."""

from __future__ import annotations

from typing import Any, NamedTuple

from tensor_pool._native import BorrowedFrame, Frame

__all__ = ["BorrowedFrame", "Frame", "FrameFields", "reduced"]


class FrameFields(NamedTuple):
    """A frame's header and bytes as plain values: what pickled and recorded frames are made of."""

    buffer: Any
    seq: int
    epoch: int
    timestamp_ns: int
    publish_timestamp_ns: int | None
    meta_version: int
    trace_id: int
    dtype: int
    major_order: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    nbytes: int


def reduced(frame: Frame) -> tuple[Any, ...]:
    """What pickle keeps of a frame."""
    values = [getattr(frame, name) for name in FrameFields._fields]
    values[0] = bytes(frame.payload)
    return (_unpickle_frame, (tuple(values), frame.stream_id))


def _unpickle_frame(values: tuple[Any, ...], stream_id: int) -> Frame:
    fields = FrameFields(*values)
    return Frame(fields._replace(buffer=bytearray(fields.buffer)), stream_id)
