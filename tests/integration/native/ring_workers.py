"""What the tests of rings between processes run elsewhere: `module:function arguments...` of `tensor_pool.testing.child`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from tensor_pool._native import FrameReader, Region, RingWriter

STREAM_ID, EPOCH = 7001, 11
BEAT = 0  # word of the superblock in which the processes of a test tell each other how far they are


def say(words: object) -> None:
    sys.stdout.write(f"{json.dumps(words)}\n")
    sys.stdout.flush()


def open_ring(directory: str, *, writable: bool, stride: int, nslots: int) -> dict[str, Any]:
    names = ("header.ring", "1.pool")
    header, pool = (Region.open(f"{directory}/{name}", [directory], writable=writable, minimum_length=1) for name in names)
    return {"header": header, "pools": [(1, stride, pool)], "nslots": nslots}


def write_without_end() -> int:
    """Frames of one repeated word, as fast as they go, until the first word of the superblock says stop."""
    directory, stride, nslots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    described = open_ring(directory, writable=True, stride=stride, nslots=nslots)
    writer = RingWriter(**described, stream_id=STREAM_ID, epoch=EPOCH, publication=None)
    writer.set_waiters(False)
    frame = np.empty(stride // 8, np.uint64)
    shape = frame.shape
    while described["header"].load_u64(BEAT) == 0:
        frame.fill(writer.next_seq)
        writer.publish(frame, 7, 1, shape, timestamp_ns=1, meta_version=0, trace_id=0, publish_timestamp=False)
    say({"published": writer.next_seq})
    return 0


def write_on_demand() -> int:
    """Publish one frame for every step of the first word of the superblock; tell when in the second word; end at the highest value."""
    directory = sys.argv[1]
    described = open_ring(directory, writable=True, stride=4096, nslots=8)
    header = described["header"]
    writer = RingWriter(**described, stream_id=STREAM_ID, epoch=EPOCH, publication=None)
    while (wanted := header.load_u64(BEAT)) != 2**64 - 1:
        if writer.next_seq == wanted:
            time.sleep(0.0002)
            continue
        # long enough for the reader to be asleep
        time.sleep(0.002)
        header.store_u64(8, time.monotonic_ns())
        writer.publish(b"x", 1, 1, [1], timestamp_ns=1, meta_version=0, trace_id=0, publish_timestamp=False)
    return 0


def wait_without_end() -> int:
    """Wait for a frame that never comes, and say how the wait ended and what it cost."""
    directory, mapped = sys.argv[1], sys.argv[2] == "mapped"
    reader = FrameReader(None, stream_id=STREAM_ID)
    if mapped:
        reader.map(**open_ring(directory, writable=False, stride=4096, nslots=8), epoch=EPOCH, first_seq=0, max_outstanding_gap=4)
    say("waiting")
    started, cpu = time.monotonic(), time.process_time()
    try:
        reader.read(None)
    except KeyboardInterrupt:
        cost = (time.process_time() - cpu) / (time.monotonic() - started)
        say({"interrupted_ns": time.monotonic_ns(), "cpu_share": cost})
    return 0
