"""A driver to talk to in bytes: two configured streams, a profile for those made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tensor_pool.driver.config import DriverSettings, PolicySection, PoolSection, ProfileSection, StreamSection
from tensor_pool.testing.driver import InvokedDriver

SMALL = ProfileSection(header_nslots=4, payload_pools=(PoolSection(pool_id=1, stride_bytes=64), PoolSection(pool_id=7, stride_bytes=4096)))


def settings(**policies: Any) -> DriverSettings:
    return DriverSettings(
        policies=PolicySection(**{"default_profile": "small", **policies}),
        profiles={"small": SMALL},
        streams={"camera": StreamSection(stream_id=10, profile="small"), "other": StreamSection(stream_id=11, profile="small")},
    )


MakeDriver = Callable[..., InvokedDriver]


@pytest.fixture
def make_driver(tmp_path: Path) -> Iterator[MakeDriver]:
    """Drivers over one directory, one after the other or together; `policies` are keywords."""
    base_dir = tmp_path / "shm"
    base_dir.mkdir()
    with ExitStack() as opened:

        def make(*, region_factory: Any = None, clock: Any = None, **policies: Any) -> InvokedDriver:
            driver = InvokedDriver(base_dir, tmp_path / "state", settings(**policies), region_factory=region_factory, clock=clock)
            opened.callback(driver.close)
            return driver

        yield make


@pytest.fixture
def driver(make_driver: MakeDriver) -> InvokedDriver:
    return make_driver()
