"""A wheel of this checkout, and `pip install .`, in empty virtual environments: they need nothing from the system but the C library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native.build_backend import native_environment

ROOT = Path(__file__).resolve().parents[3]
UV = Path(sys.executable).with_name("uv")
SYSTEM_LIBRARIES = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
PROGRAM = """
import numpy as np
import tensor_pool as tp

with tp.embedded() as session:
    producer = session.producer(10_000, shape=(8, 8), dtype="uint8")
    consumer = session.consumer(10_000, wait=10)
    producer.publish(np.full((8, 8), 7, np.uint8))
    print(int(consumer.read(timeout=5).array.sum()), tp.__file__)
"""


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=400, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr[-3000:]
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # the build of `make`, packed: without isolation and in the same target directory nothing is compiled twice
    run(UV, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", out, ROOT, cwd=ROOT)
    return next(out.glob("shm_tensor_pool-*.whl"))


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A virtual environment with nothing but pip."""
    run(UV, "venv", "--quiet", "--seed", "--python", sys.executable, tmp_path / "empty")
    return tmp_path / "empty"


def check_installed(environment: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR")}
    total, where = run(environment / "bin" / "python", "-I", "-c", PROGRAM, cwd=environment, env=variables).split()
    assert int(total) == 7 * 64
    assert Path(where).is_relative_to(environment)
    assert "0.1.0" in run(environment / "bin" / "tensor-pool", "--version", env=variables)
    module = next(environment.rglob("_native*.so"))
    linked = {line.split()[0].rsplit("/", 1)[-1] for line in run("ldd", module).splitlines() if line.strip()}
    assert {name for name in linked if not name.startswith("ld-linux")} <= SYSTEM_LIBRARIES


@pytest.mark.timeout(600)
def test_a_wheel_works_in_an_empty_environment(wheel: Path, empty: Path) -> None:
    run(UV, "pip", "install", "--quiet", "--python", empty / "bin" / "python", wheel)
    check_installed(empty)


@pytest.mark.timeout(600)
def test_pip_install_works_with_a_build_environment_of_its_own(empty: Path) -> None:
    # with the libclang of `make`, which is part of what cargo compares, its target directory serves
    variables = {**os.environ, "LIBCLANG_PATH": native_environment()["LIBCLANG_PATH"]}
    run(empty / "bin" / "python", "-m", "pip", "install", "--quiet", ROOT, env=variables)
    check_installed(empty)
