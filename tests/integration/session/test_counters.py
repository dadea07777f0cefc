"""Control messages that a session refuses are counted where its user can see them."""

from __future__ import annotations

import numpy as np

import tensor_pool as tp
from tensor_pool.sbe import driver

from .conftest import DEADLINE_S, until
from .forger import forging


def test_a_session_counts_what_it_refused_by_cause(stack_session: tp.Session) -> None:
    session = stack_session
    with session.producer(10_000, shape=8) as producer, session.consumer(10_000) as consumer, forging(session) as forger:
        before = session.counters
        assert (before["messages_malformed"], before["messages_dropped"]) == (0, 0)
        assert before["messages_received"] > 0
        announce = forger.true.encode()
        # cut short, of another version, and one that ends in the middle of its header
        another_version = announce[:6] + (99).to_bytes(2, "little") + announce[8:]
        for lie in (announce[:40], another_version):
            forger.send(lie)
        until(lambda: session.counters["messages_malformed"] == 2)
        for lie in (announce[:5], driver.ShmLeaseKeepalive(1, 10_000, 1, driver.Role.PRODUCER, 0).encode()):
            forger.send(lie)
        until(lambda: session.counters["messages_refused"] >= before["messages_refused"] + 2)
        assert session.counters["messages_malformed"] == 2
        producer.publish(np.zeros(8, np.uint8))
        assert consumer.read(DEADLINE_S) is not None
    session.close()
    assert session.counters["messages_malformed"] == 2
