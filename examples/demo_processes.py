"""The processes of the demo: started together, watched all the time, and gone at the end whatever happens."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
LAST_WORDS: Final = 12


class DemoError(Exception):
    """Something went wrong, in words for whoever ran the demo."""


def _end_with_parent() -> Callable[[], None]:
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def prepare() -> None:
        # SIGTERM, so that the stack takes its shared memory with it when the demo is killed
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


class Child:
    """A process that says what it does in JSON lines."""

    def __init__(self, name: str, command: list[str], log: Path, *, has_input: bool) -> None:
        self.name = name
        self.is_expected_to_end = False
        self._log = log
        self._events: dict[str, dict[str, Any]] = {}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=_end_with_parent(),
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._events[str(event.get("event"))] = event

    def has(self, event: str) -> bool:
        return event in self._events

    def last(self, event: str) -> dict[str, Any]:
        """The newest event of a kind, empty where none came yet."""
        return self._events.get(event, {})

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            # the next check says how it ended
            pass

    def finish_listening(self) -> None:
        self._listener.join(timeout=5)

    def how_it_ended(self) -> str:
        """In words: by which signal or code, and what it last said."""
        code = self.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        # who can say why does so; otherwise the end of what it wrote has to do, without the stacks of Java's threads
        self.finish_listening()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        words = self.last("failed").get("why", "").splitlines() or [line for line in lines if not line.startswith("\tat ")][-LAST_WORDS:]
        said = "\n  " + "\n  ".join(words) if words else ""
        return f"the process of the {self.name} {how} while the demo ran.{said}"


class Processes:
    """Starts children and makes sure that none survives."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    def start(self, name: str, arguments: list[str], *, has_input: bool = False) -> Child:
        """Run `tensor-pool <arguments>`."""
        return self.start_python(name, ["-m", "tensor_pool.cli.main", *arguments], has_input=has_input)

    def start_python(self, name: str, arguments: list[str], *, has_input: bool = False) -> Child:
        child = Child(name, [sys.executable, *arguments], self._logs / f"{name}.log", has_input=has_input)
        self._children.append(child)
        return child

    def check(self) -> None:
        """`DemoError` when a process ended that should still run."""
        for child in self._children:
            code = child.process.poll()
            if code is not None and not (child.is_expected_to_end and code == 0):
                raise DemoError(child.how_it_ended())

    def wait_for(self, child: Child, event: str, limit_s: float) -> dict[str, Any]:
        limit = time.monotonic() + limit_s
        while not child.has(event):
            if child.process.poll() == 0:
                child.finish_listening()
                if child.has(event):
                    break
            self.check()
            if time.monotonic() > limit:
                raise DemoError(f"the {child.name} did not say {event!r} within {limit_s:.0f} s")
            time.sleep(0.02)
        return child.last(event)

    def stop(self, child: Child, limit_s: float, *, signal_it: bool = True) -> None:
        """Ask it to end, and wait for it. `DemoError` when it does not end, or not well."""
        child.is_expected_to_end = True
        if signal_it and child.process.poll() is None:
            child.process.send_signal(signal.SIGINT)
        limit = time.monotonic() + limit_s
        while child.process.poll() is None:
            self.check()
            if time.monotonic() > limit:
                raise DemoError(f"the {child.name} did not end within {limit_s:.0f} s")
            time.sleep(0.02)
        self.check()
        child.finish_listening()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # the stack goes last, so that the others can say good-bye
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for child in reversed(self._children):
                if child.process.poll() is None:
                    child.process.send_signal(sign)
            limit = time.monotonic() + 5
            while time.monotonic() < limit and any(child.process.poll() is None for child in self._children):
                time.sleep(0.02)
