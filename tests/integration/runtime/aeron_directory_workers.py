"""What the tests of this directory run in another process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tensor_pool.stack import AeronDirectory, remove_abandoned_aeron_directories


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def hold() -> None:
    """`parent`: hold a directory below it until the input ends."""
    directory = AeronDirectory(Path(sys.argv[1]))
    _say(holder=str(Path(directory.path).parent))
    sys.stdin.read()
    directory.close()


def collect() -> None:
    """`parent`: remove what is abandoned below it."""
    _say(removed=remove_abandoned_aeron_directories(Path(sys.argv[1])))
