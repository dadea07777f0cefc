"""What the demo says at the end, on the terminal, as JSON and as a picture."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from demo_processes import Child
from rich.console import Console
from rich.table import Table

COUNTS: Final = ("delivered", "skipped", "gap", "late", "invalid", "unseen")
LATENCIES: Final = ("p50_us", "p99_us", "p999_us")


def machine() -> str:
    """Enough to compare two runs, and no name of a host; as in build/faults.json."""
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    system = f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}"
    return f"{cores} cores, {memory_gib:.0f} GiB, {system}, Python {platform.python_version()}"


@dataclass(frozen=True)
class ConsumerReport:
    """One consumer over all epochs it saw."""

    counts: dict[str, int]
    latencies: dict[str, float | None]
    published: int
    balanced: bool
    bad_pixels: int

    @classmethod
    def of(cls, summary: dict[str, Any]) -> ConsumerReport:
        epochs = [*summary["earlier_epochs"], {name: summary[name] for name in (*COUNTS, "first_seq", "last_seq")}]
        counts = {name: sum(epoch[name] for epoch in epochs) for name in COUNTS}
        span = sum(epoch["last_seq"] - epoch["first_seq"] + 1 for epoch in epochs)
        balanced = sum(counts.values()) - counts["unseen"] == span
        return cls(counts, {name: summary[name] for name in LATENCIES}, span + counts["unseen"], balanced, summary["bad_pixels"])


@dataclass(frozen=True)
class Report:
    """Everything the processes said."""

    published: int
    consumers: list[ConsumerReport]
    recorded: int
    recorded_gaps: int
    recorded_losses: int
    recorded_bad_pixels: int
    spark_frames: int
    spark_good: int
    seconds: list[dict[str, Any]]
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, camera: dict[str, Any], consumers: list[dict[str, Any]], recorder: dict[str, Any], spark: dict[str, Any]) -> Report:
        report = cls(
            published=camera["published"],
            consumers=[ConsumerReport.of(consumer) for consumer in consumers],
            recorded=recorder["frames_recorded"],
            recorded_gaps=recorder["gaps_recorded"],
            recorded_losses=recorder["frames_lost"] + recorder["frames_dropped_disk"],
            recorded_bad_pixels=recorder["bad_pixels"],
            spark_frames=spark["frames"],
            spark_good=spark["frames_with_their_seq"],
            seconds=spark["seconds"],
        )
        report.complaints.extend(report._complaints())
        return report

    def _complaints(self) -> list[str]:
        found = []
        for number, consumer in enumerate(self.consumers, 1):
            if not consumer.balanced:
                found.append(f"the counts of consumer {number} do not add up to the seqs it answers for")
            if consumer.published != self.published:
                found.append(f"consumer {number} answers for {consumer.published} frames, and {self.published} were published")
            if consumer.bad_pixels:
                found.append(f"consumer {number} read {consumer.bad_pixels} frames with the pixels of another frame")
        if self.recorded + self.recorded_losses != self.published:
            found.append(f"{self.recorded} frames recorded and {self.recorded_losses} lost are not the {self.published} published")
        if self.recorded_bad_pixels:
            found.append(f"{self.recorded_bad_pixels} frames had the pixels of another frame when they were recorded")
        if self.spark_frames != self.recorded:
            found.append(f"Spark counts {self.spark_frames} frames, and the recorder wrote {self.recorded}")
        if self.spark_good != self.spark_frames:
            found.append(f"{self.spark_frames - self.spark_good} frames in Spark had the pixels of another frame")
        return found

    def summary(self) -> dict[str, Any]:
        """The document of `build/demo-summary.json`."""
        return {
            "command": "make demo",
            "ok": not self.complaints,
            "complaints": self.complaints,
            "published": self.published,
            "consumers": [
                {"published": consumer.published, **consumer.counts, "balanced": consumer.balanced, **consumer.latencies}
                for consumer in self.consumers
            ],
            "recorded": self.recorded,
            "recorded_gaps": self.recorded_gaps,
            "recorded_bad_pixels": self.recorded_bad_pixels,
            "spark_frames": self.spark_frames,
            "spark_seconds": self.seconds,
            "machine": machine(),
        }

    def print(self, console: Console) -> None:
        console.print(f"\n[bold]Published[/] {self.published} frames. What became of them:")
        table = Table("", *COUNTS, "adds up", "latency p50", "p99", "p99.9")
        for number, consumer in enumerate(self.consumers, 1):
            counts = [str(consumer.counts[name]) for name in COUNTS]
            latencies = ["-" if value is None else f"{value:.0f} us" for value in consumer.latencies.values()]
            table.add_row(f"consumer {number}", *counts, "yes" if consumer.balanced else "NO", *latencies)
        console.print(table)
        console.print(f"[bold]Recorded[/] {self.recorded} frames and {self.recorded_gaps} gaps. [bold]Spark[/] read {self.spark_frames}:")
        table = Table("second", "frames (rate, Hz)", "mean", "deviation")
        for row in self.seconds:
            table.add_row(str(row["second"]), str(row["frames"]), f"{row['mean']:.1f}", f"{row['deviation']:.1f}")
        console.print(table)


def live_table(camera: Child, others: list[Child]) -> Table:
    """What the processes say while they run."""
    table = Table("process", "frames", "lost", "rate", "latency p50", "p99")
    table.add_row("camera", str(camera.last("progress").get("published", "...")), "", "", "", "")
    for child in others:
        said = child.last("progress")
        if "frames_recorded" in said:
            table.add_row(child.name, str(said["frames_recorded"]), str(said["frames_lost"] + said["frames_dropped_disk"]), "", "", "")
        elif said:
            lost = said["gap"] + said["late"] + said["invalid"]
            latencies = [f"{said[name] or 0:.0f} us" for name in ("p50_us", "p99_us")]
            table.add_row(child.name, str(said["delivered"]), str(lost), f"{said['rate_hz']:.0f} Hz", *latencies)
        else:
            table.add_row(child.name, "...", "", "", "", "")
    return table


def plot(report: Report, path: Path) -> None:
    """The picture beside the summary: what Spark measured, and what became of the frames."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    seconds = [row["second"] for row in report.seconds]
    left.bar(seconds, [row["frames"] for row in report.seconds], color="tab:blue")
    left.set(title="Frames in each second (Spark)", xlabel="second", ylabel="frames")
    middle.errorbar(seconds, [row["mean"] for row in report.seconds], [row["deviation"] for row in report.seconds], fmt="o", capsize=3)
    middle.set(title="Pixels: mean and deviation (Spark)", xlabel="second", ylabel="counts")
    names = [f"consumer {number}" for number in range(1, len(report.consumers) + 1)]
    bottom = [0] * len(names)
    for count in COUNTS:
        values = [consumer.counts[count] for consumer in report.consumers]
        right.bar(names, values, bottom=bottom, label=count)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    right.set(title=f"What became of {report.published} frames", ylabel="frames")
    right.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
