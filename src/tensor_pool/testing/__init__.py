"""A test kit for programs that use tensor_pool, and the one that tensor_pool itself is tested with.

    pytest_plugins = ["tensor_pool.testing.plugin"]         # in conftest.py: fixtures, the watchdog, the marker `requirement`

Isolated directories, a whole stack inside the test (`stack_session`) or in processes of its own (`ProcessHarness`), a clock that stands
still, failpoints, and a checker that judges what workload processes wrote down. The plugin itself loads no native code.
"""

from __future__ import annotations

from tensor_pool.testing.checker import Verdict, check_accounting, check_no_bad_frames
from tensor_pool.testing.clock import ManualClock
from tensor_pool.testing.directories import IsolatedDirectories, isolated_directories
from tensor_pool.testing.events import Event, EventLog, read_events
from tensor_pool.testing.frames import check_frame, checksum, stamp_frame, stamped_seq
from tensor_pool.testing.harness import ChildFailedError, ChildProcess, ProcessHarness
from tensor_pool.testing.ports import unused_udp_port
from tensor_pool.testing.watchdog import Watchdog

__all__ = [
    "ChildFailedError",
    "ChildProcess",
    "Event",
    "EventLog",
    "IsolatedDirectories",
    "ManualClock",
    "ProcessHarness",
    "Verdict",
    "Watchdog",
    "check_accounting",
    "check_frame",
    "check_no_bad_frames",
    "checksum",
    "isolated_directories",
    "read_events",
    "stamp_frame",
    "stamped_seq",
    "unused_udp_port",
]
