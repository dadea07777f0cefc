"""The demo, small: that it ends well, that the death of any one of its processes ends it in words, and that the next one works at once.

Each has a home and a temporary directory of its own, which have to be as empty at the end as they were at the beginning.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from tensor_pool.runtime import DirectoryLock
from tensor_pool.stack import AERON_PARENT

ROOT = Path(__file__).resolve().parents[3]
WORKPLACE = AERON_PARENT / f"tensor-pool-demo-{os.geteuid()}"
DEADLINE_S = 100.0
_Found = TypeVar("_Found")

pytestmark = pytest.mark.timeout(240)


def runs(process: psutil.Process | None, *words: str) -> bool:
    """Whether its command line has all these words, or files of these names."""
    line = process.cmdline() if process is not None else []
    return all(any(part == word or part.endswith(f"/{word}") for part in line) for word in words)


PROCESSES: dict[str, Callable[[psutil.Process], bool]] = {
    "stack": lambda process: runs(process, "tensor_pool.cli.main", "up"),
    "camera": lambda process: runs(process, "tensor_pool.cli.main", "publish"),
    "consumer": lambda process: runs(process, "tensor_pool.cli.main", "tap"),
    "recorder": lambda process: runs(process, "tensor_pool.cli.main", "record"),
    "spark": lambda process: runs(process, "demo_spark.py"),
    # the first Java of Spark only prints the command line of the second
    "java": lambda process: (
        runs(process, "org.apache.spark.deploy.SparkSubmit", "java") and not runs(process, "org.apache.spark.launcher.Main")
    ),
    # a fork of the daemon of that name, at its first task
    "worker": lambda process: runs(process, "pyspark.worker") and runs(process.parent(), "pyspark.worker"),
}


class Demo:
    """A running demo with its output, summary, home and temporary directory in a directory of the test's own."""

    def __init__(self, directory: Path, number: int, *, seconds: float, **variables: str) -> None:
        self.log = directory / f"demo-{number}.log"
        self.build = directory / "deep" / "build"
        self.private = [directory / "home", directory / "tmp"]
        for path in self.private:
            path.mkdir(exist_ok=True)
        self.seen: set[psutil.Process] = set()
        self._shared_memory = abandoned_shared_memory()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / "demo.py"), *self._arguments(seconds)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**self._environment(), **variables},
                # who runs the tests in the background ignores it
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def _arguments(self, seconds: float) -> list[str]:
        return ["--seconds", str(seconds), "--rate", "100", "--shape", "64x96", "--build", str(self.build)]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TENSOR_POOL_", "XDG_", "MPL", "PYTHON"))}
        home, temporary = map(str, self.private)
        return {**kept, "HOME": home, "TMPDIR": temporary}

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, found: Callable[[], _Found | None], what: str) -> _Found:
        """What `found` returns, once that is something; the demo has to run that long."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if result := found():
                return result
            assert self.process.poll() is None, self.text
            time.sleep(0.02)
        raise AssertionError(f"no {what} within {DEADLINE_S:g} s: {self.text}")

    def child(self, name: str) -> psutil.Process:
        """That one of its processes, as soon as there is one."""
        return self.wait_for(lambda: self._find(PROCESSES[name]), name)

    def _find(self, is_wanted: Callable[[psutil.Process], bool]) -> psutil.Process | None:
        for process in psutil.Process(self.process.pid).children(recursive=True):
            self.seen.add(process)
            with suppress(psutil.Error):
                if is_wanted(process):
                    return process
        return None

    def wait_for_recording(self) -> None:
        """Until every process of the live part runs, and frames reach the disk."""
        self.wait_for(lambda: list(self.build.glob("demo-recording/**/*.mcap*")), "recording")

    def interrupt(self) -> None:
        """As Ctrl-C does, in the shell."""
        self.process.send_signal(signal.SIGINT)
        assert self.finish() == 130, self.text

    def finish(self) -> int:
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.kill_all()

    def kill(self) -> None:
        """Only itself, and nobody it started."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def kill_all(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(DEADLINE_S)

    def expect_words(self, *words: str) -> None:
        """It failed, and says so in a way that is fit for whoever ran it."""
        assert self.finish() == 1, self.text
        for word in ("The demo failed", *words):
            assert word in self.text
        for stack in ("Traceback", "\tat "):
            assert stack not in self.text

    def expect_good_end(self) -> dict[str, Any]:
        assert self.finish() == 0, self.text
        summary: dict[str, Any] = json.loads((self.build / "demo-summary.json").read_text())
        assert summary["ok"] is True
        assert summary["spark_frames"] == summary["recorded"] > 0
        return summary

    def expect_nothing_left(self) -> None:
        """No process, no shared memory, and no file but those in its build directory."""
        assert processes_of_demos() == []
        # what is dead may still wait for init to take note
        _, alive = psutil.wait_procs(list(self.seen), timeout=10)
        assert alive == []
        assert not WORKPLACE.exists()
        assert abandoned_shared_memory() <= self._shared_memory
        assert [list(path.iterdir()) for path in self.private] == [[], []]
        # a Java that was killed leaves its figures there, whatever TMPDIR says
        assert [process for process in self.seen if list(Path("/tmp").glob(f"hsperfdata_*/{process.pid}"))] == []


