"""A lease that is lost and won back within an epoch costs frames, and every one of them is counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensor_pool as tp
from tensor_pool.client.admin import AdminClient, LeaseInfo
from tensor_pool.testing import ChildProcess

from .conftest import StackProcess, repeating, until
from .test_delivery import totals

TIMES = 3


def consumer_lease(admin: AdminClient) -> LeaseInfo | None:
    return next((lease for lease in admin.leases() if lease.role == "consumer"), None)


def revoke(tap: ChildProcess, admin: AdminClient, lease_id: int) -> None:
    admin.revoke(lease_id)


def pause(tap: ChildProcess, admin: AdminClient, lease_id: int) -> None:
    tap.stop()
    until(lambda: consumer_lease(admin) is None)
    tap.cont()


@pytest.mark.requirement("D-4.9-7")
@pytest.mark.parametrize("lose", [revoke, pause])
def test_a_reader_that_loses_its_lease_answers_for_every_frame_of_the_epoch(
    stack: StackProcess, session: tp.Session, lose: Callable[[ChildProcess, AdminClient, int], None]
) -> None:
    shape, dtype = (16, 24), "uint16"
    with session.producer(10_000, shape=shape, dtype=dtype, slots=64, name="camera-1") as producer:
        tap = stack.command("tap", "tap", "camera-1", "--json")
        tap.wait_for_message(event="attached")
        frame = np.zeros(shape, dtype)
        # at a kilohertz
        with repeating(lambda: producer.publish(frame), 0.001), AdminClient(session.stack.admin_socket) as admin:
            for _ in range(TIMES):
                seen = producer.stats.last_seq + 100
                until(lambda seen=seen: producer.stats.last_seq > seen)
                lost = until(lambda: consumer_lease(admin)).lease_id
                lose(tap, admin, lost)
                until(lambda lost=lost: (now := consumer_lease(admin)) is not None and now.lease_id != lost)
            seen = producer.stats.last_seq + 100
            until(lambda: producer.stats.last_seq > seen)
        published = producer.stats.published
        assert tap.terminate() == 0
    summary = tap.wait_for_message(event="summary")
    answered, unseen = totals(summary)
    assert summary["reattached"] == TIMES
    assert (summary["earlier_epochs"], summary["first_seq"]) == ([], 0)
    assert answered + unseen == published
    assert summary["gap"] > 0
    assert summary["delivered"] > 0


def test_a_consumer_that_lost_its_lease_while_the_producer_changed_answers_for_the_new_epoch_from_its_first_frame(
    stack: StackProcess, session: tp.Session
) -> None:
    shape, dtype = (16, 24), "uint16"
    with session.producer(10_000, shape=shape, dtype=dtype, slots=64, name="camera-1") as first:
        tap = stack.command("tap", "tap", "camera-1", "--json")
        tap.wait_for_message(event="attached")
        first.publish(np.zeros(shape, dtype))
    with AdminClient(session.stack.admin_socket) as admin:
        until(lambda: consumer_lease(admin))
        tap.stop()
        until(lambda: consumer_lease(admin) is None)
        with session.producer(10_000, shape=shape, dtype=dtype, slots=64, name="camera-1") as second:
            for _ in range(10):
                second.publish(np.zeros(shape, dtype))
            tap.cont()
            until(lambda: consumer_lease(admin))
            until(lambda: second.publish(np.zeros(shape, dtype)) >= 0 and tap_has_read(tap))
            published = second.stats.published
            assert tap.terminate() == 0
    summary = tap.wait_for_message(event="summary")
    assert summary["first_seq"] == 0
    assert summary["last_seq"] + 1 + summary["unseen"] == published


def tap_has_read(tap: ChildProcess) -> bool:
    """Of the second epoch."""
    reports = [message for message in tap.messages() if message["event"] == "progress"]
    return bool(reports) and reports[-1]["reattached"] == 1 and reports[-1]["delivered"] > 0
