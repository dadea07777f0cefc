"""The data source `tensor_pool`: `spark.read.format("tensor_pool").load(directory)`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType, TimestampType

from tensor_pool.errors import ConfigError, RecordingError
from tensor_pool.recorder.extra import record_extra
from tensor_pool.spark.filters import is_understood, matching_rows, may_match

with record_extra():
    from tensor_pool.recorder.index import IndexRows, index_path, read_table, rows_to_table
    from tensor_pool.recorder.scan import scan_segment
    from tensor_pool.recorder.stored import StoredSegment, find_segments

FORMAT_NAME: Final = "tensor_pool"
OPTIONS: Final = ("path", "gaps", "pushdown")
BATCH_ROWS: Final = 16_384
PARTITION_BYTES: Final = 256 << 20

_LONGS: Final = ArrayType(LongType())
_COLUMNS: Final[dict[str, DataType]] = {
    "kind": StringType(),
    "source": StringType(),
    "stream": LongType(),
    "name": StringType(),
    "epoch": LongType(),
    "seq": LongType(),
    "last_seq": LongType(),
    "cause": StringType(),
    "timestamp_ns": LongType(),
    "publish_timestamp_ns": LongType(),
    "recorded_ns": LongType(),
    "recorded_at": TimestampType(),
    "meta_version": LongType(),
    "trace_id": LongType(),
    "dtype": StringType(),
    "order": StringType(),
    "shape": _LONGS,
    "strides": _LONGS,
    "file": StringType(),
    "row": LongType(),
    "offset": LongType(),
    "length": LongType(),
    "crc32c": LongType(),
    "head_length": LongType(),
    "head_crc32c": LongType(),
}
SCHEMA: Final = StructType([StructField(name, kind) for name, kind in _COLUMNS.items()])


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What `load` and `option` said."""

    path: Path
    gaps: bool = False
    pushdown: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        for key in options:
            if key.lower() not in OPTIONS:
                near = get_close_matches(key.lower(), OPTIONS, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(OPTIONS)}"
                raise ConfigError(f"the source tensor_pool has no option {key!r}", source="option", key=key, value=options[key], hint=hint)
        path = options.get("path")
        if not path:
            raise ConfigError("the source tensor_pool needs a directory", source="option", key="path", hint=".load('recordings')")
        return cls(_local_path(path).resolve(), _flag(options, "gaps"), _flag(options, "pushdown"))


def _local_path(path: str) -> Path:
    """A path, or the URL of one as Spark's own sources take it: file:/a, file:///a%20b."""
    url = urlsplit(path)
    if url.scheme != "file":
        return Path(path)
    if url.netloc not in ("", "localhost") or url.query or url.fragment:
        hint = "file:///directory, with ? and # in it as %3F and %23"
        raise ConfigError(f"{path} is not the URL of a local directory", source="option", key="path", value=path, hint=hint)
    return Path(unquote(url.path))


def _flag(options: Mapping[str, str], key: str) -> bool:
    value = options.get(key, "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"option {key} is {value!r}", source="option", key=key, value=value, hint="it is true or false")
    return value == "true"


class SegmentRows(InputPartition):
    """Rows `begin` to `end` of a segment's frames, and its gaps with the first of them."""

    def __init__(self, path: str, begin: int, end: int) -> None:
        super().__init__((path, begin))
        self.path = path
        self.begin = begin
        self.end = end


class RecordingReader(DataSourceReader):
    """Plans by segment and reads index rows; payloads stay where they are."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._filters: list[Filter] = []

    def partitions(self) -> list[InputPartition]:
        segments = [segment for segment in find_segments(self._options.path) if may_match(segment.origin, self._filters)]
        for segment in segments:
            if segment.damage is not None:
                raise segment.damage
        return [part for segment in segments for part in _split(segment)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, SegmentRows):
            # what Spark puts where there is none: the recording is empty, or the filters leave nothing
            return
        table = matching_rows(_rows(partition, with_gaps=self._options.gaps), self._filters)
        yield from table.to_batches(max_chunksize=BATCH_ROWS)


class PushdownReader(RecordingReader):
    """Also applies filters itself. Spark refuses readers that can, unless its own setting for that is on: hence the option."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._filters = [one for one in filters if is_understood(one)]
        return [one for one in filters if not is_understood(one)]


class TensorPoolSource(DataSource):
    """One row a frame of a recording: what the frame is, and `file`, `offset`, `length`, `crc32c` of its payload.

    Options: `gaps` (default false) adds a row for each gap; `pushdown` (default false) lets the source apply filters on source,
    stream, name, epoch, seq and times, which needs `spark.sql.python.filterPushdown.enabled`.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        SourceOptions.parse(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options)
        if schema != SCHEMA:
            raise ConfigError(
                "the columns of the source tensor_pool are fixed", source="schema", key="schema", hint="select(...) after load"
            )
        if not options.path.exists():
            raise RecordingError(f"{options.path} does not exist", path=str(options.path), hint="give the directory that was recorded into")
        return PushdownReader(options) if options.pushdown else RecordingReader(options)


def _split(segment: StoredSegment) -> list[InputPartition]:
    count = max(1, min(segment.frames, round(segment.path.stat().st_size / PARTITION_BYTES)))
    bounds = [segment.frames * number // count for number in range(count + 1)]
    return [SegmentRows(str(segment.path), begin, end) for begin, end in pairwise(bounds)]


def _rows(partition: SegmentRows, *, with_gaps: bool) -> pa.Table:
    path = Path(partition.path)
    if index_path(path).exists():
        facts, table = read_table(index_path(path))
        frames = facts.frames
    else:
        found = scan_segment(path)
        if found.preamble is None:
            raise RecordingError(f"{path} row 0: the segment is empty", path=str(path), row=0)
        table = rows_to_table(IndexRows(found.preamble.origin, found.frames, found.gaps), "")
        frames = len(found.frames)
    if frames < partition.end:
        raise RecordingError(f"{path} row {frames}: there were {partition.end} frames when the query began", path=str(path), row=frames)
    chosen = table.slice(partition.begin, partition.end - partition.begin)
    numbers = pa.array(range(partition.begin, partition.end), pa.int64())
    if with_gaps and partition.begin == 0:
        gaps = table.slice(frames)
        chosen = pa.concat_tables([chosen, gaps])
        numbers = pa.concat_arrays([numbers, pa.nulls(gaps.num_rows, pa.int64())])
    recorded_at = pc.divide(chosen.column("recorded_ns"), 1000).cast(pa.timestamp("us", "UTC"))
    chosen = chosen.set_column(chosen.schema.get_field_index("file"), "file", pa.array([str(path)] * chosen.num_rows, pa.string()))
    chosen = chosen.append_column("row", numbers).append_column("recorded_at", recorded_at)
    return chosen.select(SCHEMA.names).cast(to_arrow_schema(SCHEMA, timezone="UTC"))