def processes_of_demos() -> list[psutil.Process]:
    """Those too that a test did not see come."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(WORKPLACE) in process.environ().values():
                found.append(process)
    return found


def abandoned_shared_memory() -> set[Path]:
    """What lies there without anybody to hold its lock. The stacks of others come and go meanwhile."""
    return {path for path in AERON_PARENT.glob("tensor-pool-*") if not DirectoryLock.held_by_other(path)}


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*, seconds: float = 0.5, **variables: str) -> Demo:
        started.append(Demo(tmp_path, len(started), seconds=seconds, **variables))
        return started[-1]

    yield start
    for each in started:
        each.kill_all()


def expect_to_work(run: Demo) -> None:
    """That its live part ends well: Spark is started after that. To wait for Spark each time would take minutes."""
    # not as soon as the process is there: Python drops an interrupt that comes while it forks
    run.child("java")
    run.interrupt()
    run.expect_nothing_left()


def test_a_small_demo_ends_well_and_leaves_nothing(demo: Callable[..., Demo]) -> None:
    compiled = ROOT / "examples" / "__pycache__"
    shutil.rmtree(compiled, ignore_errors=True)
    run = demo(seconds=1)
    run.child("worker")
    summary = run.expect_good_end()
    assert summary["published"] > 50
    assert len(summary["consumers"]) == 2
    assert all(consumer["balanced"] for consumer in summary["consumers"])
    assert summary["recorded_bad_pixels"] == 0
    assert not compiled.exists()
    assert "cores" in summary["machine"]
    assert os.uname().nodename not in json.dumps(summary)
    assert (run.build / "demo.png").stat().st_size > 1000
    run.expect_nothing_left()


def test_without_java_the_demo_says_so_before_it_records_anything(demo: Callable[..., Demo]) -> None:
    run = demo(seconds=60, JAVA_HOME="/nonexistent/jdk")
    run.expect_words("Spark needs Java 17 or newer", "openjdk-17-jre-headless")
    assert not run.build.exists()
    run.expect_nothing_left()


def test_a_directory_that_cannot_be_made_is_an_error_in_words(demo: Callable[..., Demo], tmp_path: Path) -> None:
    (tmp_path / "deep").write_text("in the way")
    run = demo()
    run.expect_words("deep/build cannot be made: Not a directory")
    run.expect_nothing_left()


def test_frames_that_were_recorded_with_the_pixels_of_another_are_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    from demo_report import Report

    recorder = {"frames_recorded": 5, "gaps_recorded": 0, "frames_lost": 0, "frames_dropped_disk": 0, "bad_pixels": 2}
    report = Report.of({"published": 5}, [], recorder, {"frames": 5, "frames_with_their_seq": 5, "seconds": []})
    assert report.complaints == ["2 frames had the pixels of another frame when they were recorded"]


def test_a_second_demo_is_refused_in_words_and_does_not_touch_the_first(demo: Callable[..., Demo]) -> None:
    run = demo(seconds=2)
    run.wait_for_recording()
    before = set(run.build.rglob("*"))
    demo().expect_words("another demo of this user is running")
    assert before <= set(run.build.rglob("*"))
    expect_to_work(run)


@pytest.mark.parametrize("victim", ["stack", "camera", "consumer", "recorder"])
def test_a_killed_process_ends_the_demo_in_words_and_the_next_one_works(demo: Callable[..., Demo], victim: str) -> None:
    run = demo(seconds=60)
    run.wait_for_recording()
    run.child(victim).kill()
    run.expect_words("SIGKILL")
    run.expect_nothing_left()
    expect_to_work(demo())


@pytest.mark.parametrize("victim", ["spark", "java", "worker"])
def test_a_killed_process_of_spark_ends_the_demo_in_words_and_the_next_one_works(demo: Callable[..., Demo], victim: str) -> None:
    run = demo()
    run.child("java")
    run.child(victim).kill()
    run.expect_words("the process of the spark")
    run.expect_nothing_left()
    expect_to_work(demo())


def test_a_killed_demo_takes_its_processes_along_and_the_next_one_works_at_once(demo: Callable[..., Demo]) -> None:
    run = demo(seconds=60)
    run.wait_for_recording()
    run.kill()
    again = demo()
    again.expect_good_end()
    again.expect_nothing_left()
    run.expect_nothing_left()


def test_a_demo_killed_beside_its_spark_takes_that_along_and_the_next_one_works_at_once(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.child("java")
    run.kill()
    expect_to_work(demo())
    run.expect_nothing_left()
