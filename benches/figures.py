"""Medians, quartiles, ratios of pairs, and the targets that they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Target:
    """What must be reached: `Target("ratio", ">=", 1.0)`. An `aim` is hoped for beyond it, and judged by nobody."""

    of: Literal["median", "ratio", "ratio_low"]
    relation: Literal[">=", "<=", "<"]
    bound: float
    aim: float | None = None

    def is_met_by(self, value: float) -> bool:
        match self.relation:
            case ">=":
                return value >= self.bound
            case "<=":
                return value <= self.bound
            case "<":
                return value < self.bound

    def __str__(self) -> str:
        words = {"median": "median", "ratio": "ratio", "ratio_low": "lower quartile of the ratio"}[self.of]
        return f"{words} {self.relation} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result. `low` and `high` are quartiles; `ratio` is the median of `this / against`, pair by pair."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    against: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    target: str | None = None
    met: bool | None = None
    aim: float | None = None
    details: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(lower quartile, median, upper quartile). A single value is all three."""
    if not values:
        raise ValueError("nothing was measured")
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def row(
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    against: str | None = None,
    others: Sequence[float] = (),
    target: Target | None = None,
    details: Mapping[str, float] | None = None,
) -> Row:
    """A row of what was measured, beside what `against` did in the same rounds."""
    low, median, high = quartiles(values)
    ratios: tuple[float, float, float] | None = None
    if against is not None:
        ratios = quartiles([value / other for value, other in zip(values, others, strict=True)])
    met = None
    if target is not None:
        if ratios is None and target.of != "median":
            raise ValueError(f"{name}: a ratio needs somebody to be held against")
        judged = {"median": median} if ratios is None else {"median": median, "ratio": ratios[1], "ratio_low": ratios[0]}
        met = target.is_met_by(judged[target.of])
    return Row(
        name=name,
        unit=unit,
        median=median,
        low=low,
        high=high,
        against=against,
        ratio=None if ratios is None else ratios[1],
        ratio_low=None if ratios is None else ratios[0],
        ratio_high=None if ratios is None else ratios[2],
        target=None if target is None else str(target),
        met=met,
        aim=None if target is None else target.aim,
        details=dict(details or {}),
    )
