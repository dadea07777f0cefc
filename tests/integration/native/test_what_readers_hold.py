"""What a closed reader holds on to: nothing, whoever keeps its frames."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import numpy as np
import psutil

import tensor_pool as tp
from tests.unit.native.rings import EPOCH, publish, ring

FRAME_BYTES = 4 << 20
KEPT = 12


def resident_bytes() -> int:
    gc.collect()
    # what the allocator keeps for later is nobody's
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def eventfds() -> int:
    return sum(str(entry.readlink()) == "anon_inode:[eventfd]" for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())


def test_the_buffers_of_a_closed_reader_are_given_back() -> None:
    with ring(nslots=4, strides=(FRAME_BYTES,)) as made:
        writer, reader = made.writer(), made.reader()

        def read_and_keep() -> list[object]:
            kept: list[object] = []
            for _ in range(KEPT):
                reader.inject(EPOCH, publish(writer, bytes(FRAME_BYTES)))
                frame = reader.read(0)
                assert frame is not None
                kept.append(frame)
            return kept

        kept = read_and_keep()
        held = resident_bytes()
        # one comes back before the reader is closed, the others after it
        del kept[0]
        reader.close()
        after_close = resident_bytes()
        kept.clear()
        gone = resident_bytes()
        assert held - after_close > FRAME_BYTES // 2
        assert held - gone > (KEPT - 1) * FRAME_BYTES


def test_frames_that_are_kept_do_not_keep_the_descriptor_of_their_consumer(stack_session: tp.Session) -> None:
    with stack_session.producer(10_000, shape=16, slots=8) as producer, stack_session.consumer(10_000, wait=10.0) as warm:
        warm.fileno()
        before = eventfds()
        kept = []
        for _ in range(3):
            with stack_session.consumer(10_000, wait=10.0) as consumer:
                consumer.fileno()
                producer.publish(np.zeros(16, np.uint8))
                kept.append(consumer.read(10.0))
            del consumer
        # the session remembers the last one until it gives out another
        with stack_session.consumer(10_000, wait=10.0):
            gc.collect()
            assert eventfds() == before
        assert all(frame is not None for frame in kept)
