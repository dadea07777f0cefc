"""A writer flat out and its readers, each in a process of its own, for `test_torn_reads`."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict

import numpy as np

import tensor_pool as tp
from tensor_pool.testing import check_frame, stamp_frame

SLOTS = 8
FRAME_BYTES = 16 << 10
LONGEST_WAIT_S = 0.1


def say(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def write() -> None:
    """Frames in which every word follows from the seq, until a line comes."""
    stack_file, stream_id = json.loads(sys.argv[1])
    stop = threading.Event()
    with tp.connect(stack_file) as session, session.producer(stream_id, shape=FRAME_BYTES, slots=SLOTS) as producer:
        say("attached")
        threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
        frame = np.empty(FRAME_BYTES, np.uint8)
        seq = 0
        while not stop.is_set():
            stamp_frame(frame, seq)
            assert producer.publish(frame) == seq
            seq += 1
        say("written", published=seq)


def read() -> None:
    """Checks every word of every frame that it accepts. `borrow` lags: it takes a frame when its slot is the next to be written."""
    stack_file, stream_id, way, late_needed, accepted_needed = json.loads(sys.argv[1])
    out = np.empty(FRAME_BYTES, np.uint8)
    accepted = bad = 0
    with tp.connect(stack_file) as session, session.consumer(stream_id, wait=20.0) as consumer:
        say("attached")
        while consumer.stats.late < late_needed or accepted < accepted_needed:
            if way == "borrow":
                seen = borrowed(consumer, out)
            else:
                frame = consumer.read_into(out, LONGEST_WAIT_S) if way == "read_into" else consumer.read(LONGEST_WAIT_S)
                seen = None if frame is None else (frame.seq, frame.array)
            if seen is not None:
                accepted += 1
                bad += not check_frame(seen[1], seen[0])
        say("read", accepted=accepted, bad=bad, **asdict(consumer.stats))


def borrowed(consumer: tp.Consumer, out: np.ndarray) -> tuple[int, np.ndarray] | None:
    try:
        with consumer.borrow(LONGEST_WAIT_S) as view:
            deadline_s = time.monotonic() + LONGEST_WAIT_S
            while consumer.counters["newest_committed"] < view.seq + SLOTS - 1 and time.monotonic() < deadline_s:
                pass
            np.copyto(out, view.array)
    except (TimeoutError, tp.FrameOverwrittenError):
        return None
    return view.seq, out
