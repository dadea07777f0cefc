"""The index of a sealed segment: one row a frame, then one a gap, in Parquet, for us and for DuckDB, polars, pandas and Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from tensor_pool.errors import RecordingError
from tensor_pool.recorder.rows import FORMAT_VERSION, INDEX_SUFFIX, FrameRow, GapRow, Origin
from tensor_pool.recorder.scan import map_segment
from tensor_pool.runtime import failpoints
from tensor_pool.tensors import COLUMN_MAJOR, ROW_MAJOR, dtype_name

_DIMENSIONS: Final = pa.list_(pa.int64())
SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("source", pa.string()),
        ("stream", pa.int64()),
        ("name", pa.string()),
        ("epoch", pa.int64()),
        ("seq", pa.int64()),
        ("last_seq", pa.int64()),
        ("cause", pa.string()),
        ("timestamp_ns", pa.int64()),
        ("publish_timestamp_ns", pa.int64()),
        ("recorded_ns", pa.int64()),
        ("meta_version", pa.int64()),
        ("trace_id", pa.int64()),
        ("dtype", pa.string()),
        ("order", pa.string()),
        ("shape", _DIMENSIONS),
        ("strides", _DIMENSIONS),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("crc32c", pa.int64()),
        ("head_length", pa.int64()),
        ("head_crc32c", pa.int64()),
    ]
)
ORDERS: Final = {ROW_MAJOR: "row", COLUMN_MAJOR: "column"}
_ORDER_CODES: Final[dict[str, int]] = {name: code for code, name in ORDERS.items()}
_DTYPE_CODES: Final[dict[str, int]] = {dtype_name(code): code for code in (*range(1, 12), 13, 14)}
_FRAME, _GAP = "frame", "gap"
_U64: Final = (1 << 64) - 1

_KEY_PREFIX: Final = "tensor_pool."
_DIGEST_KEY: Final = _KEY_PREFIX + "crc32c"
_FACTS_DIGEST_KEY: Final = _KEY_PREFIX + "facts_crc32c"


class IndexRows(NamedTuple):
    """The rows of one segment."""

    origin: Origin
    frames: list[FrameRow]
    gaps: list[GapRow]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The seqs that are here or known to be lost, in order: (first, last) of each frame and each gap."""
        return sorted([(row.seq, row.seq) for row in self.frames] + [(gap.first_seq, gap.last_seq) for gap in self.gaps])


class SegmentEnds(NamedTuple):
    """The bytes of a segment that belong to no frame: before the first one's head, and after the last one's payload."""

    preamble_bytes: int
    preamble_crc32c: int
    tail_offset: int
    tail_crc32c: int

    @classmethod
    def of(cls, data: memoryview, frames: list[FrameRow]) -> SegmentEnds:
        """As they are in a segment with these bytes. Without a frame all of it is tail."""
        begin = frames[0].offset - frames[0].head_length if frames else 0
        end = frames[-1].offset + frames[-1].length if frames else 0
        return cls(begin, crc32c(data[:begin]), end, crc32c(data[end:]))

    def preamble_is_whole(self, data: memoryview) -> bool:
        return crc32c(data[: self.preamble_bytes]) == self.preamble_crc32c

    def tail_is_whole(self, data: memoryview) -> bool:
        return crc32c(data[self.tail_offset :]) == self.tail_crc32c


class IndexFacts(NamedTuple):
    """What an index says about itself, for readers that do not need its rows yet."""

    origin: Origin
    frames: int
    gaps: int
    first_seq: int
    last_seq: int
    """Of the frames; -1 where there is none."""
    answers_from: int
    answers_to: int
    """Of frames and gaps together; -1 where there is neither."""
    segment_bytes: int
    ends: SegmentEnds

    @classmethod
    def of(cls, rows: IndexRows, data: memoryview) -> IndexFacts:
        """What there is to say about these rows of a segment with these bytes."""
        seqs, spans = [row.seq for row in rows.frames], rows.spans
        return cls(
            rows.origin, len(seqs), len(rows.gaps), min(seqs, default=-1), max(seqs, default=-1),
            spans[0][0] if spans else -1, spans[-1][1] if spans else -1, len(data), SegmentEnds.of(data, rows.frames),
        )  # fmt: skip

    def encode(self) -> dict[str, str]:
        values = {**self.origin._asdict(), **self._asdict(), **self.ends._asdict(), "format_version": FORMAT_VERSION}
        del values["origin"], values["ends"]
        return {_KEY_PREFIX + key: str(value) for key, value in values.items()}


