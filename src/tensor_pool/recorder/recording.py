"""Read recordings: frames by index and by seq as numpy over the mapped file, gaps, and whether all of it is whole."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from tensor_pool.consumer.frame import Frame, FrameFields
from tensor_pool.errors import RecordingError
from tensor_pool.recorder.extra import record_extra
from tensor_pool.recorder.rows import FrameRow, GapRow, Origin

if TYPE_CHECKING:
    from tensor_pool.recorder.stored import LoadedSegment, StoredSegment

LOADED_SEGMENTS_KEPT: Final = 32
SKIP_HINT: Final = "Recording(..., skip_damaged=True) reads what is whole"


class RecordedFrame(Frame):
    """A frame of a recording. Its array lies in the mapped file: read-only, no copy, and it outlives the `Recording`."""

    __slots__ = ("crc32c", "name", "offset", "path", "recorded_ns", "row", "source")

    source: str
    name: str
    recorded_ns: int
    path: Path
    row: int
    offset: int
    crc32c: int


class Verified(NamedTuple):
    """What `Recording.verify` has looked at."""

    segments: int
    frames: int
    gaps: int
    nbytes: int


def make_frame(origin: Origin, path: Path, row: FrameRow, number: int, payload: memoryview) -> RecordedFrame:
    """The frame of a row over its bytes."""
    fields = FrameFields(
        payload, row.seq, origin.epoch, row.timestamp_ns, row.publish_timestamp_ns, row.meta_version, row.trace_id,
        row.dtype, row.major_order, row.shape, row.strides, row.length,
    )  # fmt: skip
    frame = RecordedFrame(fields, origin.stream_id)
    frame.source, frame.name = origin.source, origin.name
    frame.recorded_ns, frame.path, frame.row = row.recorded_ns, path, number
    frame.offset, frame.crc32c = row.offset, row.crc32c
    return frame


@dataclass(slots=True)
class _Shelf:
    """The segments that were looked at last, with their rows and mappings."""

    check: bool
    skip_damaged: bool
    _loaded: dict[Path, LoadedSegment] = field(default_factory=dict)

    def load(self, segment: StoredSegment) -> LoadedSegment:
        loaded = self._loaded.pop(segment.path, None) or segment.load(check=self.check)
        self._loaded[segment.path] = loaded
        while len(self._loaded) > LOADED_SEGMENTS_KEPT:
            del self._loaded[next(iter(self._loaded))]
        return loaded

    def frame(self, segment: StoredSegment, number: int) -> RecordedFrame:
        loaded = self.load(segment)
        payload = loaded.payload(number, check=self.check)
        return make_frame(segment.origin, segment.path, loaded.rows.frames[number], number, payload)

    def clear(self) -> None:
        self._loaded.clear()


class _Frames(Sequence[RecordedFrame]):
    """Frames of some segments, one after the other.

    Where one of them is damaged there are fewer than there should be: what lies before that place can be read, and what asks for all of
    them, or for what lies behind, raises. `skip_damaged` reads on.
    """

    def __init__(self, segments: Sequence[StoredSegment], shelf: _Shelf) -> None:
        self._segments = segments
        self._shelf = shelf
        self._ends = list(accumulate(segment.frames for segment in segments))
        self._first_damaged = next((place for place, segment in enumerate(segments) if segment.damage is not None), len(segments))

    @property
    def damaged(self) -> list[RecordingError]:
        """What is not as it was written, as far as one sees without reading it all. `verify` sees everything."""
        return [segment.damage for segment in self._segments if segment.damage is not None]

    def _need_whole(self, segments: int) -> None:
        """Raise when one of the first so many segments is damaged."""
        if self._first_damaged < segments and not self._shelf.skip_damaged:
            # the same words each time, without the traces of the times before
            raise self.damaged[0].with_traceback(None)

    def __len__(self) -> int:
        self._need_whole(len(self._segments))
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> RecordedFrame: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordedFrame]: ...
    def __getitem__(self, index: int | slice) -> RecordedFrame | list[RecordedFrame]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        place = bisect_right(self._ends, number)
        self._need_whole(place)
        if number < 0 or place == len(self._segments):
            raise IndexError(f"frame {index} of {len(self)}")
        segment = self._segments[place]
        return self._shelf.frame(segment, number - self._ends[place] + segment.frames)

    def __iter__(self) -> Iterator[RecordedFrame]:
        for place, segment in enumerate(self._segments):
            self._need_whole(place)
            for number in range(segment.frames):
                yield self._shelf.frame(segment, number)
        self._need_whole(len(self._segments))

    def gaps(self) -> list[GapRow]:
        """The frames that are missing, in order."""
        self._need_whole(len(self._segments))
        return [gap for segment in self._segments if segment.gaps for gap in self._shelf.load(segment).rows.gaps]

    @property
    def _size(self) -> str:
        """For people, who may ask what they have whatever state it is in."""
        count = self._ends[-1] if self._ends else 0
        return f"{count} frames" if not self.damaged else f"{count} frames that are whole, and damage,"

    def _find(self, seq: int, matches: Callable[[StoredSegment], bool]) -> RecordedFrame:
        for _, found in groupby(filter(matches, reversed(self._segments)), key=lambda segment: segment.origin.epoch):
            segments = list(found)
            for segment in segments:
                if not (segment.frames and segment.first_seq <= seq <= segment.last_seq):
                    continue
                rows = self._shelf.load(segment).rows.frames
                number = bisect_left(rows, seq, key=lambda row: row.seq)
                if number < len(rows) and rows[number].seq == seq:
                    return self._shelf.frame(segment, number)
            # it may have been there: an older epoch must not answer in its place
            if any(segment.damage is not None for segment in segments):
                self._need_whole(len(self._segments))
        raise KeyError(f"seq {seq} is not in this recording")


class RecordedStream(_Frames):
    """The frames of one stream of one driver, oldest first; `stream[0]`, `stream[-1]`, `stream[2:5]`, `for frame in stream`."""

    @property
    def source(self) -> str:
        """The driver instance that served the stream."""
        return self._segments[0].origin.source

    @property
    def stream_id(self) -> int:
        return self._segments[0].origin.stream_id

    @property
    def name(self) -> str:
        """What the stream was called, empty where nobody said."""
        return self._segments[-1].origin.name

    @property
    def epochs(self) -> list[int]:
        """The lives of the producer that are here, oldest first."""
        return list(dict.fromkeys(segment.origin.epoch for segment in self._segments))

    def frame(self, seq: int, epoch: int | None = None) -> RecordedFrame:
        """The frame of this seq, of the newest epoch that has it unless one is given. `KeyError` when it is not here."""
        return self._find(seq, lambda segment: epoch is None or segment.origin.epoch == epoch)

    def of_epoch(self, epoch: int) -> RecordedStream:
        """The frames of one epoch."""
        segments = [segment for segment in self._segments if segment.origin.epoch == epoch]
        if not segments:
            raise KeyError(f"epoch {epoch} is not in this recording")
        return RecordedStream(segments, self._shelf)

    def __repr__(self) -> str:
        return f"<RecordedStream {self.stream_id} {self.name!r}, {self._size} of {len(self.epochs)} epochs>"


class Recording(_Frames):
    """A recording as it is on disk when it is opened, sealed or still growing: all its frames, stream after stream.

    `check=False` leaves out the comparison of what is read with its crc32c. `skip_damaged=True` reads what is whole where something is
    damaged or missing, which otherwise raises when it is reached; `damaged` says what that is.
    """

    def __init__(self, path: str | Path, *, check: bool = True, skip_damaged: bool = False) -> None:
        with record_extra():
            from tensor_pool.recorder.stored import find_segments
        self.path = Path(path)
        super().__init__(find_segments(self.path), _Shelf(check, skip_damaged))
        if not self._ends or not self._ends[-1]:
            # nothing can be read: better said now than at the first frame
            self._need_whole(len(self._segments))

    def streams(self) -> list[RecordedStream]:
        """The recorded streams, by driver and id."""
        groups: dict[tuple[str, int], list[StoredSegment]] = {}
        for segment in self._segments:
            groups.setdefault((segment.origin.source, segment.origin.stream_id), []).append(segment)
        return [RecordedStream(group, self._shelf) for group in groups.values()]

    def stream(self, stream: int | str) -> RecordedStream:
        """One stream, by id or by name. `KeyError` when there is none, or several (of different drivers)."""
        found = [one for one in self.streams() if stream in (one.stream_id, one.name)]
        if len(found) != 1:
            have = ", ".join(f"{one.stream_id} {one.name!r} of {one.source}" for one in self.streams())
            raise KeyError(f"{len(found)} streams match {stream!r}; there are: {have or 'none'}")
        return found[0]

    def frame(self, seq: int, *, stream: int | str | None = None, epoch: int | None = None) -> RecordedFrame:
        """A frame by seq; `stream` may be left out where there is only one."""
        if stream is not None:
            return self.stream(stream).frame(seq, epoch)
        streams = self.streams()
        if len(streams) > 1:
            raise KeyError(f"there are {len(streams)} streams: say which one")
        if not streams:
            raise KeyError("the recording is empty")
        return streams[0].frame(seq, epoch)

    def verify(self) -> Verified:
        """Read everything and compare all checksums. `RecordingError` names the first file and row that is not as it was written."""
        totals = [segment.verify() for segment in self._segments]
        return Verified(
            len(totals), sum(rows.frames for rows in totals), sum(rows.gaps for rows in totals), sum(rows.nbytes for rows in totals)
        )

    def close(self) -> None:
        """Forget rows and mappings. Frames that were given out stay valid."""
        self._shelf.clear()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Recording {self.path}, {self._size} of {len(self.streams())} streams>"


def damaged(path: Path, row: int, reason: str, *, hint: str = "the other rows can be read: ask for them one by one") -> RecordingError:
    """A row that is not what was written."""
    return RecordingError(f"{path} row {row}: {reason}", path=str(path), row=row, hint=hint)
