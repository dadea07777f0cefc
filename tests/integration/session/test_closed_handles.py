"""What a session gave out and closed is gone from the media driver too."""

from __future__ import annotations

import time

from tensor_pool.session import Session
from tensor_pool.transport import TransportClient


def test_handles_that_were_closed_leave_nothing_in_the_media_driver(stack_session: Session) -> None:
    session = stack_session
    with TransportClient(session.stack.aeron_dir, name="observer") as observer:

        def subscriptions_of(publisher_count: int) -> int:
            labels = [label for _, _, _, label in observer.native.counters() if label.startswith("sub-pos")]
            return len([label for label in labels if f" {session.stack.descriptor_stream_id} " in label]) - publisher_count

        for _ in range(5):
            with session.producer(10_000, shape=512, slots=8), session.consumer(10_000, wait=10.0):
                pass
        with session.producer(10_000, shape=512, slots=8), session.consumer(10_000, wait=10.0):
            deadline_s = time.monotonic() + 20
            while subscriptions_of(1) > 0:
                assert time.monotonic() < deadline_s, [entry for entry in observer.native.counters() if entry[3].startswith("sub-pos")]
                time.sleep(0.05)
