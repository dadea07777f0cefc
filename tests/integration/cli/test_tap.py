"""What a person sees of `tensor-pool tap`: the line on the terminal while it runs, and the tables at its end."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tensor_pool.testing import ChildProcess, ProcessHarness

COMMAND = "tensor_pool.cli.main:main"
DEADLINE_S = 30.0
CAMERA = ("publish", "--shape", "16x16", "--rate", 100, "--seconds", 0.5, "--wait-for-start", "--json")


class Terminal:
    """A command whose stderr is a terminal, and what has been written there."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self._controller, terminal_end = pty.openpty()
        command = [sys.executable, "-m", "tensor_pool.cli.main", *arguments]
        variables = {**os.environ, **environment, "TERM": "xterm", "COLUMNS": "200"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal_end, text=True, env=variables)
        os.close(terminal_end)
        self._seen = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._controller, 4096):
                self._seen += part
        except OSError:
            # nobody holds its other end any more
            return

    def wait_for(self, pattern: str, since: int = 0) -> int:
        """Where the first match ends that begins after `since`."""
        deadline = time.monotonic() + DEADLINE_S
        while (match := re.compile(pattern.encode()).search(self._seen, since)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self._seen!r}"
            time.sleep(0.02)
        return match.end()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join()
        os.close(self._controller)


@contextmanager
def on_a_terminal(*arguments: str, environment: dict[str, str]) -> Iterator[Terminal]:
    terminal = Terminal(list(arguments), environment)
    try:
        yield terminal
    finally:
        terminal.close()


def frames_published(camera: ChildProcess) -> int:
    camera.send("start")
    return int(camera.wait_for_message(event="summary")["published"])


def columns(table: list[str]) -> dict[str, str]:
    return dict(line.split() for line in table)


def test_a_tap_that_outlives_its_cameras_tells_a_person_what_it_read_of_each(harness: ProcessHarness, environment: dict[str, str]) -> None:
    harness.python("stack", COMMAND, "up", "--json", environment=environment).wait_for_message(event="ready")
    # the log says when an epoch is over for the tap
    with on_a_terminal("-v", "tap", "camera-1", "--verify", environment=environment) as tap:
        published: list[int] = []
        at = 0
        for number in (1, 2):
            camera = harness.python(f"camera-{number}", COMMAND, *CAMERA, environment=environment)
            at = tap.wait_for(r" mapped epoch", at)
            camera.wait_for_message(event="attached")
            published.append(frames_published(camera))
            at = tap.wait_for(rf": {sum(published)} frames", at)
            camera.send("end")
            camera.expect_exit(0)
            at = tap.wait_for(r"unmapped epoch", at)
            tap.wait_for(rf": {sum(published)} frames", at)
        tap.process.terminate()
        said, _ = tap.process.communicate(timeout=DEADLINE_S)
        assert tap.process.returncode == 0
    lines = said.splitlines()
    first_row_of_epochs = next(index for index, line in enumerate(lines) if line.split()[:2] == ["epoch", "delivered"])
    total = columns(lines[:first_row_of_epochs])
    assert (total["frames"], total["delivered"], total["epochs"]) == (str(sum(published)), str(sum(published)), "2")
    assert (total["gap"], total["late"], total["invalid"], total["balanced"], total["bad_pixels"]) == ("0", "0", "0", "yes", "0")
    epochs = [line.split() for line in lines[first_row_of_epochs + 1 :]]
    assert [int(epoch[1]) for epoch in epochs] == published
