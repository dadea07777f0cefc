"""Rings for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.native.rings import Ring, ring


@pytest.fixture
def eight_slots() -> Iterator[Ring]:
    """Eight slots, one pool of 4096 bytes."""
    with ring() as made:
        yield made


@pytest.fixture
def two_pools() -> Iterator[Ring]:
    """Eight slots, pools of 4096 and 1024 bytes, in that order."""
    with ring(strides=(4096, 1024), first_pool_id=5) as made:
        yield made
