"""What the README tells people to paste, pasted: in an empty directory, with this environment as its `.venv`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensor_pool.testing import IsolatedDirectories

ROOT = Path(__file__).resolve().parents[3]
MOST_LINES_OF_THE_FIRST_PROGRAM = 12


def blocks(section: str, language: str) -> list[str]:
    """The code blocks of one section of the README."""
    text = (ROOT / "README.md").read_text()
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    part = next(part for part in parts if part.startswith(section + "\n"))
    return re.findall(rf"^```{language}\n(.*?)^```", part, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(isolated: IsolatedDirectories) -> dict[str, str]:
    return {**os.environ, **isolated.environment(), "TENSOR_POOL_SHM__BASE_DIR": str(isolated.shm_base_dir)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return tmp_path


def paste_python(text: str, directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", text], cwd=directory, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def paste_shell(text: str, directory: Path, environment: dict[str, str], *, before: str = "", after: str = "") -> str:
    # what was started with & gets a moment, as it would from a person's hands; the last line sees to it that nothing is left
    script = "\n".join(["set -e", before, re.sub(r"&.*$", "& sleep 2.5", text, flags=re.MULTILINE), after, "wait"])
    command = ["setsid", "--wait", "timeout", "--kill-after=5", "100", "bash", "-c", script]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_first_program(directory: Path, environment: dict[str, str]) -> None:
    (program,) = blocks("First program", "python")
    assert len(program.strip().splitlines()) <= MOST_LINES_OF_THE_FIRST_PROGRAM
    said = paste_python(program, directory, environment)
    assert said.startswith("0 7.0 ConsumerStats(delivered=1")


@pytest.mark.timeout(300)
def test_between_processes(directory: Path, environment: dict[str, str]) -> None:
    (commands,) = blocks("Between processes", "sh")
    said = paste_shell(commands.replace("--seconds 30", "--seconds 9"), directory, environment)
    assert "delivered" in said
    assert "camera-1" in said


@pytest.mark.timeout(600)
def test_recording_and_spark(directory: Path, environment: dict[str, str]) -> None:
    (commands,) = blocks("Recording", "sh")
    said = paste_shell(commands.replace("--seconds 20", "--seconds 12").replace("--seconds 10", "--seconds 5"), directory, environment)
    assert "frames_recorded" in said
    (program,) = blocks("Recording", "python")
    name, frames, mean = paste_python(program, directory, environment).split()
    assert name == "camera-1"
    assert int(frames) > 100
    assert float(mean) > 0
    (job,) = blocks("Spark", "python")
    said = paste_python(job, directory, environment)
    assert "mean" in said


def test_settings(directory: Path, environment: dict[str, str]) -> None:
    (commands,) = blocks("Settings", "sh")
    generate_and_show = "\n".join(line for line in commands.splitlines() if " up " not in line)
    assert "policies.announce_period_ms" in paste_shell(generate_and_show, directory, environment)