def dtype_code(name: str) -> int:
    """The wire's number of a dtype as the index has it."""
    return _DTYPE_CODES[name]


def order_code(name: str) -> int:
    """The wire's number of a major order as the index has it."""
    return _ORDER_CODES[name]


def index_path(segment: Path) -> Path:
    return segment.with_name(segment.stem + INDEX_SUFFIX)


def _signed(value: int) -> int:
    """The same 64 bits as Parquet and Spark have them: no unsigned numbers there."""
    return value - (1 << 64) if value >> 63 else value


def rows_to_table(rows: IndexRows, file: str) -> pa.Table:
    """The rows of one segment, frames first. `file` is the segment's path below the recording's directory."""
    origin, frames, gaps = rows
    count, missing = len(frames), [None] * len(gaps)
    both = count + len(gaps)

    def frame_column(values: list[Any]) -> list[Any]:
        return values + missing

    columns: dict[str, Any] = {
        "kind": [_FRAME] * count + [_GAP] * len(gaps),
        "source": [origin.source] * both,
        "stream": [origin.stream_id] * both,
        "name": [origin.name] * both,
        "epoch": [_signed(origin.epoch)] * both,
        "seq": [_signed(row.seq) for row in frames] + [_signed(gap.first_seq) for gap in gaps],
        "last_seq": [_signed(row.seq) for row in frames] + [_signed(gap.last_seq) for gap in gaps],
        "cause": [None] * count + [gap.cause for gap in gaps],
        "timestamp_ns": frame_column([_signed(row.timestamp_ns) for row in frames]),
        "publish_timestamp_ns": frame_column(
            [None if row.publish_timestamp_ns is None else _signed(row.publish_timestamp_ns) for row in frames]
        ),
        "recorded_ns": [_signed(row.recorded_ns) for row in frames] + [_signed(gap.recorded_ns) for gap in gaps],
        "meta_version": frame_column([row.meta_version for row in frames]),
        "trace_id": frame_column([_signed(row.trace_id) for row in frames]),
        "dtype": frame_column([dtype_name(row.dtype) for row in frames]),
        "order": frame_column([ORDERS[row.major_order] for row in frames]),
        "shape": frame_column([row.shape for row in frames]),
        "strides": frame_column([row.strides for row in frames]),
        "file": [file] * both,
        "offset": frame_column([row.offset for row in frames]),
        "length": frame_column([row.length for row in frames]),
        "crc32c": frame_column([row.crc32c for row in frames]),
        "head_length": frame_column([row.head_length for row in frames]),
        "head_crc32c": frame_column([row.head_crc32c for row in frames]),
    }
    return pa.table(columns, schema=SCHEMA)


def _facts_digest(facts: Mapping[str, str]) -> str:
    said = (f"{key}={facts[key]}" for key in sorted(facts) if key not in (_DIGEST_KEY, _FACTS_DIGEST_KEY))
    return f"{crc32c(chr(0).join(said).encode()):08x}"


def _digest(table: pa.Table, facts: Mapping[str, str]) -> str:
    """A checksum of the values, whatever way Parquet wrote them."""
    crc = crc32c(facts[_FACTS_DIGEST_KEY].encode())
    for column in table.columns:
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        crc = crc32c(np.packbits(array.is_null().to_numpy(zero_copy_only=False)).tobytes(), crc)
        if pa.types.is_list(array.type):
            crc = crc32c(array.value_lengths().fill_null(0).to_numpy().astype("<i4").tobytes(), crc)
            array = array.flatten()
        if pa.types.is_string(array.type):
            encoded = array.fill_null("").dictionary_encode()
            crc = crc32c(encoded.indices.to_numpy().astype("<i4").tobytes(), crc)
            crc = crc32c("\0".join(encoded.dictionary.to_pylist()).encode(), crc)
        else:
            crc = crc32c(array.fill_null(0).to_numpy().astype("<i8").tobytes(), crc)
    return f"{crc:08x}"


