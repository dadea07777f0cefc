"""Stacks in processes of their own, started by the command line that users start them with."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faultlib.experiment import Bench
from tensor_pool.client.admin import AdminClient
from tensor_pool.testing import ChildProcess

CLI = "tensor_pool.cli.main:main"
# short enough for hundreds of expiries in minutes; every bound of an experiment follows from these
ANNOUNCE_PERIOD_MS = 100
LEASE_INTERVAL_MS = 100
LEASE_GRACE_INTERVALS = 3
MEDIA_DRIVER_TIMEOUT_MS = 1000
# what a stack has when nobody says otherwise: for experiments in which nothing may be lost because the machine is busy
DEFAULT_PERIOD_MS = 1000
LEASE_DURATION_MS = LEASE_INTERVAL_MS * LEASE_GRACE_INTERVALS
READY_S = 30.0


class StackProcess:
    """`tensor-pool up` of one bench: media driver and SHM driver in one process, or the SHM driver beside an external media driver."""

    def __init__(
        self,
        bench: Bench,
        *,
        shm_base_dir: Path | None = None,
        media_driver_dir: Path | None = None,
        announce_period_ms: int = ANNOUNCE_PERIOD_MS,
        lease_interval_ms: int = LEASE_INTERVAL_MS,
    ) -> None:
        self._bench = bench
        self._config = bench.directories.root / "stack.toml"
        sections: dict[str, dict[str, Any]] = {
            "shm": {"base_dir": str(shm_base_dir or bench.directories.shm_base_dir)},
            "policies": {
                "announce_period_ms": announce_period_ms,
                "lease_keepalive_interval_ms": lease_interval_ms,
                "lease_expiry_grace_intervals": LEASE_GRACE_INTERVALS,
            },
        }
        if media_driver_dir is not None:
            sections["media_driver"] = {"driver_timeout_ms": MEDIA_DRIVER_TIMEOUT_MS}
        self._config.write_text(toml(sections))
        self._media_driver_dir = media_driver_dir
        self.process = self.start()

    @property
    def runtime_dir(self) -> Path:
        return self._bench.directories.runtime_dir / "tensor-pool"

    def start(self) -> ChildProcess:
        """Start it (again) and wait until it answers."""
        arguments: list[object] = ["up", "--config", self._config]
        if self._media_driver_dir is not None:
            arguments += ["--aeron-dir", self._media_driver_dir]
        self.process = self._bench.harness.python("stack", CLI, *arguments)
        self._wait_until_it_answers()
        return self.process

    def _wait_until_it_answers(self) -> None:
        path = self.runtime_dir / "stack.json"
        deadline_s = time.monotonic() + READY_S
        while True:
            # not everybody: F7 starts it again beside the media driver that it killed
            if not self.process.is_running:
                self.process.expect_exit(0)
            try:
                if json.loads(path.read_text())["pid"] == self.process.pid:
                    with self.admin() as admin:
                        admin.status()
                    return
            except (OSError, ValueError, KeyError):
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(0.01)

    def admin(self) -> AdminClient:
        """A connection to its admin socket."""
        return AdminClient(os.fspath(self.runtime_dir / "admin.sock"))


def held_stream(bench: Bench, stream_id: int) -> Path:
    """A process becomes the producer of a stream and publishes now and then. Returns the header ring of the epoch it writes."""
    options = {"stream_id": stream_id, "nbytes": 4096, "slots": 8, "pause_s": 0.02, "log": str(bench.log("holder"))}
    holder = bench.harness.python("holder", "faultlib.workers:producer_process", json.dumps(options))
    holder.send({"order": "attach"})
    epoch = holder.wait_for_message(event="attached")["epoch"]
    holder.send({"order": "publish"})
    (ring,) = bench.directories.shm_base_dir.rglob(f"{stream_id}/{epoch}/header.ring")
    return ring


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A TOML document of one level: JSON writes these values the same way."""
    lines: list[str] = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)
