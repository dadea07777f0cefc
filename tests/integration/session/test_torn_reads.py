"""No reader accepts a frame that is not whole: driver, writer and readers, one of which lags, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import StackProcess

# with fewer late drops the reader did not lag, and the test shows nothing
LATE_DROPS_NEEDED = {"read": 0, "read_into": 0, "borrow": 1000}
FRAMES_NEEDED = 200
DEADLINE_S = 60.0


def test_readers_of_a_ring_that_is_overwritten_under_their_eyes_accept_whole_frames_only(stack: StackProcess) -> None:
    environment = {**stack.environment, "PYTHONPATH": str(Path(__file__).parent)}
    writer = stack.harness.python("writer", "torn_workers:write", json.dumps([stack.stack_file, 10_000]), environment=environment)
    writer.wait_for_message(event="attached")
    readers = {
        way: stack.harness.python(
            way, "torn_workers:read", json.dumps([stack.stack_file, 10_000, way, late, FRAMES_NEEDED]), environment=environment
        )
        for way, late in LATE_DROPS_NEEDED.items()
    }
    for way, reader in readers.items():
        seen = reader.wait_for_message(DEADLINE_S, event="read")
        assert seen["bad"] == 0, way
        assert seen["late"] >= LATE_DROPS_NEEDED[way], way
        assert seen["accepted"] == seen["delivered"] >= FRAMES_NEEDED, way
        assert sum(seen[name] for name in ("delivered", "skipped", "gap", "late", "invalid")) == seen["last_seq"] - seen["first_seq"] + 1
    writer.send("stop")
    assert writer.wait_for_message(event="written")["published"] > LATE_DROPS_NEEDED["borrow"]
