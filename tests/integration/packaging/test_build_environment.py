"""Which cmake a build finds, when there are several."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def another_cmake(tmp_path: Path) -> Path:
    """In a directory that stands first in PATH."""
    program = tmp_path / "bin" / "cmake"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def cmake_of_a_build(another: Path, **variables: str) -> str | None:
    environment = {**os.environ, "PATH": f"{another.parent}{os.pathsep}{os.environ['PATH']}", **variables}
    environment.pop("LIBCLANG_PATH", None)
    command = [sys.executable, ROOT / "native" / "build_backend.py", "--print-env"]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    found = re.search(r"^export PATH='(.*)'$", printed, re.MULTILINE)
    assert found is not None
    return shutil.which("cmake", path=found[1])


def test_a_build_in_this_environment_uses_its_cmake_and_not_the_systems(another_cmake: Path) -> None:
    assert cmake_of_a_build(another_cmake) == str(Path(sys.executable).with_name("cmake"))


def test_a_build_environment_laid_over_this_one_keeps_its_own_cmake(another_cmake: Path, tmp_path: Path) -> None:
    # as pip does it: the packages by PYTHONPATH, their scripts first in PATH, the interpreter that of the user
    packages = tmp_path / "lib"
    (packages / "clang" / "native").mkdir(parents=True)
    (packages / "clang" / "__init__.py").touch()
    assert cmake_of_a_build(another_cmake, PYTHONPATH=str(packages)) == str(another_cmake)
