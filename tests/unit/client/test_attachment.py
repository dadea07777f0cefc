"""An attachment: who gave up asks no more, who did not goes on."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tensor_pool.client.attachment import Attachment
from tensor_pool.client.services import ClientServices
from tensor_pool.errors import AttachTimeoutError, BackPressuredError
from tensor_pool.sbe.driver import ResponseCode, Role
from tests.unit.client.fakes import NOW, SECOND, FakeLink, refusal, success


class Holder:
    """An attachment that asks for the producer's lease."""

    def __init__(self, *, gives_up: bool) -> None:
        self.link = FakeLink()
        # whoever waits here waits in vain
        conductor = SimpleNamespace(wait_until=lambda done, limit_ns: done())
        services: Any = SimpleNamespace(link=self.link, conductor=conductor, random=Random(1), keepalive_interval_ns=SECOND)
        self.attachment = Attachment(
            cast("ClientServices", services), 10000, Role.PRODUCER, lambda *_: None, lambda _: None, gives_up_on_refusal=gives_up
        )

    @property
    def asked(self) -> int:
        return len(self.link.attach_requests)

    def refuse(self, now_ns: int) -> None:
        self.attachment.on_message(refusal(self.link.attach_requests[-1], ResponseCode.REJECTED, "another producer is attached"), now_ns)

    def refuse_for_good(self) -> None:
        """The first refusal may be about the client id alone, and is answered with another one."""
        self.attachment.on_tick(NOW)
        self.refuse(NOW)
        self.refuse(NOW)


@pytest.mark.parametrize("gives_up", [False, True])
def test_the_announce_behind_a_refusal_does_not_ask_for_a_lease_that_nobody_waits_for(gives_up: bool) -> None:
    holder = Holder(gives_up=gives_up)
    holder.refuse_for_good()
    assert (holder.asked, holder.attachment.has_given_up) == (2, gives_up)
    # both in one pass of the conductor: the refusal, and the news that the lease of the other one has ended
    holder.attachment.on_driver_seen(NOW)
    assert holder.asked == (2 if gives_up else 3)
    holder.attachment.on_tick(NOW + SECOND)
    assert holder.asked == (2 if gives_up else 4)


def test_a_request_that_could_not_be_sent_in_time_says_so_and_not_that_no_driver_answered() -> None:
    holder = Holder(gives_up=False)
    holder.link.is_back_pressured = True
    holder.attachment.on_tick(NOW)
    with pytest.raises(BackPressuredError, match="10000 could not be sent"):
        holder.attachment.wait(SECOND, ready=lambda: False)
    # sent at last: from now on it is the driver's turn
    holder.link.is_back_pressured = False
    holder.attachment.on_tick(NOW + SECOND)
    with pytest.raises(AttachTimeoutError, match="no driver answered"):
        holder.attachment.wait(SECOND, ready=lambda: False)


def test_who_was_attached_once_asks_again_after_any_refusal() -> None:
    holder = Holder(gives_up=True)
    holder.attachment.on_tick(NOW)
    holder.attachment.on_message(success(holder.link.attach_requests[-1]), NOW)
    assert holder.attachment.is_held
    holder.attachment.on_lost(NOW, "the driver is gone")
    holder.attachment.on_tick(NOW + SECOND)
    holder.refuse(NOW + SECOND)
    holder.refuse(NOW + SECOND)
    asked = holder.asked
    assert not holder.attachment.has_given_up
    holder.attachment.on_driver_seen(NOW + 2 * SECOND)
    assert holder.asked == asked + 1
