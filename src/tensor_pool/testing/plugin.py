"""The pytest plugin: `pytest_plugins = ["tensor_pool.testing.plugin"]`.

Fixtures `isolated`, `harness`, `manual_clock`, `stack_session`; the marker `requirement`; a watchdog on every test, which fails one that
waits too long with the stacks of all threads, and ends the run when even that cannot get through; and a JSON file with every outcome.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import pytest

from tensor_pool.testing.clock import ManualClock
from tensor_pool.testing.directories import IsolatedDirectories, isolated_directories
from tensor_pool.testing.harness import ProcessHarness
from tensor_pool.testing.sources import sources_digest
from tensor_pool.testing.watchdog import Watchdog

if TYPE_CHECKING:  # the native module is loaded by the tests that use it, not by the plugin
    from tensor_pool.session import Session

WATCHDOG_S: Final = 110.0
_HARD_LIMIT_GRACE_S: Final = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tensor_pool")
    group.addoption(
        "--watchdog", type=float, default=None, metavar="SECONDS", help="longest time for one test (marker `watchdog` overrides)"
    )
    group.addoption("--test-results", default=None, metavar="FILE", help="write the outcome of every test and the rules it is marked with")
    parser.addini("watchdog", "longest time for one test in seconds", default=str(WATCHDOG_S))
    parser.addini("test_results", "file for the outcomes of complete runs", default="")
    parser.addini("evidence_dir", "where failed process tests leave their logs", default="build/evidence")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a run in the background of a script: tests that interrupt themselves shall find what they find elsewhere
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "requirement(rule, ...): the test fails if this rule of a specification is broken")
    config.addinivalue_line("markers", "watchdog(seconds): the longest time this test may take")
    config.pluginmanager.register(_WatchdogPlugin(config), "tensor_pool_watchdog")
    path = _results_path(config)
    if path is not None:
        config.pluginmanager.register(_ResultsPlugin(path, config), "tensor_pool_results")


# --- fixtures ------------------------------------------------------------------------------------------------------


@pytest.fixture
def isolated() -> Iterator[IsolatedDirectories]:
    """Directories that no other test and no running stack shares."""
    with isolated_directories() as directories:
        yield directories


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def harness(request: pytest.FixtureRequest, isolated: IsolatedDirectories) -> Iterator[ProcessHarness]:
    """Processes in isolated directories. When the test fails their logs stay, and the report says where."""
    parent = request.config.rootpath / str(request.config.getini("evidence_dir"))
    with ProcessHarness(parent, environment=isolated.environment(), name=request.node.name) as harness:
        yield harness
        report = request.node.stash.get(_CALL_REPORT, None)
        if report is not None and report.failed:
            for child in harness.children:
                child.write_stacks()
            report.sections.append(("Evidence", f"{harness.keep_evidence()}"))


@pytest.fixture
def stack_session(isolated: IsolatedDirectories) -> Iterator[Session]:
    """A session with a whole stack of its own in the test process: real media driver, SHM driver and shared memory."""
    from tensor_pool.testing.stack import embedded_stack

    with embedded_stack(isolated) as session:
        yield session


_CALL_REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_CALL_REPORT] = report
    return report


# --- the watchdog --------------------------------------------------------------------------------------------------


class _WatchdogPlugin:
    """At the limit: all stacks on the terminal and a failed test. Where that does not get through (a held GIL) the run ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._limit_s = float(config.getoption("--watchdog") or config.getini("watchdog"))
        capture = config.pluginmanager.getplugin("capturemanager")
        if capture is None:
            self._terminal = os.dup(2)
        else:
            with capture.global_and_fixture_disabled():
                self._terminal = os.dup(2)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        marker = item.get_closest_marker("watchdog")
        limit_s = float(marker.args[0]) if marker else self._limit_s
        with Watchdog(3 * limit_s + _HARD_LIMIT_GRACE_S, self._terminal):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[Any]:
        with self._watched(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        with self._watched(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[Any]:
        with self._watched(item):
            return (yield)

    @contextmanager
    def _watched(self, item: pytest.Item) -> Iterator[None]:
        marker = item.get_closest_marker("watchdog")
        limit_s = float(marker.args[0]) if marker else self._limit_s
        if threading.current_thread() is not threading.main_thread():
            with Watchdog(limit_s, self._terminal):
                yield
            return

        def expire(number: int, frame: FrameType | None) -> None:
            os.write(self._terminal, f"\n{item.nodeid} waits since {limit_s:g} s; every thread:\n".encode())
            faulthandler.dump_traceback(self._terminal, all_threads=True)
            pytest.fail(f"the watchdog ended this test after {limit_s:g} s; the stacks are on the terminal", pytrace=True)

        before = signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            with Watchdog(limit_s + _HARD_LIMIT_GRACE_S, self._terminal):
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def pytest_unconfigure(self) -> None:
        os.close(self._terminal)


# --- outcomes ------------------------------------------------------------------------------------------------------


_NARROWING: Final = ("keyword", "markexpr", "lf", "failedfirst", "deselect", "ignore", "ignore_glob", "collectonly")


def _runs_everything(config: pytest.Config) -> bool:
    return config.args_source is not pytest.Config.ArgsSource.ARGS and not any(config.getoption(name, None) for name in _NARROWING)


def _results_path(config: pytest.Config) -> Path | None:
    """The file of the option for any run; that of the ini file for a run of everything, so that one test does not replace the record."""
    chosen = config.getoption("--test-results")
    if chosen:
        return Path(chosen)
    configured = str(config.getini("test_results"))
    return config.rootpath / configured if configured and _runs_everything(config) else None


class _ResultsPlugin:
    """Remembers the outcome of every test and the rules it is marked with, and writes both at the end of the run."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path = path
        self._config = config
        # of the beginning: what changes while the tests run was not tested by all of them
        self._sources = sources_digest(config.rootpath)
        self._outcomes: dict[str, str] = {}
        self._rules: dict[str, list[str]] = {}

    def pytest_sessionstart(self) -> None:
        # whoever reads the file of a run that was killed shall not find the one before
        self._write(exit_status=None)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._rules[item.nodeid] = [str(rule) for marker in item.iter_markers("requirement") for rule in marker.args]
            self._outcomes[item.nodeid] = "not run"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcomes[report.nodeid] = "failed"
        elif report.when == "call" or (report.skipped and self._outcomes.get(report.nodeid) != "failed"):
            self._outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write(exit_status=int(exitstatus))

    def _write(self, *, exit_status: int | None) -> None:
        """`exit_status` is None as long as the run has not ended."""
        tests = [
            {"nodeid": nodeid, "outcome": outcome, "requirements": sorted(set(self._rules.get(nodeid, [])))}
            for nodeid, outcome in sorted(self._outcomes.items())
        ]
        arguments = re.sub(r"\s+", " ", " ".join(map(str, self._config.invocation_params.args)))
        run = {
            "command": f"pytest {arguments}".strip(),
            "everything": _runs_everything(self._config),
            "exit_status": exit_status,
            "sources": self._sources,
            "tests": tests,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(run, indent=1))
        scratch.replace(self._path)
