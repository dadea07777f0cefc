"""A killed media driver ends the SHM driver in words, with its files removed (promise P4, P8)."""

from __future__ import annotations

import json

from tensor_pool.client.admin import AdminClient
from tensor_pool.testing import IsolatedDirectories, ProcessHarness


def test_a_killed_media_driver_ends_the_driver_in_words_and_leaves_no_file(harness: ProcessHarness, isolated: IsolatedDirectories) -> None:
    media = harness.python("media", "tensor_pool.cli.main:main", "media-driver", "--aeron-dir", isolated.aeron_dir, "--json")
    media.wait_for_text(str(isolated.aeron_dir))
    document = {
        "aeron_dir": str(isolated.aeron_dir),
        "directory": str(isolated.runtime_dir),
        "base_dir": str(isolated.shm_base_dir),
        "overrides": {"policies.shutdown_timeout_ms": 100},
        "driver_timeout_ms": 1000,
    }
    driver = harness.python("driver", "tensor_pool.testing.driver_process:run_driver", json.dumps(document))
    socket_path = driver.wait_for_message(event="ready")["admin_socket"]
    with AdminClient(socket_path) as admin:
        admin.provision(stream_id=10, slots=2, stride_bytes=64)
    media.kill()
    assert "media driver" in driver.wait_for_message(event="closed")["error"]
    driver.expect_exit(1)
    assert [path for path in isolated.shm_base_dir.rglob("*") if path.is_file() and path.name != ".lock"] == []
