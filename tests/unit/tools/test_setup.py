"""`tools/setup java`: a Java that Spark can use, or words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
JAVA = """#!/bin/sh
echo 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2
echo 'openjdk version "{version}" 2025-04-15' >&2
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def setup(directory: Path, *, user_id: int = 1000, java_home: Path | None = None) -> tuple[int, str]:
    """Run it as this user, with the programs of `directory` first."""
    program(directory / "id", f"#!/bin/sh\necho {user_id}\n")
    variables = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    if java_home is not None:
        variables["JAVA_HOME"] = str(java_home)
    variables["PATH"] = f"{directory}:{variables['PATH']}"
    done = subprocess.run([ROOT / "tools" / "setup", "java"], env=variables, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("version", ["17.0.15", "21", "21-ea", "1.21.0", "nonsense"])
def test_a_java_that_is_new_enough_is_left_alone(tmp_path: Path, version: str) -> None:
    program(tmp_path / "java", JAVA.format(version=version))
    assert setup(tmp_path) == (0, "")


@pytest.mark.parametrize(("version", "major"), [("1.8.0_452", 8), ("11.0.27", 11), ("16", 16)])
def test_an_older_one_is_named_to_whoever_may_not_install_another(tmp_path: Path, version: str, major: int) -> None:
    java = program(tmp_path / "java", JAVA.format(version=version))
    code, said = setup(tmp_path)
    assert code == 1
    assert said.startswith(f"error: Spark needs Java 17 or newer; in PATH {java} is {major}\n\nhint: apt-get install ")


def test_one_that_does_not_run_is_none(tmp_path: Path) -> None:
    program(tmp_path / "java", "#!/bin/sh\nexit 1\n")
    assert setup(tmp_path)[1].startswith("error: Spark needs Java 17 or newer; in PATH there is none\n")


def test_where_it_may_root_installs_one(tmp_path: Path) -> None:
    java = program(tmp_path / "java", JAVA.format(version="11"))
    newer = program(tmp_path / "newer", JAVA.format(version="17"))
    program(tmp_path / "apt-get", f"#!/bin/sh\ncp {newer} {java}\n")
    code, said = setup(tmp_path, user_id=0)
    assert (code, "installing a Java runtime" in said) == (0, True)


def test_one_that_is_found_before_the_installed_one_is_named(tmp_path: Path) -> None:
    java = program(tmp_path / "java", JAVA.format(version="11"))
    program(tmp_path / "apt-get", "#!/bin/sh\n")
    code, said = setup(tmp_path, user_id=0)
    assert code == 1
    assert f"in PATH {java} is 11\n\nhint: put the installed one, openjdk-17, before it\n" in said


def test_java_home_comes_first_and_is_named(tmp_path: Path) -> None:
    program(tmp_path / "java", JAVA.format(version="17"))
    old = program(tmp_path / "jdk" / "bin" / "java", JAVA.format(version="8"))
    code, said = setup(tmp_path, java_home=tmp_path / "jdk", user_id=0)
    assert code == 1
    assert said.startswith(f"error: Spark needs Java 17 or newer; in JAVA_HOME, {tmp_path / 'jdk'}, {old} is 8\n\nhint: unset JAVA_HOME")
