"""The pytest plugin, seen from a project of somebody else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensor_pool.testing.sources import sources_digest

INI = "[pytest]\nmarkers =\n  spark\ntest_results = results.json\nevidence_dir = evidence\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tensor_pool.testing.plugin"]\n')
    return tmp_path


def run(project: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (project / "test_it.py").write_text(program)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:timeout", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60, check=False)


def results(project: Path) -> dict[str, tuple[str, list[str]]]:
    written = json.loads((project / "results.json").read_text())
    return {test["nodeid"].partition("::")[2]: (test["outcome"], test["requirements"]) for test in written["tests"]}


def test_outcomes_and_rules_of_a_complete_run_are_written(project: Path) -> None:
    program = (
        "import pytest\n"
        "@pytest.mark.requirement('W-1-2', 'W-1-1')\ndef test_good(): pass\n"
        "@pytest.mark.requirement('W-1-3')\ndef test_bad(): assert False\n"
        "@pytest.mark.requirement('W-1-4')\ndef test_left_out(): pytest.skip('x')\n"
        "@pytest.fixture\ndef broken():\n    yield\n    raise ValueError\n"
        "@pytest.mark.requirement('W-1-5')\ndef test_bad_teardown(broken): pass\n"
        "@pytest.mark.xfail\n@pytest.mark.requirement('W-1-6')\ndef test_expected(): assert False\n"
    )
    assert run(project, program).returncode == 1
    assert results(project) == {
        "test_good": ("passed", ["W-1-1", "W-1-2"]),
        "test_bad": ("failed", ["W-1-3"]),
        "test_left_out": ("skipped", ["W-1-4"]),
        "test_bad_teardown": ("failed", ["W-1-5"]),
        "test_expected": ("skipped", ["W-1-6"]),
    }


def written(project: Path) -> dict[str, Any]:
    document = json.loads((project / "results.json").read_text())
    assert isinstance(document, dict)
    return document


def test_a_run_says_how_it_ended_and_of_which_sources_it_was(project: Path) -> None:
    (project / "src").mkdir()
    (project / "src" / "it.py").write_text("1")
    run(project, "def test_good(): pass\n")
    good = written(project)
    assert good["everything"]
    assert good["exit_status"] == 0
    assert good["sources"] == sources_digest(project)
    (project / "src" / "it.py").write_text("2")
    run(project, "def test_bad(): assert False\n")
    bad = written(project)
    assert bad["exit_status"] == 1
    assert bad["sources"] == sources_digest(project) != good["sources"]


def test_sources_that_change_under_a_run_are_not_the_ones_that_it_tested(project: Path) -> None:
    (project / "src").mkdir()
    run(project, "import pathlib\ndef test_it(): pathlib.Path('src/new.py').touch()\n")
    assert written(project)["sources"] != sources_digest(project)


def test_a_run_that_is_killed_leaves_no_older_record_in_its_place(project: Path) -> None:
    assert run(project, "def test_good(): pass\n").returncode == 0
    run(project, "import os\ndef test_dies(): os._exit(3)\n")
    assert (written(project)["exit_status"], written(project)["tests"]) == (None, [])


@pytest.mark.parametrize("narrowing", [["test_it.py"], ["-k", "one"], ["--collect-only"]])
def test_a_look_at_part_of_the_tests_does_not_replace_the_record(project: Path, narrowing: list[str]) -> None:
    program = "def test_one(): pass\ndef test_two(): pass\n"
    run(project, program)
    before = (project / "results.json").read_bytes()
    assert run(project, program + "def test_three(): pass\n", *narrowing).returncode == 0
    assert (project / "results.json").read_bytes() == before


def test_a_partial_run_writes_where_it_is_told_to(project: Path) -> None:
    program = "import pytest\n@pytest.mark.requirement('D-1-1')\ndef test_one(): pass\n"
    run(project, program, "test_it.py", "--test-results", "results.json", "--collect-only")
    assert results(project) == {"test_one": ("not run", ["D-1-1"])}
    assert not written(project)["everything"]


def test_the_watchdog_fails_a_test_that_waits_and_the_next_one_runs(project: Path) -> None:
    program = "import threading\ndef test_hangs(): threading.Event().wait()\ndef test_next(): pass\n"
    done = run(project, program, "--watchdog", "0.5")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "the watchdog ended this test" in done.stdout
    assert "test_hangs" in done.stderr
    assert "line 2 in test_hangs" in done.stderr


def test_the_watchdog_ends_the_run_when_python_itself_is_stuck(project: Path) -> None:
    # the handler of a signal never runs while C code that does not look for signals holds the GIL
    program = "import signal\ndef test_stuck():\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n    while True: pass\n"
    (project / "conftest.py").write_text(
        'import tensor_pool.testing.plugin as plugin\nplugin._HARD_LIMIT_GRACE_S = 0.3\npytest_plugins = ["tensor_pool.testing.plugin"]\n'
    )
    done = run(project, program, "--watchdog", "0.3")
    assert done.returncode == 1
    assert "in test_stuck" in done.stderr
    assert "passed" not in done.stdout


def test_a_marker_sets_the_limit_of_one_test(project: Path) -> None:
    program = "import pytest, time\n@pytest.mark.watchdog(20)\ndef test_slow(): time.sleep(0.6)\n"
    assert run(project, program, "--watchdog", "0.2").returncode == 0


def test_a_failed_process_test_names_its_evidence_and_a_good_one_leaves_nothing(project: Path) -> None:
    program = (
        "import sys\ndef test_good(harness): harness.start('good', [sys.executable, '-c', '']).expect_exit(0)\n"
        "def test_bad(harness):\n    harness.start('bad', [sys.executable, '-c', 'print(5)']).wait()\n    assert False\n"
    )
    done = run(project, program)
    (kept,) = (project / "evidence").iterdir()
    assert str(kept) in done.stdout
    assert (kept / "bad.stdout").read_text() == "5\n"


def test_isolated_directories_differ_and_are_gone_afterwards(project: Path) -> None:
    program = (
        "import pathlib\nseen = pathlib.Path('seen')\n"
        "def write(d): seen.open('a').write(f'{d.root}\\n{d.shm_base_dir}\\n')\n"
        "def test_one(isolated):\n    assert isolated.shm_base_dir.is_dir()\n    write(isolated)\ndef test_two(isolated): write(isolated)\n"
    )
    assert run(project, program).returncode == 0
    paths = (project / "seen").read_text().split()
    assert len(set(paths)) == 4
    assert not any(Path(path).exists() for path in paths)
