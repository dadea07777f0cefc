"""What the tests of this directory run in another process."""

from __future__ import annotations

import json
import signal
import sys
import threading

from tensor_pool.transport import run_media_driver


def drive() -> None:
    """The media driver as the whole of a process, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())

    def on_ready(directory: str) -> None:
        sys.stdout.write(json.dumps({"ready": directory}) + "\n")
        sys.stdout.flush()

    run_media_driver(sys.argv[1], stop=stop, on_ready=on_ready)
