"""A real media driver in the test process, SHM drivers and clients in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensor_pool.testing import ChildProcess, IsolatedDirectories, ProcessHarness
from tensor_pool.testing.driver_process import ControlEndpoint
from tensor_pool.transport import EmbeddedMediaDriver, TransportClient

POLICIES = {"policies.announce_period_ms": 100, "policies.lease_keepalive_interval_ms": 100}
CONFIGURATION = """
[profiles.small]
header_nslots = 8
payload_pools = [{ pool_id = 1, stride_bytes = 4096 }]

[streams.camera]
stream_id = 10
profile = "small"
"""


class DriverWorld:
    """Starts drivers and clients over one media driver, and talks to them."""

    def __init__(self, harness: ProcessHarness, isolated: IsolatedDirectories, aeron_dir: str, endpoint: ControlEndpoint) -> None:
        self.harness = harness
        self.isolated = isolated
        self.aeron_dir = aeron_dir
        self.endpoint = endpoint
        self.configuration = isolated.root / "stack.toml"
        self.configuration.write_text(CONFIGURATION)

    @property
    def admin_socket(self) -> Path:
        return self.isolated.runtime_dir / "admin.sock"

    def start_driver(self, name: str = "driver", *, base_dir: Path | None = None, wait: bool = True, **more: Any) -> ChildProcess:
        """`overrides` and `failpoints` are keywords."""
        failpoints = more.pop("failpoints", ())
        document = {
            "aeron_dir": self.aeron_dir,
            "directory": str(more.pop("directory", self.isolated.runtime_dir)),
            "base_dir": str(base_dir or self.isolated.shm_base_dir),
            "config": str(self.configuration),
            "overrides": {**POLICIES, **more.pop("overrides", {})},
            **more,
        }
        child = self.harness.python(name, "tensor_pool.testing.driver_process:run_driver", json.dumps(document), failpoints=failpoints)
        if wait:
            child.wait_for_message(event="ready")
        return child

    def start_client(self, client_id: int, role: str, *, stream_id: int = 10) -> tuple[ChildProcess, dict[str, Any]]:
        target = "tensor_pool.testing.driver_process:hold_lease"
        child = self.harness.python(f"{role}-{client_id}", target, self.aeron_dir, stream_id, client_id, role, 100)
        return child, child.wait_for_message(event="attached")


@pytest.fixture
def world(harness: ProcessHarness, isolated: IsolatedDirectories) -> Iterator[DriverWorld]:
    with EmbeddedMediaDriver(isolated.aeron_dir) as media, TransportClient(media.directory, name="test") as transport:
        yield DriverWorld(harness, isolated, media.directory, ControlEndpoint(transport))
