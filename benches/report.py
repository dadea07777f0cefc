"""What a run leaves: build/bench.json, a table, a picture."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benches.figures import Row

STEP_UNIT: Final = "ns a frame"
"""Of rows in which each is the one before and one step more."""
_CPUINFO: Final = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    """Enough to compare two runs, and no name of a host."""
    model = next((line.partition(":")[2].strip() for line in _CPUINFO.read_text().splitlines() if line.startswith("model name")), "unknown")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
    }


def document(
    rows: Sequence[Row], *, command: str, rounds: int, peers: dict[str, str], notes: Sequence[str], load: tuple[float, float]
) -> dict[str, Any]:
    """What goes into bench.json. `load` is the machine's load before and after: above zero before, the figures are noisy."""
    return {
        "command": command,
        "machine": machine(),
        "rounds": rounds,
        "peers": dict(peers),
        "load_before_and_after": [round(value, 2) for value in load],
        "notes": list(notes),
        "rows": [row.to_dict() for row in rows],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content, indent=1) + "\n")
    scratch.replace(path)


def figure(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def beside(row: Row) -> str:
    """What belongs to a figure: losses, and who used how much of a core."""
    found = row.details
    parts = []
    if "lost_share" in found:
        parts.append(f"lost {found['lost_share']:.1%}, dropped {found['dropped_share']:.1%}")
        if row.unit == "frames/s":
            parts.append(f"reader {found['lag_frames']:.3g} frames behind")
        parts.append(f"cpu w {found['writer_cpu']:.0%} r {found['reader_cpu']:.0%} stack {found['stack_cpu']:.0%}")
    if "memcpy_us" in found:
        parts.append(f"memcpy {found['memcpy_us']:.2f} us, its p99 {found['memcpy_p99_us']:.2f}")
    return "; ".join(parts)


def table(rows: Sequence[Row]) -> Table:
    """One line a row."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (("what", "left"), ("median", "right"), ("quartiles", "right"), ("unit", "left")):
        made.add_column(title, justify=justify)  # type: ignore[arg-type]
    for title in ("against", "target", "beside it"):
        made.add_column(title, justify="left", overflow="fold")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} [{row.ratio_low:.2f}..{row.ratio_high:.2f}] x {row.against}"
        verdict = "" if row.target is None else f"[green]{row.target}[/]" if row.met else f"[red]not {row.target}[/]"
        verdict += "" if row.aim is None else f", aim {row.aim:g}"
        quartiles = f"{figure(row.low)} .. {figure(row.high)}"
        made.add_row(row.name, figure(row.median), quartiles, row.unit, ratio, verdict, beside(row))
    return made


def print_table(rows: Sequence[Row], notes: Sequence[str], console: Console) -> None:
    console.print(table(rows))
    judged = [row for row in rows if row.met is not None]
    if judged:
        console.print(f"{sum(row.met is True for row in judged)} of {len(judged)} targets are met.")
    for note in notes:
        console.print(note, highlight=False)


def plot(rows: Sequence[Row], path: Path) -> None:
    """A panel for each unit, a bar for each row: green met its target, red did not, grey has none. Whiskers are quartiles."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    units = list(dict.fromkeys(row.unit for row in rows))
    heights = [sum(row.unit == unit for row in rows) + 2 for unit in units]
    picture, panels = pyplot.subplots(
        len(units), 1, figsize=(13, 0.22 * sum(heights) + 1), squeeze=False, gridspec_kw={"height_ratios": heights}, layout="constrained"
    )
    for panel, unit in zip(panels[:, 0], units, strict=True):
        shown = [row for row in rows if row.unit == unit][::-1]
        colours = ["#9aa0a6" if row.met is None else "#2e7d32" if row.met else "#c62828" for row in shown]
        spread = [[row.median - row.low for row in shown], [row.high - row.median for row in shown]]
        labels = [row.name if row.against is None else f"{row.name} ({row.ratio:.2f} x {row.against})" for row in shown]
        panel.barh(range(len(shown)), [row.median for row in shown], xerr=spread, color=colours, error_kw={"linewidth": 0.8})
        panel.set_yticks(range(len(shown)), labels, fontsize=6)
        panel.set_title(unit, fontsize=8, loc="left")
        panel.tick_params(axis="x", labelsize=6)
        panel.margins(y=0.01)
        values = [row.median for row in shown if row.median > 0]
        if values and max(values) / min(values) > 50:
            panel.set_xscale("log")
    picture.savefig(path, dpi=130)
    pyplot.close(picture)


def plot_steps(rows: Sequence[Row], path: Path) -> None:
    """The way of a frame: a bar for each size and way, a piece for each step, as long as what it adds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    ways: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.unit == STEP_UNIT:
            size, way, _ = row.name.removeprefix("path, ").replace(": ", ", ", 1).split(", ", 2)
            ways.setdefault((size, way), []).append(row)
    sizes = list(dict.fromkeys(size for size, _ in ways))
    picture, panels = pyplot.subplots(len(sizes), 1, figsize=(11, 2.6 * len(sizes)), squeeze=False, layout="constrained")
    for panel, size in zip(panels[:, 0], sizes, strict=True):
        shown = {way: steps for (of, way), steps in ways.items() if of == size}
        longest = max(step.median for steps in shown.values() for step in steps)
        for height, steps in enumerate(shown.values()):
            reached = 0.0
            for number, step in enumerate(steps):
                # noise, or work that the step saves: nothing is drawn for it
                added = max(step.median - reached, 0.0)
                panel.barh(height, added, left=reached, color=mpl.colormaps["tab10"](number), edgecolor="white")
                if added > longest / 9:
                    words = step.name.rpartition(": ")[2].partition(", ")[2].removeprefix("up to ")
                    label = f"{words}\n{added:,.0f} ns"
                    panel.text(reached + added / 2, height, label, ha="center", va="center", fontsize=6, color="white", wrap=True)
                reached = max(reached, step.median)
        panel.set_yticks(range(len(shown)), list(shown))
        panel.invert_yaxis()
        panel.set_title(f"{size}, nanoseconds a frame", fontsize=8, loc="left")
        panel.tick_params(axis="x", labelsize=7)
    picture.savefig(path, dpi=130)
    pyplot.close(picture)
