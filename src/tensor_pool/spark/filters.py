"""Spark's filters as masks over index rows, for the columns that prune a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual

from tensor_pool.recorder.rows import Origin

COLUMNS: Final = ("source", "stream", "name", "epoch", "seq", "timestamp_ns", "recorded_ns")
_COMPARE: Final[dict[type[Filter], Callable[[Any, Any], Any]]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}


def is_understood(one: Filter) -> bool:
    """Whether the reader applies it exactly, so that Spark need not do it again."""
    attribute: Any = getattr(one, "attribute", ())
    return type(one) in (In, IsNotNull, *_COMPARE) and len(attribute) == 1 and attribute[0] in COLUMNS


def matching_rows(table: pa.Table, filters: Sequence[Filter]) -> pa.Table:
    """The rows that pass every filter."""
    for one in filters:
        column = table.column(one.attribute[0])  # type: ignore[attr-defined]
        table = table.filter(_mask(one, column))
    return table


def may_match(origin: Origin, filters: Sequence[Filter]) -> bool:
    """Whether a segment can hold a row that passes, by whose frames it holds. Seqs and times are left to the rows."""
    epoch = origin.epoch - (1 << 64) if origin.epoch >> 63 else origin.epoch
    constants = {"source": origin.source, "stream": origin.stream_id, "name": origin.name, "epoch": epoch}
    return all(
        _mask(one, pa.array([constants[one.attribute[0]]]))[0].as_py()  # type: ignore[attr-defined]
        for one in filters
        if one.attribute[0] in constants  # type: ignore[attr-defined]
    )


def _mask(one: Filter, column: Any) -> Any:
    if isinstance(one, In):
        return pc.is_in(column, pa.array(list(one.value), column.type))
    if isinstance(one, IsNotNull):
        return pc.is_valid(column)
    return _COMPARE[type(one)](column, pa.scalar(one.value, column.type))  # type: ignore[attr-defined]
