"""`record`: streams to disk, until told to stop."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tensor_pool import session as sessions
from tensor_pool.cli.output import StatusLine, example, print_json, print_table, stack_option
from tensor_pool.cli.parameters import seconds_from, stream_argument, verify_option
from tensor_pool.cli.stream_commands import StampCheck
from tensor_pool.clock import SystemClock
from tensor_pool.config import load
from tensor_pool.recorder import RecorderStats
from tensor_pool.runtime import ShutdownSignal
from tensor_pool.stack import StackSettings

REPORT_S = 1.0


@click.command(epilog=example("tensor-pool record camera-1 --output recordings/today --seconds 10"))
@click.argument("streams", nargs=-1, required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Directory of the recording; made where it is missing.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), default=None, help="TOML file; its section [recorder] is used.")
@click.option("--seconds", type=seconds_from(0.1), default=None, help="Stop after this long; without it on Ctrl-C.")
@click.option("--wait", type=seconds_from(0), default=None, help="Seconds to wait for the streams; without it for ever.")
@verify_option
@stack_option
@click.option("--json", "as_json", is_flag=True, help="Counts as JSON lines, one a second and one at the end.")
def record(
    streams: tuple[str, ...],
    output: Path,
    config_path: Path | None,
    seconds: float | None,
    wait: float | None,
    verify: bool,
    stack: str | None,
    as_json: bool,
) -> None:
    """Record streams (ids or names) below a directory, in MCAP files that other tools open too."""
    clock = SystemClock()
    stamps = StampCheck()
    settings = load(StackSettings, config_path, os.environ).settings.recorder
    with ShutdownSignal() as shutdown, sessions.connect(stack) as session, StatusLine(quiet=as_json) as status:
        chosen = [stream_argument(stream) for stream in streams]
        with session.record(chosen, output, settings=settings, wait=wait, on_frame=stamps if verify else None) as recording:
            if as_json:
                print_json({"event": "attached", "streams": list(recording.streams), "path": str(output)})
            end_ns = None if seconds is None else clock.monotonic_ns() + int(seconds * 1e9)
            while not shutdown.event.wait(REPORT_S if end_ns is None else min(REPORT_S, max(0.0, (end_ns - clock.monotonic_ns()) / 1e9))):
                # raises when the recording cannot go on
                recording.wait(0)
                _show(_counts(recording.stats, stamps, verify=verify), status, as_json=as_json)
                if end_ns is not None and clock.monotonic_ns() >= end_ns:
                    break
        final = _counts(recording.stats, stamps, verify=verify)
    if as_json:
        print_json({"event": "summary", "path": str(output), **final})
    else:
        print_table("recorded", [{"path": str(output), **final}])
    stamps.expect_good()


def _counts(stats: RecorderStats, stamps: StampCheck, *, verify: bool) -> dict[str, Any]:
    return {**asdict(stats), "verified": verify, "bad_pixels": stamps.bad_pixels}


def _show(counts: dict[str, Any], status: StatusLine, *, as_json: bool) -> None:
    if as_json:
        print_json({"event": "progress", **counts})
    status.show(
        "{frames_recorded} frames, {megabytes:.0f} MB recorded; {frames_lost} lost on the way, {frames_dropped_disk} by the disk".format(
            megabytes=counts["bytes_recorded"] / 1e6, **counts
        )
    )
