"""`make demo`: a camera, two consumers and a recorder for ten seconds, each in a process of its own; then Spark reads what was recorded.

Ends with a summary on the terminal, `build/demo-summary.json` and `build/demo.png`. Exits with 1 and words when frames do not add up,
when Spark counts other frames than the recorder, or when a process dies on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
if __name__ == "__main__":
    # what Python compiles is not left beside its sources, by this process and all it starts
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

from demo_processes import Child, DemoError, Processes
from demo_report import Report, live_table, plot
from demo_workplace import Workplace
from rich.console import Console
from rich.live import Live

from tensor_pool.errors import ConfigError
from tensor_pool.spark.session import check_java

ROOT = Path(__file__).resolve().parent.parent
STREAM = "camera-1"
CONSUMERS = ("consumer-1", "consumer-2")
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
SPARK_LIMIT_S = 180.0
ATTACH_LIMIT_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the camera runs (default: 10)")
    parser.add_argument("--rate", type=float, default=500.0, help="frames a second (default: 500)")
    parser.add_argument("--shape", default="512x640", help="rows x columns (default: 512x640)")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where the summary, the picture and the recording go")
    options = parser.parse_args()
    # a log file has room for the whole table
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        # Spark comes last, and ten seconds of recording would have been for nothing
        check_java(os.environ)
        with Workplace() as workplace, Processes(workplace.path) as processes:
            return demonstrate(processes, console, options)
    except (ConfigError, DemoError) as error:
        console.print(f"\n[bold red]The demo failed:[/] {error}", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("\nThe demo was interrupted.")
        return 130


def demonstrate(processes: Processes, console: Console, options: argparse.Namespace) -> int:
    """Everything between an empty build directory and the summary in it. Not before the lock is held: the files are another demo's."""
    build: Path = options.build
    try:
        build.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"{build} cannot be made: {error.strerror}") from error
    # a summary of an earlier run must not be taken for this one's
    for name in ("demo-summary.json", "demo.png"):
        (build / name).unlink(missing_ok=True)
    recording = build / "demo-recording"
    shutil.rmtree(recording, ignore_errors=True)
    return finish(run(processes, console, options, recording), console, build, recording)


def run(processes: Processes, console: Console, options: argparse.Namespace, recording: Path) -> Report:
    """Every process of the demo, in order. `DemoError` as soon as one of them ends that should not."""
    with console.status("starting the stack: media driver, SHM driver"):
        stack = processes.start("stack", ["up", "--json"])
        processes.wait_for(stack, "ready", START_LIMIT_S)
    with console.status("starting a camera, two consumers and a recorder"):
        camera_arguments = ["--name", STREAM, "--shape", options.shape, "--rate", str(options.rate), "--seconds", str(options.seconds)]
        camera = processes.start("camera", ["publish", *camera_arguments, "--wait-for-start", "--json"], has_input=True)
        consumers = [processes.start(name, ["tap", STREAM, "--verify", "--json"]) for name in CONSUMERS]
        recorder = processes.start("recorder", ["record", STREAM, "--verify", "--output", str(recording), "--json"])
        for child in (camera, *consumers, recorder):
            processes.wait_for(child, "attached", ATTACH_LIMIT_S)
    camera.say("start")
    watch(processes, console, camera, [*consumers, recorder], options.seconds)
    processes.wait_for(camera, "summary", STOP_LIMIT_S)
    for child in (*consumers, recorder):
        processes.stop(child, STOP_LIMIT_S)
    camera.say("end")
    for child in (camera, stack):
        processes.stop(child, STOP_LIMIT_S)
    with console.status("Spark reads the recording"):
        spark = processes.start_python("spark", [str(Path(__file__).with_name("demo_spark.py")), str(recording)])
        processes.wait_for(spark, "summary", SPARK_LIMIT_S)
        processes.stop(spark, STOP_LIMIT_S, signal_it=False)
    read = [child.last("summary") for child in consumers]
    return Report.of(camera.last("summary"), read, recorder.last("summary"), spark.last("summary"))


def watch(processes: Processes, console: Console, camera: Child, others: list[Child], seconds: float) -> None:
    """The live table, until the camera has published its last frame."""
    limit = time.monotonic() + seconds + STOP_LIMIT_S
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while not camera.has("summary"):
            processes.check()
            live.update(live_table(camera, others))
            if time.monotonic() > limit:
                raise DemoError(f"the camera did not end {STOP_LIMIT_S:.0f} s after its time")
            time.sleep(0.1)


def finish(report: Report, console: Console, build: Path, recording: Path) -> int:
    """Say it, write it, and judge it."""
    summary: dict[str, Any] = report.summary()
    plot(report, build / "demo.png")
    (build / "demo-summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    report.print(console)
    size = sum(path.stat().st_size for path in recording.rglob("*") if path.is_file())
    segment = next(recording.rglob("*.mcap"), None)
    shown = os.path.relpath(build)
    console.print(f"\nSummary: {shown}/demo-summary.json, picture: {shown}/demo.png")
    if segment is not None:
        console.print(f"Recording: {os.path.relpath(recording)} ({size / 1e9:.1f} GB). Open its .mcap files in Foxglove or Rerun,")
        console.print("or in Python:")
        console.print("  import tensor_pool as tp; " + f'tp.Recording("{os.path.relpath(recording)}")', highlight=False)
    if report.complaints:
        for complaint in report.complaints:
            console.print(f"[bold red]not in order:[/] {complaint}", highlight=False)
        return 1
    console.print("[bold green]Every frame is accounted for.[/]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
