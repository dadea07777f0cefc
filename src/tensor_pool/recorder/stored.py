"""Segments on disk: found, opened by their index or, where there is none yet, by walking through them, and compared with their neighbours.

Readers and recorders judge with the same eyes: what a reader calls damaged, a recorder leaves as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from crc32c import crc32c

from tensor_pool.errors import RecordingError
from tensor_pool.recorder.index import IndexRows, SegmentEnds, index_path, read_facts, read_index
from tensor_pool.recorder.recording import SKIP_HINT, Verified, damaged
from tensor_pool.recorder.rows import INDEX_SUFFIX, SEGMENT_SUFFIX, FrameRow, Origin
from tensor_pool.recorder.scan import ScannedSegment, map_segment, scan_segment, scan_until_damage

_UNKNOWN: Final = Origin("", 0, "", 0)
_EPOCH_PREFIXES: Final = ("source=", "stream=", "epoch=")


def payload_of(path: Path, data: memoryview, row: FrameRow, number: int, *, check: bool) -> memoryview:
    """The bytes of a frame, where they lie; they and what stands before them compared with their checksums, unless told otherwise."""
    payload = data[row.offset : row.offset + row.length]
    if len(payload) != row.length:
        raise damaged(path, number, f"seq {row.seq} needs {row.length} bytes at {row.offset}, the file has {len(data)}")
    if check:
        if crc32c(data[row.offset - row.head_length : row.offset]) != row.head_crc32c:
            raise damaged(path, number, f"the header of seq {row.seq} does not match its crc32c")
        if crc32c(payload) != row.crc32c:
            raise damaged(path, number, f"the pixels of seq {row.seq} do not match their crc32c")
    return payload


def map_checked(path: Path, ends: SegmentEnds, frames: int) -> memoryview:
    """The mapped file of a sealed segment, its beginning and its end compared with the checksums of the index."""
    data = map_segment(path)
    hint = f"Recording(..., check=False) reads the frames; {index_path(path).name} has the rest"
    if not ends.preamble_is_whole(data):
        raise damaged(path, 0, "its first bytes do not match their crc32c", hint=hint)
    if not ends.tail_is_whole(data):
        raise damaged(path, frames, "its last bytes, the summary, do not match their crc32c", hint=hint)
    return data


@dataclass(slots=True)
class LoadedSegment:
    """Rows and bytes of a segment."""

    path: Path
    rows: IndexRows
    data: memoryview

    def payload(self, number: int, *, check: bool) -> memoryview:
        """The bytes of frame `number`, where they lie."""
        return payload_of(self.path, self.data, self.rows.frames[number], number, check=check)


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment and what is known of it without reading it all."""

    path: Path
    origin: Origin
    frames: int = 0
    gaps: int = 0
    first_seq: int = -1
    last_seq: int = -1
    answers_from: int = -1
    answers_to: int = -1
    """The first and the last seq that is here or in a gap, -1 for none."""
    ends: SegmentEnds | None = None
    """There when it was opened by its index."""
    found: ScannedSegment | None = None
    """There when it was opened by walking through it."""
    damage: RecordingError | None = None
    """What is wrong with it, or is missing behind it. The frames told here are before that, and whole as far as one sees from outside."""

    def load(self, *, check: bool) -> LoadedSegment:
        if self.found is not None:
            return LoadedSegment(self.path, IndexRows(self.origin, self.found.frames, self.found.gaps), map_segment(self.path))
        rows = read_index(index_path(self.path))
        if len(rows.frames) != self.frames:
            raise damaged(index_path(self.path), self.frames, "the index was replaced while it was read")
        assert self.ends is not None
        data = map_checked(self.path, self.ends, self.frames) if check else map_segment(self.path)
        return LoadedSegment(self.path, rows, data)

    def verify(self) -> Verified:
        """Compare every byte with what a recorder would have written, and every row of the index with the segment."""
        if self.damage is not None:
            raise self.damage.with_traceback(None)
        loaded = self.load(check=True)
        found = scan_segment(self.path)
        if self.found is None:
            for number, (stored, seen) in enumerate(zip(loaded.rows.frames, found.frames, strict=False)):
                if stored != seen:
                    raise damaged(index_path(self.path), number, f"it is not the frame in {self.path.name}")
            if not found.is_sealed or len(loaded.rows.frames) != len(found.frames) or loaded.rows.gaps != found.gaps:
                raise damaged(self.path, len(found.frames), "the index has other rows than the segment")
        for (_, before), (after, _) in pairwise(loaded.rows.spans):
            if after != before + 1:
                row = sum(1 for frame in loaded.rows.frames if frame.seq <= before)
                raise damaged(self.path, row, _hole(before, after))
        nbytes = sum(len(loaded.payload(number, check=True)) for number in range(self.frames))
        return Verified(1, self.frames, self.gaps, nbytes)


