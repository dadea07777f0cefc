"""The native parts of the bench: built by cargo where sources are newer, loaded from its target directory."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

ROOT: Final = Path(__file__).resolve().parent.parent
_NATIVE: Final = ROOT / "native"
BARE_LOOP: Final = _NATIVE / "target" / "release" / "bare_loop"
_MODULE: Final = _NATIVE / "target" / "release" / "lib_bench.so"
ALLOCATIONS: Final = _NATIVE / "target" / "release" / "lib_allocations.so"


class Source(Protocol):
    """The frames of a writer."""

    def start(self, begin_ns: int, end_ns: int, rate_hz: int) -> None: ...
    def lead(self) -> Any:
        """The next payload of those that do not count yet; None when the run begins to count."""

    def next(self) -> Any:
        """The next payload, stamped and at its time; None when the run is over."""

    def drop_last(self) -> None:
        """The transport did not take the last frame."""

    def counts(self) -> tuple[int, int]:
        """(offered, dropped) while the run counted."""


class Tally(Protocol):
    """The check of a reader: every word of every frame is added up and compared."""

    @property
    def is_over(self) -> bool: ...
    def start(self, begin_ns: int, end_ns: int) -> None: ...
    def check(self, frame: Any) -> bool:
        """Add up a frame that is a buffer. False when the run is over."""

    def check_at(self, address: int) -> bool:
        """The same for a frame that is an address."""

    def retract(self) -> None:
        """The last frame was overwritten while it was looked at: it does not count."""

    def finish(self) -> dict[str, int]: ...


class BareWriter(Protocol):
    """The bare loop's writer, one call a frame."""

    def write(self, address: int) -> None: ...


class BareReader(Protocol):
    """The bare loop's reader, one call a frame. Frames are addresses."""

    def skip_old(self) -> None: ...
    def borrow(self) -> int | None: ...
    def is_still(self) -> bool:
        """Whether the frame that was borrowed last was not overwritten so far."""

    def read(self) -> int | None:
        """Where the copy of the next frame is: always at the same place."""


class CoreRing(Protocol):
    """Both ends of a ring in this thread. `..._ns` does its work `frames` times and gives the nanoseconds of all of them."""

    def limit(self, seconds: float) -> tuple[float, float]:
        """Bytes a second copied into the slots, and added up out of them."""

    def forget(self) -> None:
        """Drive everything out of the caches."""

    def copy_in_ns(self, address: int, frames: int) -> int: ...
    def write_ns(self, address: int, frames: int) -> int: ...
    def copy_out_ns(self, frames: int) -> int: ...
    def borrow_ns(self, frames: int) -> int: ...
    def read_ns(self, frames: int) -> int: ...


class _Bench(Protocol):
    PATTERNS: int
    SHIFT_BYTES: int

    def Source(self, payloads: Sequence[Any], handed: Sequence[Any], nbytes: int) -> Source: ...  # noqa: N802
    def Tally(self, nbytes: int) -> Tally: ...  # noqa: N802
    def CoreRing(self, directory: str, nbytes: int, slots: int, pool: str | None = None) -> CoreRing:  # noqa: N802
        """A ring of its own, but where `pool` is another ring's: then its frames lie where that one's do."""

    def BareWriter(self, directory: str, nbytes: int, slots: int) -> BareWriter: ...  # noqa: N802
    def BareReader(self, directory: str, nbytes: int, slots: int) -> BareReader: ...  # noqa: N802
    def copy_ns(self, into: Any, source: Any) -> int:
        """How long the memcpy of a buffer takes."""

    def call_ns(self, callable: Callable[[Any], object], argument: Any) -> int:
        """How long a call takes, by the same two looks at the clock."""


def build() -> None:
    """Bring module and bare loop up to date. A moment when they are; cargo's words when they do not build."""
    command = ["cargo", "build", "--release", "--quiet", "--package", "tensor-pool-bench", "--package", "tensor-pool-bench-allocations"]
    # the module is loaded by the interpreter that runs this, whatever PATH says
    environment = {**os.environ, "PYO3_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=_NATIVE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the native part of the bench did not build:\n{done.stderr}")


@cache
def module() -> _Bench:
    """The native module. `build()` made it."""
    loader = importlib.machinery.ExtensionFileLoader("_bench", str(_MODULE))
    spec = importlib.util.spec_from_file_location("_bench", _MODULE, loader=loader)
    if spec is None:
        raise ImportError(f"{_MODULE} is no module")
    loaded: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(loaded)
    bench: _Bench = loaded
    return bench