def write_index(root: Path, segment: Path, rows: IndexRows) -> Path:
    """Write the index beside its segment: whole, or not at all."""
    path = index_path(segment)
    table = rows_to_table(rows, segment.relative_to(root).as_posix())
    facts = IndexFacts.of(rows, map_segment(segment)).encode()
    facts[_FACTS_DIGEST_KEY] = _facts_digest(facts)
    facts[_DIGEST_KEY] = _digest(table, facts)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        pq.write_table(
            table.replace_schema_metadata(facts), unfinished, compression="zstd", row_group_size=16_384, write_page_checksum=True
        )
        failpoints.reach("recorder.before_index_rename")
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return path


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RecordingError(
            f"{path} row 0: the index is damaged: {reason}",
            path=str(path),
            row=0,
            hint="delete it: the segment beside it tells everything, and the index is made again from it",
        ) from error


def _facts(path: Path, metadata: Mapping[bytes, bytes] | None) -> tuple[IndexFacts, dict[str, str]]:
    texts = {key.decode(): value.decode() for key, value in (metadata or {}).items() if key.startswith(_KEY_PREFIX.encode())}
    values = {key.removeprefix(_KEY_PREFIX): value for key, value in texts.items()}
    version = values["format_version"]
    if version.isdecimal() and int(version) > FORMAT_VERSION:
        raise RecordingError(
            f"{path} row 0: format version {version} is newer than {FORMAT_VERSION}, the newest this package reads",
            path=str(path),
            row=0,
            hint="pip install --upgrade shm-tensor-pool",
        )
    if version != str(FORMAT_VERSION):
        raise ValueError(f"format version {version!r} does not exist")
    if _facts_digest(texts) != texts[_FACTS_DIGEST_KEY]:
        raise ValueError("what it says about its segment does not match its crc32c")
    origin = Origin(values["source"], int(values["stream_id"]), values["name"], int(values["epoch"]))
    numbers = {key: int(values[key]) for key in IndexFacts._fields if key not in ("origin", "ends")}
    ends = SegmentEnds(*(int(values[key]) for key in SegmentEnds._fields))
    return IndexFacts(origin=origin, ends=ends, **numbers), texts


def read_facts(path: Path) -> IndexFacts:
    """What an index says about itself, checked. The rows are not read."""
    with _naming(path):
        return _facts(path, pq.read_metadata(path).metadata)[0]


def read_table(path: Path) -> tuple[IndexFacts, pa.Table]:
    """The checked rows of an index file, or a `RecordingError` when they are not those that were written."""
    with _naming(path):
        table = pq.read_table(path, page_checksum_verification=True, partitioning=None)
        facts, texts = _facts(path, table.schema.metadata)
        table = table.replace_schema_metadata(None)
        if not table.schema.equals(SCHEMA) or _digest(table, texts) != texts[_DIGEST_KEY]:
            raise ValueError("its rows do not match their crc32c")
        return facts, table


def read_index(path: Path) -> IndexRows:
    """The rows of an index as a scan of the segment would find them."""
    facts, table = read_table(path)
    with _naming(path):
        return IndexRows(facts.origin, _frame_rows(table.slice(0, facts.frames)), _gap_rows(table.slice(facts.frames)))


def _frame_rows(table: pa.Table) -> list[FrameRow]:
    columns = {name: table.column(name).to_pylist() for name in SCHEMA.names}
    publish = [None if value is None else value & _U64 for value in columns["publish_timestamp_ns"]]
    return [
        FrameRow(seq & _U64, captured & _U64, published, recorded & _U64, meta_version, trace_id & _U64, _DTYPE_CODES[dtype],
                 _ORDER_CODES[order], tuple(shape), None if strides is None else tuple(strides), *place)
        for seq, captured, published, recorded, meta_version, trace_id, dtype, order, shape, strides, *place in zip(
            columns["seq"], columns["timestamp_ns"], publish, columns["recorded_ns"], columns["meta_version"], columns["trace_id"],
            columns["dtype"], columns["order"], columns["shape"], columns["strides"], columns["offset"], columns["length"],
            columns["crc32c"], columns["head_length"], columns["head_crc32c"], strict=True,
        )
    ]  # fmt: skip


def _gap_rows(table: pa.Table) -> list[GapRow]:
    rows = table.select(["seq", "last_seq", "cause", "recorded_ns"]).to_pylist()
    return [GapRow(row["seq"] & _U64, row["last_seq"] & _U64, row["cause"], row["recorded_ns"] & _U64) for row in rows]