def _hole(before: int, after: int) -> str:
    """What is wrong with seq `after` behind seq `before`."""
    if after <= before:
        return f"seq {after} is there twice"
    return f"seq {before + 1} to {after - 1} are neither here nor in a gap"


def _open(path: Path, *, is_last: bool) -> StoredSegment | None:
    """A segment by its index, else by its chunks; None for one whose recorder died before the first bytes were whole."""
    try:
        if index_path(path).exists():
            return _open_by_index(path)
        found, damage = scan_until_damage(path)
    except RecordingError as error:
        return StoredSegment(path, _UNKNOWN, damage=error)
    if damage is None and found.is_torn and not is_last:
        # only the newest can have been open when its recorder died
        reason = f"it ends within a record at byte {found.whole_bytes}, and there is a later segment"
        damage = damaged(path, len(found.frames), reason, hint=SKIP_HINT)
    if found.preamble is None:
        return None if damage is None else StoredSegment(path, _UNKNOWN, damage=damage)
    rows = IndexRows(found.preamble.origin, found.frames, found.gaps)
    seqs, spans = [row.seq for row in found.frames], rows.spans
    return StoredSegment(
        path, rows.origin, len(seqs), len(rows.gaps), min(seqs, default=-1), max(seqs, default=-1),
        spans[0][0] if spans else -1, spans[-1][1] if spans else -1, found=found, damage=damage,
    )  # fmt: skip


def _open_by_index(path: Path) -> StoredSegment:
    index = index_path(path)
    facts = read_facts(index)
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise damaged(path, 0, f"the segment of {index.name} cannot be read: {error.strerror}") from error
    if size_bytes != facts.segment_bytes:
        whole = sum(1 for row in read_index(index).frames if row.offset + row.length <= size_bytes)
        raise RecordingError(
            f"{path} row {whole}: the segment was sealed with {facts.segment_bytes} bytes and has {size_bytes}",
            path=str(path),
            row=whole,
            hint=f"delete {index.name} to read the frames that are whole" if size_bytes < facts.segment_bytes else "",
        )
    return StoredSegment(
        path, facts.origin, facts.frames, facts.gaps, facts.first_seq, facts.last_seq, facts.answers_from, facts.answers_to, facts.ends
    )


def segment_number(path: Path) -> int:
    """The number a recorder gave the segment, 0 for a name that it does not give."""
    return int(path.stem) if path.stem.isdecimal() else 0


def _origin_by_path(directory: Path) -> Origin:
    """Whose frames a directory holds by its name, for segments that cannot say it themselves."""
    parts = [part.removeprefix(prefix) for part, prefix in zip(directory.parts[-3:], _EPOCH_PREFIXES, strict=False)]
    if not is_epoch_directory(directory) or not all(part.isdecimal() for part in parts[1:]):
        return _UNKNOWN
    return Origin(unquote(parts[0]), int(parts[1]), "", int(parts[2]))


def is_epoch_directory(directory: Path) -> bool:
    """Whether it is called as a recorder calls the directory of an epoch."""
    names = directory.parts[-3:]
    return len(names) == 3 and all(name.startswith(prefix) for name, prefix in zip(names, _EPOCH_PREFIXES, strict=True))


