"""What a recording says about each frame and each gap: the rows of the index, and what a scan of a segment finds."""

from __future__ import annotations

from typing import Final, NamedTuple

FORMAT_VERSION: Final = 1

SEGMENT_SUFFIX: Final = ".mcap"
INDEX_SUFFIX: Final = ".index.parquet"


class Origin(NamedTuple):
    """Whose frames a segment holds: one life of one producer, as one driver knew it."""

    source: str
    stream_id: int
    name: str
    epoch: int


class FrameRow(NamedTuple):
    """One frame: what it is, and where in its segment the payload lies."""

    seq: int
    timestamp_ns: int
    publish_timestamp_ns: int | None
    recorded_ns: int
    meta_version: int
    trace_id: int
    dtype: int
    major_order: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    offset: int
    length: int
    crc32c: int
    head_length: int = 0
    """The bytes between the payload before (or the preamble) and this one: its record's header, and whatever else stands there."""
    head_crc32c: int = 0


class GapRow(NamedTuple):
    """Frames `first_seq` to `last_seq` that are not here.

    `cause` is gap, late, invalid or skipped (the consumer's words), disk, recorder (none was running), or several joined by +.
    """

    first_seq: int
    last_seq: int
    cause: str
    recorded_ns: int = 0

    @property
    def frames(self) -> int:
        """How many frames are missing."""
        return self.last_seq - self.first_seq + 1
