"""A producer in a process of its own, for `test_waiting`."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import tensor_pool as tp
from tensor_pool.testing.failpoints import failpoint

BETWEEN_S = 0.01


def publish() -> None:
    """Frames with the time at which their descriptor was sent; it is held up behind each commit."""
    stack_file, stream_id, frames, held_up_ns = json.loads(sys.argv[1])
    with tp.connect(stack_file) as session, session.producer(stream_id, shape=16, slots=64, publish_timestamps=True) as producer:
        sys.stdout.write('{"event": "attached"}\n')
        sys.stdout.flush()
        sys.stdin.readline()
        for _ in range(frames):
            with failpoint("write.after_committed", "delay", delay_ns=held_up_ns):
                producer.publish(np.zeros(16, np.uint8))
            time.sleep(BETWEEN_S)
        sys.stdin.readline()
