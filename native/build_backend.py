"""Build backend: maturin, told where the tools of the wheels are.

The Aeron crates compile C with cmake (newer than Debian 12 has) and read headers with libclang. Both come from PyPI, and
neither is found by itself: bindgen wants LIBCLANG_PATH and the compiler's own include directory. The media driver links
libuuid and libbsd when pkg-config and CMake find them; a wheel must not depend on what the build machine happened to have,
so pkg-config is shown an empty world and CMake is told that neither is there.

`python native/build_backend.py --print-env` prints the same settings for a shell (the Makefile uses it).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def native_environment() -> dict[str, str]:
    """Environment variables that the native build needs."""
    clang = importlib.util.find_spec("clang")
    if clang is None or not clang.submodule_search_locations:
        raise SystemExit("error: the libclang wheel is missing\n\nhint: python -m pip install libclang")
    libclang = Path(next(iter(clang.submodule_search_locations))) / "native"
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise SystemExit("error: no C compiler found\n\nhint: apt-get install gcc libc6-dev (or set CC)")
    if shutil.which("cargo") is None:
        raise SystemExit("error: no Rust toolchain found\n\nhint: install rustup and a stable toolchain (1.88 or newer)")
    include = subprocess.run([compiler, "-print-file-name=include"], check=True, capture_output=True, text=True).stdout.strip()
    return {
        # one that is given stays: what was built with it need not be built again
        "LIBCLANG_PATH": os.environ.get("LIBCLANG_PATH") or str(libclang),
        "BINDGEN_EXTRA_CLANG_ARGS": f"-I{include}",
        "PKG_CONFIG_LIBDIR": "/nonexistent",
        "PKG_CONFIG_PATH": "/nonexistent",
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_TOOLCHAIN_FILE": str(Path(__file__).resolve().parent / "binding" / "aeron.cmake"),
        "PATH": _search_path(libclang),
    }


def _search_path(libclang: Path) -> str:
    """PATH with the scripts of the wheels first. pip runs the user's own interpreter with a build environment laid over it, and puts that
    environment's scripts first itself: those of the interpreter, perhaps an older cmake, must not come before them.
    """
    path = os.environ.get("PATH", "")
    packages = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    if not packages & set(libclang.resolve().parents):
        return path
    return os.pathsep.join([sysconfig.get_path("scripts"), path])


def _prepared() -> Any:
    os.environ.update(native_environment())
    import maturin

    return maturin


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    return []


def get_requires_for_build_editable(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    return []


def get_requires_for_build_sdist(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    return str(_prepared().prepare_metadata_for_build_wheel(directory, config_settings))


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(directory: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None) -> str:
    return str(_prepared().build_wheel(directory, config_settings, metadata_directory))


def build_editable(directory: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None) -> str:
    return str(_prepared().build_editable(directory, config_settings, metadata_directory))


def build_sdist(directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    return str(_prepared().build_sdist(directory, config_settings))


if __name__ == "__main__":
    for name, value in native_environment().items():
        sys.stdout.write(f"export {name}='{value}'\n")
