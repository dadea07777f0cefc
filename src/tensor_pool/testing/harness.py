"""Starts processes, hurts them, waits for them with a deadline, keeps the evidence of failures, and leaves none of them alive."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from tensor_pool.environment import TEST_PARENT
from tensor_pool.testing.agreement import STACKS_SIGNAL
from tensor_pool.testing.failpoints import Failpoint, failpoint_environment

DEADLINE_S: Final = 30.0
_POLL_S: Final = 0.005
_STACKS_WAIT_S: Final = 0.5
_TAIL_LINES: Final = 15
_Found = TypeVar("_Found")


class ChildFailedError(AssertionError):
    """A process did not do in time what the test waited for, or ended otherwise than expected. The message holds the end of its stderr."""


class ChildProcess:
    """One process in a group of its own. Its standard output and error go to files, so that it never waits for whoever reads them."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.command = tuple(command)
        self.stdout_path = directory / f"{name}.stdout"
        self.stderr_path = directory / f"{name}.stderr"
        with open(self.stdout_path, "wb") as stdout, open(self.stderr_path, "wb") as stderr:
            self._process = subprocess.Popen(  # noqa: S603 - the test says what to start
                command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, env=dict(environment), start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative is the signal that ended it."""
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        return self.returncode is None

    # --- what a test does to it --------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """Send a signal to this process alone, if it still runs."""
        if self.is_running:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and collect what is left."""
        self.signal(signal.SIGKILL)
        self._process.wait(DEADLINE_S)

    def stop(self) -> None:
        """SIGSTOP: alive, and doing nothing."""
        self.signal(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT after `stop`."""
        self.signal(signal.SIGCONT)

    def terminate(self, timeout_s: float = DEADLINE_S) -> int:
        """SIGTERM, then wait. Returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def send(self, message: Any) -> None:
        """One JSON line to its standard input."""
        stdin = self._process.stdin
        if stdin is None:
            raise ValueError(f"{self.name} has no standard input")
        stdin.write(json.dumps(message).encode() + b"\n")
        stdin.flush()

    def end_of_input(self) -> None:
        """Close its standard input: workers of the harness take that as a request to finish."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    # --- what it did ---------------------------------------------------------------------------------------------------

    def stdout(self) -> str:
        return self.stdout_path.read_text(errors="replace")

    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace")

    def messages(self) -> list[dict[str, Any]]:
        """The JSON objects on its standard output so far; other lines and a half-written last one are left out."""
        lines = self.stdout_path.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """The exit code. Raises `ChildFailedError` (with the stacks of its threads in its stderr) when it is not over in time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.write_stacks()
            raise self._failure(f"still runs after {timeout_s:g} s") from None

    def expect_exit(self, code: int = 0, timeout_s: float = DEADLINE_S) -> None:
        """Wait, and insist on the exit code."""
        if self.wait(timeout_s) != code:
            raise self._failure(f"ended with {self.returncode}, expected {code}")

    def wait_for_message(self, timeout_s: float = DEADLINE_S, **fields: Any) -> dict[str, Any]:
        """The first JSON object on standard output that has all these fields."""

        def find() -> dict[str, Any] | None:
            return next((message for message in self.messages() if fields.items() <= message.items()), None)

        return self._wait_for_output(find, f"message with {fields}", timeout_s)

    def wait_for_text(self, pattern: str, timeout_s: float = DEADLINE_S) -> str:
        """The first match of a regular expression on standard output or error."""

        def find() -> str | None:
            match = re.search(pattern, self.stdout()) or re.search(pattern, self.stderr())
            return match.group() if match else None

        return self._wait_for_output(find, f"text like {pattern!r}", timeout_s)

    def _wait_for_output(self, find: Callable[[], _Found | None], what: str, timeout_s: float) -> _Found:
        deadline_s = time.monotonic() + timeout_s
        while True:
            # the state first: what a process wrote before it ended must still be found
            running = self.is_running
            found = find()
            if found is not None:
                return found
            if not running:
                raise self._failure(f"ended with {self.returncode} without {what}")
            if time.monotonic() >= deadline_s:
                self.write_stacks()
                raise self._failure(f"wrote no {what} within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def write_stacks(self) -> None:
        """Have it write the stack of every thread to its stderr. Only for children that were started with `ProcessHarness.python`."""
        if self.is_running and "tensor_pool.testing.child" in self.command:
            self.cont()
            self.signal(STACKS_SIGNAL)
            time.sleep(_STACKS_WAIT_S)

    def _failure(self, what: str) -> ChildFailedError:
        tail = "\n".join(self.stderr().splitlines()[-_TAIL_LINES:])
        return ChildFailedError(f"process {self.name!r} (pid {self.pid}) {what}; the end of {self.stderr_path}:\n{tail}")

    def end(self) -> None:
        """Kill the whole group and collect it. Nothing of it is alive afterwards."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it went before it read everything
                self._process.stdin.close()
        with suppress(ProcessLookupError):  # nobody is left in the group
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)


class ProcessHarness:
    """Processes of one test. `with ProcessHarness(parent_dir) as harness: child = harness.python("reader", "module:function", "argument")`.

    When the block is left by an exception the stacks of what still runs are written, and the directory with every log is kept and named in
    the exception's notes; otherwise it is removed. All children end with the block, and, by the kernel, with the thread that made them.
    """

    def __init__(self, evidence_parent: Path | None = None, *, environment: Mapping[str, str] | None = None, name: str = "harness") -> None:
        parent = Path(tempfile.gettempdir()) if evidence_parent is None else evidence_parent
        parent.mkdir(parents=True, exist_ok=True)
        safe_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:60]
        self.directory = Path(tempfile.mkdtemp(prefix=f"{safe_name}-", dir=parent))
        self._environment = {**os.environ, **(environment or {}), TEST_PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        self._children: list[ChildProcess] = []
        self._keep = False

    def python(
        self,
        name: str,
        target: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        failpoints: Iterable[Failpoint] = (),
    ) -> ChildProcess:
        """Start `module:function` in a new interpreter; `tensor_pool.cli.main:main` is the command line."""
        command = [sys.executable, "-m", "tensor_pool.testing.child", target, *map(str, arguments)]
        return self.start(name, command, environment={**(environment or {}), **failpoint_environment(failpoints)})

    def start(self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> ChildProcess:
        """Start any program. A name that was used before gets a number."""
        taken = {child.name for child in self._children}
        unique = next(candidate for candidate in self._names(name) if candidate not in taken)
        child = ChildProcess(unique, command, {**self._environment, **(environment or {})}, self.directory)
        self._children.append(child)
        return child

    @staticmethod
    def _names(name: str) -> Iterable[str]:
        yield name
        number = 2
        while True:
            yield f"{name}-{number}"
            number += 1

    @property
    def children(self) -> tuple[ChildProcess, ...]:
        """Everything that was started, in order."""
        return tuple(self._children)

    def require_running(self) -> None:
        """Raise `ChildFailedError` for the first child that has ended with anything but 0."""
        for child in self._children:
            if child.returncode not in (None, 0):
                raise child._failure(f"ended with {child.returncode}")

    def keep_evidence(self) -> Path:
        """Keep the directory whatever happens. Returns it."""
        self._keep = True
        return self.directory

    def close(self) -> None:
        """End every child, newest first, and remove the directory unless it is to be kept."""
        for child in reversed(self._children):
            child.end()
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> ProcessHarness:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            for child in self._children:
                child.write_stacks()
            codes = ", ".join(f"{child.name}: {'running' if child.is_running else child.returncode}" for child in self._children)
            error.add_note(f"evidence: {self.keep_evidence()} ({codes})")
        self.close()
