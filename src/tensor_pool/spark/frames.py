"""`map_frames`: a Python function on frames, in Spark's workers, where the pixels are mapped and not moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tensor_pool.recorder.extra import record_extra
from tensor_pool.recorder.recording import RecordedFrame, make_frame
from tensor_pool.recorder.rows import FrameRow, Origin

with record_extra():
    from tensor_pool.recorder.index import dtype_code, index_path, order_code, read_facts
    from tensor_pool.recorder.scan import map_segment
    from tensor_pool.recorder.stored import map_checked, payload_of

COLUMNS: Final = (
    "kind", "source", "stream", "name", "epoch", "seq", "timestamp_ns", "publish_timestamp_ns", "recorded_ns", "meta_version", "trace_id",
    "dtype", "order", "shape", "strides", "file", "row", "offset", "length", "crc32c", "head_length", "head_crc32c",
)  # fmt: skip
OUTPUT_ROWS: Final = 1024
MAPPED_FILES: Final = 16
_U64: Final = (1 << 64) - 1

FrameFunction = Callable[[RecordedFrame], Mapping[str, Any] | tuple[Any, ...] | None]


def map_frames(frames: DataFrame, function: FrameFunction, schema: StructType | str, *, check: bool = True) -> DataFrame:
    """Call `function(frame)` for every frame of a `tensor_pool` DataFrame; what it returns is a row of `schema`.

    The frame is read-only and lies in the mapped file; `frame.array` is numpy. The function returns a mapping, a tuple in the order of the
    schema, or None for no row. Before it sees a frame, all that is read is compared with its crc32c (not with `check=False`).
    """
    missing = [name for name in COLUMNS if name not in frames.columns]
    if missing:
        raise ValueError(
            f"map_frames needs the columns of the source tensor_pool; missing: {', '.join(missing)}\n\nhint: select() after it"
        )
    wanted = frames.select(*COLUMNS).where("kind = 'frame'")
    struct = cast("StructType", StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    return wanted.mapInArrow(_Mapper(function, struct, to_arrow_schema(struct, timezone="UTC"), check), struct)


@dataclass(slots=True)
class _MappedFiles:
    """The files this task looked at last. Not kept between tasks: the file of that name may then be another."""

    check: bool
    _files: dict[str, memoryview] = field(default_factory=dict)

    def __getitem__(self, path: str) -> memoryview:
        data = self._files.pop(path, None)
        if data is None:
            data = self._map(Path(path))
        self._files[path] = data
        while len(self._files) > MAPPED_FILES:
            del self._files[next(iter(self._files))]
        return data

    def _map(self, path: Path) -> memoryview:
        index = index_path(path)
        # a segment that grows was walked through when its rows were made, and has no end yet
        if not self.check or not index.exists():
            return map_segment(path)
        facts = read_facts(index)
        return map_checked(path, facts.ends, facts.frames)


@dataclass(frozen=True, slots=True)
class _Mapper:
    function: FrameFunction
    struct: StructType
    arrow_schema: pa.Schema
    check: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[RecordedFrame, Mapping[str, Any]]] = []
        files = _MappedFiles(self.check)
        for batch in batches:
            for values in batch.to_pylist():
                frame = _frame(values, files, check=self.check)
                try:
                    row = self._row(self.function(frame))
                except Exception as error:
                    error.add_note(f"in {_place(frame)}")
                    raise
                if row is not None:
                    rows.append((frame, row))
                if len(rows) == OUTPUT_ROWS:
                    yield self._batch(rows)
                    rows = []
        if rows:
            yield self._batch(rows)

    def _row(self, returned: Any) -> Mapping[str, Any] | None:
        names = self.struct.names
        if returned is None:
            return None
        if isinstance(returned, tuple):
            if len(returned) != len(names):
                raise ValueError(f"the function returned {len(returned)} values, the schema has {len(names)} columns")
            return dict(zip(names, returned, strict=True))
        if not isinstance(returned, Mapping) or set(returned) != set(names):
            raise ValueError(f"the function returned {returned!r}, expected a mapping or tuple of {', '.join(names)}")
        return returned

    def _batch(self, rows: Sequence[tuple[RecordedFrame, Mapping[str, Any]]]) -> pa.RecordBatch:
        columns = [self._column(column, rows) for column in self.arrow_schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    @staticmethod
    def _column(column: pa.Field, rows: Sequence[tuple[RecordedFrame, Mapping[str, Any]]]) -> pa.Array:
        try:
            return pa.array([row[column.name] for _, row in rows], column.type)
        except Exception:
            # one by one, to say which it is
            for frame, row in rows:
                try:
                    pa.array([row[column.name]], column.type)
                except Exception as error:
                    error.add_note(f"in the column {column.name} ({column.type}) that was returned by {_place(frame)}")
                    raise
            raise


def _place(frame: RecordedFrame) -> str:
    return f"the function of map_frames, at {frame.path} row {frame.row} (seq {frame.seq})"


def _frame(values: Mapping[str, Any], files: _MappedFiles, *, check: bool) -> RecordedFrame:
    path, number = values["file"], values["row"]
    data = files[path]
    published = values["publish_timestamp_ns"]
    row = FrameRow(
        seq=values["seq"] & _U64,
        timestamp_ns=values["timestamp_ns"] & _U64,
        publish_timestamp_ns=None if published is None else published & _U64,
        recorded_ns=values["recorded_ns"] & _U64,
        meta_version=values["meta_version"],
        trace_id=values["trace_id"] & _U64,
        dtype=dtype_code(values["dtype"]),
        major_order=order_code(values["order"]),
        shape=tuple(values["shape"]),
        strides=None if values["strides"] is None else tuple(values["strides"]),
        offset=values["offset"],
        length=values["length"],
        crc32c=values["crc32c"],
        head_length=values["head_length"],
        head_crc32c=values["head_crc32c"],
    )
    payload = payload_of(Path(path), data, row, number, check=check)
    origin = Origin(values["source"], values["stream"], values["name"], values["epoch"] & _U64)
    return make_frame(origin, Path(path), row, number, payload)
