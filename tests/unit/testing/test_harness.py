"""The process harness: what it starts it can hurt, wait for, look into and end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tensor_pool.testing import ChildFailedError, ProcessHarness

SLEEPER = "import json, sys, threading\nprint(json.dumps({'event': 'ready'}), flush=True)\nthreading.Event().wait(60)\n"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_messages_and_exit_code_of_a_child_are_seen(tmp_path: Path) -> None:
    with ProcessHarness(tmp_path) as harness:
        child = harness.start(
            "counter", [sys.executable, "-c", "import json\nfor n in range(3): print(json.dumps({'n': n}))\nraise SystemExit(4)"]
        )
        assert child.wait_for_message(n=2) == {"n": 2}
        assert child.wait() == 4
        assert child.messages() == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_worker_reads_what_is_sent_to_it_and_ends_with_its_input(tmp_path: Path) -> None:
    program = "import json, sys\nfor line in sys.stdin: print(json.dumps({'echo': json.loads(line)}), flush=True)\n"
    with ProcessHarness(tmp_path) as harness:
        child = harness.start("echo", [sys.executable, "-c", program])
        child.send({"go": 1})
        child.wait_for_message(echo={"go": 1})
        child.end_of_input()
        child.expect_exit(0)


def test_kill_ends_with_sigkill_and_the_signal_is_the_exit_code(tmp_path: Path) -> None:
    with ProcessHarness(tmp_path) as harness:
        child = harness.start("sleeper", [sys.executable, "-c", SLEEPER])
        child.wait_for_message(event="ready")
        child.kill()
        assert child.returncode == -signal.SIGKILL


def test_a_stopped_child_does_nothing_until_it_is_continued(tmp_path: Path) -> None:
    program = "import sys\nprint('{\"ready\": 1}', flush=True)\nsys.stdin.readline()\nprint('{\"woken\": 1}', flush=True)\n"
    with ProcessHarness(tmp_path) as harness:
        child = harness.start("stopped", [sys.executable, "-c", program])
        child.wait_for_message(ready=1)
        child.stop()
        child.send({})
        with pytest.raises(ChildFailedError, match="wrote no message"):
            child.wait_for_message(0.2, woken=1)
        child.cont()
        child.wait_for_message(woken=1)


def test_nothing_survives_the_block_not_even_a_grandchild(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, threading\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(p.pid, flush=True)\nthreading.Event().wait()\n"
    )
    with ProcessHarness(tmp_path) as harness:
        child = harness.start("parent", [sys.executable, "-c", program])
        grandchild = harness.children[0].wait_for_text(r"\d+")
    assert not is_alive(child.pid)
    assert not is_alive(int(grandchild))
    assert list(tmp_path.iterdir()) == []


def test_on_failure_the_evidence_is_kept_and_named(tmp_path: Path) -> None:
    with pytest.raises(ChildFailedError) as caught, ProcessHarness(tmp_path, name="a test") as harness:  # noqa: PT012 - the block is what fails
        child = harness.start("loser", [sys.executable, "-c", "import sys; print('out'); sys.exit('the reason')"])
        child.expect_exit(0)
    assert "the reason" in str(caught.value)
    (kept,) = tmp_path.iterdir()
    assert any(str(kept) in note for note in caught.value.__notes__)
    assert (kept / "loser.stdout").read_text() == "out\n"


def test_a_child_that_hangs_leaves_the_stacks_of_its_threads(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import threading\ndef hang_in_here():\n    print('{\"ready\": 1}', flush=True)\n    threading.Event().wait()\n"
    )
    with ProcessHarness(tmp_path / "evidence", environment={"PYTHONPATH": str(tmp_path)}) as harness:
        child = harness.python("hanging", "hanging:hang_in_here")
        child.wait_for_message(ready=1)
        with pytest.raises(ChildFailedError, match="still runs"):
            child.wait(0.1)
        assert "hang_in_here" in child.stderr()


def test_what_the_function_returns_is_the_exit_code_and_arguments_arrive(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text("import sys\ndef count():\n    return len(sys.argv[1:])\n")
    with ProcessHarness(tmp_path / "evidence", environment={"PYTHONPATH": str(tmp_path)}) as harness:
        harness.python("counting", "counting:count", "a", 2, "c").expect_exit(3)


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "sleeping.py").write_text(
        "import os, threading\ndef sleep():\n    print('{\"pid\": %d}' % os.getpid(), flush=True)\n    threading.Event().wait()\n"
    )
    program = (
        "import pathlib, sys, threading\nfrom tensor_pool.testing import ProcessHarness\n"
        "inner = ProcessHarness(pathlib.Path(sys.argv[1])).python('inner', 'sleeping:sleep')\n"
        "print(inner.wait_for_text(r'[0-9]+'), flush=True)\nthreading.Event().wait()\n"
    )
    with ProcessHarness(tmp_path / "evidence", environment={"PYTHONPATH": str(tmp_path)}) as harness:
        outer = harness.start("outer", [sys.executable, "-c", program, str(tmp_path / "nested")])
        inner = int(outer.wait_for_text(r"\d+"))
        outer.kill()
        deadline_s = time.monotonic() + 10
        while is_alive(inner):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_a_name_that_was_used_before_gets_a_number(tmp_path: Path) -> None:
    with ProcessHarness(tmp_path) as harness:
        names = [harness.start("same", [sys.executable, "-c", ""]).name for _ in range(3)]
    assert names == ["same", "same-2", "same-3"]


def test_require_running_names_the_child_that_ended_badly(tmp_path: Path) -> None:
    with ProcessHarness(tmp_path) as harness:
        harness.start("good", [sys.executable, "-c", ""]).expect_exit(0)
        bad = harness.start("bad", [sys.executable, "-c", "raise SystemExit(3)"])
        bad.wait()
        with pytest.raises(ChildFailedError, match=r"'bad'.*ended with 3"):
            harness.require_running()
