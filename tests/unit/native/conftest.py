"""Directories and rings for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.native.rings import Ring, ring, shared_directory


@pytest.fixture(params=["shared memory", "disk"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An allowed base directory, once on tmpfs and once on a file system with other habits."""
    if request.param == "disk":
        yield tmp_path.resolve()
        return
    with shared_directory() as directory:
        yield directory


@pytest.fixture
def eight_slots() -> Iterator[Ring]:
    """Eight slots, one pool of 4096 bytes."""
    with ring() as made:
        yield made