def open_directory(directory: Path, paths: Iterable[Path]) -> list[StoredSegment]:
    """The segments of one directory in their order, and in their place those that are missing. `paths` are all that it has."""
    ordered = sorted(paths, key=lambda path: (segment_number(path), path.name))
    opened = [segment for path in ordered if (segment := _open(path, is_last=path == ordered[-1])) is not None]
    origin = next((segment.origin for segment in opened if segment.origin != _UNKNOWN), None) or _origin_by_path(directory)
    opened = [replace(segment, origin=origin) if segment.origin == _UNKNOWN else segment for segment in opened]
    if any(segment.origin._replace(name=origin.name) != origin or not segment_number(segment.path) for segment in opened):
        # not the work of one recorder: somebody put these files together, and neighbours need not fit
        return opened
    return _with_holes(_with_missing(directory, opened))


def _with_holes(segments: list[StoredSegment]) -> list[StoredSegment]:
    """Each segment whose next one does not go on where it ends is damaged."""
    result = list(segments)
    before: int | None = None
    for place, segment in enumerate(segments):
        if before is not None and segment.answers_from >= 0 and segment.answers_from != result[before].answers_to + 1:
            one = result[before]
            reason = f"in {segment.path.name}, which is the next one: {_hole(one.answers_to, segment.answers_from)}"
            result[before] = replace(one, damage=damaged(one.path, one.frames, reason, hint=SKIP_HINT))
        if segment.damage is not None:
            before = None
        elif segment.answers_to >= 0:
            before = place
    return result


def _with_missing(directory: Path, segments: list[StoredSegment]) -> list[StoredSegment]:
    """A recorder numbers from 1 without a gap. Only in a directory of its making: elsewhere somebody may have copied the later ones."""
    result: list[StoredSegment] = []
    expected = 1 if is_epoch_directory(directory) else 0
    for segment in segments:
        number = segment_number(segment.path)
        if 0 < expected < number:
            path = directory / f"{expected:06}{SEGMENT_SUFFIX}"
            others = f" with all before {segment.path.name}" if number > expected + 1 else ""
            damage = RecordingError(f"{path} row 0: the segment is missing{others}", path=str(path), row=0, hint=SKIP_HINT)
            result.append(StoredSegment(path, segment.origin, damage=damage))
        result.append(segment)
        expected = number + 1
    return result


def segment_paths(directory: Path, *, pattern: str = "*") -> set[Path]:
    """The segments of a directory; those too of which only the index is left."""
    paths = {found for found in directory.glob(f"{pattern}{SEGMENT_SUFFIX}") if not found.name.startswith(".")}
    indexes = (found for found in directory.glob(f"{pattern}{INDEX_SUFFIX}") if not found.name.startswith("."))
    return paths | {found.with_name(found.name.removesuffix(INDEX_SUFFIX) + SEGMENT_SUFFIX) for found in indexes}


def find_segments(path: Path) -> list[StoredSegment]:
    """All segments below a directory (or the one that is named), in the order of their frames."""
    if path.is_file() and path.suffix == SEGMENT_SUFFIX:
        # its neighbours too: they say whether it may be torn
        return [segment for segment in open_directory(path.parent, segment_paths(path.parent) | {path}) if segment.path == path]
    if not path.is_dir():
        raise RecordingError(f"{path} is not a recording", path=str(path), hint="give the directory that `tensor-pool record` wrote")
    paths = segment_paths(path, pattern="**/*")
    if not paths and any(path.iterdir()):
        raise RecordingError(
            f"there are no segments below {path}", path=str(path), hint="give the directory that `tensor-pool record` wrote"
        )
    by_directory = groupby(sorted(paths, key=lambda found: found.parent), key=lambda found: found.parent)
    segments = [segment for directory, found in by_directory for segment in open_directory(directory, found)]
    # within a directory the order is that of the numbers
    return sorted(segments, key=lambda segment: (segment.origin.source, segment.origin.stream_id, segment.origin.epoch))
