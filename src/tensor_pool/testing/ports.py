"""Ports of the loopback interface that nobody uses."""

from __future__ import annotations

import itertools
import os
import socket

# outside the range from which the kernel hands out ports to others; each process begins at a place of its own
_FIRST, _COUNT = 20_000, 12_000
_offsets = itertools.count(os.getpid() * 37)


def unused_udp_port() -> int:
    """A UDP port of 127.0.0.1 that was free a moment ago; this process never gives out the same one soon again."""
    for _ in range(_COUNT):
        port = _FIRST + next(_offsets) % _COUNT
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free UDP port between {_FIRST} and {_FIRST + _COUNT}")
