"""The tables of docs/performance.md, from a run: build/bench.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benches.figures import Row
from benches.measures.way import OPERATIONS, OTHERS, WAYS
from benches.report import figure


def write(rows: Sequence[Row], path: Path) -> None:
    """One table for each question that this run answers."""
    tables = [list(_targets(rows)), list(_steps(rows)), list(_operations(rows))]
    path.write_text("\n\n".join("\n".join(lines) for lines in tables if lines) + "\n")


def _targets(rows: Sequence[Row]) -> Iterator[str]:
    judged = [row for row in rows if row.target is not None]
    if judged:
        yield f"{sum(row.met is True for row in judged)} of {len(judged)} targets are met.\n"
        yield "| measure | against | reached: median [quartiles] | target | |"
        yield "| --- | --- | --- | --- | --- |"
    for row in judged:
        of_ratio = row.against is not None
        reached = f"{row.ratio:.2f} [{row.ratio_low:.2f} .. {row.ratio_high:.2f}]" if of_ratio else _median(row)
        target = f"{row.target}".replace(" of the ratio", "") + (f", aim {row.aim:g}" if row.aim is not None else "")
        yield f"| {row.name} | {row.against or ''} | {reached} | {target} | {'met' if row.met else 'not met'} |"


def _median(row: Row) -> str:
    return f"{figure(row.median)} [{figure(row.low)} .. {figure(row.high)}] {row.unit}"


def _steps(rows: Sequence[Row]) -> Iterator[str]:
    small, large = _of_path(rows, "8 KiB"), _of_path(rows, "640 KiB")
    if not small or not large:
        return
    yield "| way | step | 8 KiB: ns so far | it adds | 640 KiB: ns so far | it adds |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for way, steps in WAYS.items():
        before = (0.0, 0.0)
        for index, step in enumerate(steps):
            name = f"{way}, {'up to ' if index else ''}{step}"
            taken = (small[name].median, large[name].median)
            cells = " | ".join(f"{sofar:,.0f} | {sofar - last:,.0f}" for sofar, last in zip(taken, before, strict=True))
            yield f"| {way if index == 0 else ''} | {step} | {cells} |"
            before = taken


def _operations(rows: Sequence[Row]) -> Iterator[str]:
    small, large = _of_path(rows, "8 KiB"), _of_path(rows, "640 KiB")
    if not small or not large:
        return
    yield "| operation | 8 KiB: ns | 640 KiB: ns | bytecodes | heap allocations |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name in dict.fromkeys((*OPERATIONS, *OTHERS)):
        # the last step of a way is the whole of it
        whole = f"{name}, up to {WAYS[name][-1]}" if name in WAYS else name
        counts = [
            figure(next(row.median for row in rows if row.unit == unit and row.name == f"path, 8 KiB: {name}"))
            if name in OPERATIONS
            else ""
            for unit in ("bytecodes a frame", "heap allocations a frame")
        ]
        yield f"| {name} | {small[whole].median:,.0f} | {large[whole].median:,.0f} | {' | '.join(counts)} |"


def _of_path(rows: Sequence[Row], size: str) -> dict[str, Row]:
    """Rows of times, by what they time."""
    start = f"path, {size}: "
    return {row.name.removeprefix(start): row for row in rows if row.name.startswith(start) and row.unit.startswith("ns")}
