"""Segments on disk: found, opened by their index or, where there is none yet, by walking through them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from tensor_pool.errors import RecordingError
from tensor_pool.recorder.index import IndexRows, index_path, read_facts, read_index
from tensor_pool.recorder.recording import Verified, damaged
from tensor_pool.recorder.rows import INDEX_SUFFIX, SEGMENT_SUFFIX, Origin
from tensor_pool.recorder.scan import map_segment, scan_segment


@dataclass(slots=True)
class LoadedSegment:
    """Rows and bytes of a segment."""

    path: Path
    rows: IndexRows
    data: memoryview

    def payload(self, number: int, *, check: bool) -> memoryview:
        """The bytes of frame `number`, where they lie."""
        row = self.rows.frames[number]
        payload = self.data[row.offset : row.offset + row.length]
        if len(payload) != row.length:
            raise damaged(self.path, number, f"seq {row.seq} needs {row.length} bytes at {row.offset}, the file has {len(self.data)}")
        if check and crc32c(payload) != row.crc32c:
            raise damaged(self.path, number, f"the pixels of seq {row.seq} do not match their crc32c")
        return payload


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment and what is known of it without reading it all. `scanned` is there while it has no index."""

    path: Path
    origin: Origin
    frames: int
    gaps: int
    first_seq: int
    last_seq: int
    scanned: IndexRows | None = None

    def load(self) -> LoadedSegment:
        rows = self.scanned or read_index(index_path(self.path))
        if len(rows.frames) != self.frames:
            raise damaged(index_path(self.path), self.frames, "the index was replaced while it was read")
        return LoadedSegment(self.path, rows, map_segment(self.path))

    def verify(self) -> Verified:
        """Compare every byte with what a recorder would have written, and every row of the index with the segment."""
        loaded = self.load()
        found = scan_segment(self.path)
        if self.scanned is None:
            for number, (stored, seen) in enumerate(zip(loaded.rows.frames, found.frames, strict=False)):
                if stored != seen:
                    raise damaged(index_path(self.path), number, f"it is not the frame in {self.path.name}")
            if not found.is_sealed or len(loaded.rows.frames) != len(found.frames) or loaded.rows.gaps != found.gaps:
                raise damaged(self.path, len(found.frames), "the index has other rows than the segment")
        nbytes = sum(len(loaded.payload(number, check=True)) for number in range(self.frames))
        return Verified(1, self.frames, self.gaps, nbytes)


def open_segment(path: Path) -> StoredSegment | None:
    """A segment by its index, else by its chunks; None for one whose recorder died before the first frame."""
    index = index_path(path)
    if not index.exists():
        found = scan_segment(path)
        if found.preamble is None:
            return None
        rows = IndexRows(found.preamble.origin, found.frames, found.gaps)
        seqs = [row.seq for row in found.frames]
        return StoredSegment(path, rows.origin, len(seqs), len(rows.gaps), min(seqs, default=-1), max(seqs, default=-1), rows)
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
    return StoredSegment(path, facts.origin, facts.frames, facts.gaps, facts.first_seq, facts.last_seq)


def find_segments(path: Path) -> list[StoredSegment]:
    """All segments below a directory (or the one that is named), in the order of their frames."""
    if path.is_file() and path.suffix == SEGMENT_SUFFIX:
        paths = {path}
    elif path.is_dir():
        paths = {found for found in path.rglob(f"*{SEGMENT_SUFFIX}") if not found.name.startswith(".")}
        paths |= {found.with_name(found.name.removesuffix(INDEX_SUFFIX) + SEGMENT_SUFFIX) for found in path.rglob(f"[!.]*{INDEX_SUFFIX}")}
    else:
        raise RecordingError(f"{path} is not a recording", path=str(path), hint="give the directory that `tensor-pool record` wrote")
    if not paths and any(path.iterdir()):
        raise RecordingError(
            f"there are no segments below {path}", path=str(path), hint="give the directory that `tensor-pool record` wrote"
        )
    segments = [segment for found in paths if (segment := open_segment(found)) is not None]
    return sorted(segments, key=lambda segment: (segment.origin.source, segment.origin.stream_id, segment.origin.epoch, segment.path.name))
