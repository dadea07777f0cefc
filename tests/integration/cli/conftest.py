"""What commands that talk to a stack are run with."""

from __future__ import annotations

import pytest

from tensor_pool.testing import IsolatedDirectories


@pytest.fixture
def environment(isolated: IsolatedDirectories) -> dict[str, str]:
    """Directories that no other test shares, and timers that do not keep a test waiting."""
    return {
        **isolated.environment(),
        "TENSOR_POOL_SHM__BASE_DIR": str(isolated.shm_base_dir),
        "TENSOR_POOL_POLICIES__ANNOUNCE_PERIOD_MS": "100",
        "TENSOR_POOL_POLICIES__LEASE_KEEPALIVE_INTERVAL_MS": "100",
    }
