"""The Aeron handles of a driver: the requests that the pump keeps, and the two ways out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from tensor_pool import _native
from tensor_pool.clock import Clock
from tensor_pool.driver.config import DriverSection
from tensor_pool.driver.handlers import ACCEPTED_MESSAGES
from tensor_pool.sbe import control, driver
from tensor_pool.transport import TransportClient, exclusive_channel, subscription_channel

TERM_LENGTH: Final = "1m"
SETTLE_NS: Final = 50_000_000
INBOX_CAPACITY: Final = 32_768
# what only a driver sends: whoever hears one of these on its own endpoint is not alone there (decision E97)
DRIVER_MESSAGES: Final = (
    (control.SCHEMA_ID, control.ShmPoolAnnounce.TEMPLATE_ID),
    (driver.SCHEMA_ID, driver.ShmAttachResponse.TEMPLATE_ID),
    (driver.SCHEMA_ID, driver.ShmDetachResponse.TEMPLATE_ID),
    (driver.SCHEMA_ID, driver.ShmLeaseRevoked.TEMPLATE_ID),
)


class DriverLink(Protocol):
    """What an agent needs of the transport."""

    def drain(self, limit: int) -> list[bytes]:
        """Requests, oldest first. Fewer than `limit` means that no more were there."""

    def send_control(self, message: bytes) -> bool: ...

    def send_announce(self, message: bytes) -> bool: ...

    def wait(self, timeout_ns: int) -> bool: ...

    def wake(self) -> None: ...

    def counters(self) -> dict[str, int]: ...

    def close(self) -> None: ...


class AeronDriverLink:
    """A `DriverLink` over Aeron."""

    def __init__(self, transport: TransportClient, section: DriverSection, clock: Clock) -> None:
        self._transport = transport
        self._section = section
        self._clock = clock
        self._control = transport.publish(exclusive_channel(section.control_channel, TERM_LENGTH), section.control_stream_id)
        self._announce = self._control
        if (section.announce_channel, section.announce_stream_id) != (section.control_channel, section.control_stream_id):
            self._announce = transport.publish(exclusive_channel(section.announce_channel, TERM_LENGTH), section.announce_stream_id)
        self._pump = _native.Pump()
        subscription = transport.subscribe(subscription_channel(section.control_channel), section.control_stream_id)
        self._inbox = self._pump.add_inbox(subscription, ACCEPTED_MESSAGES, capacity=INBOX_CAPACITY)

    def drain(self, limit: int) -> list[bytes]:
        return [message for message, _ in self._inbox.drain(limit)]

    def send_control(self, message: bytes) -> bool:
        return self._control.offer(message) > 0

    def send_announce(self, message: bytes) -> bool:
        return self._announce.offer(message) > 0

    def wait(self, timeout_ns: int) -> bool:
        return self._pump.wait(timeout_ns)

    def wake(self) -> None:
        self._pump.wake()

    def another_driver_answers(self, listen_ns: int) -> bool:
        """Listen on our endpoints, before a word was said there, for another driver's. Waits for `listen_ns` at most."""
        section = self._section
        endpoints = dict.fromkeys(
            ((section.control_channel, section.control_stream_id), (section.announce_channel, section.announce_stream_id))
        )
        pump = _native.Pump()
        try:
            inboxes = [
                pump.add_inbox(self._transport.subscribe(subscription_channel(channel), stream_id), DRIVER_MESSAGES)
                for channel, stream_id in endpoints
            ]
            # a driver that was killed a moment ago left its last words in the log, and they come at once
            self._listen(pump, (), SETTLE_NS)
            for inbox in inboxes:
                inbox.drain(INBOX_CAPACITY)
            heard = self._listen(pump, inboxes, listen_ns)
            for inbox in inboxes:
                inbox.close()
            return heard
        finally:
            pump.close()

    def _listen(self, pump: _native.Pump, inboxes: Sequence[_native.Inbox], duration_ns: int) -> bool:
        """Whether a message came to one of them within that time."""
        deadline_ns = self._clock.monotonic_ns() + duration_ns
        while (left_ns := deadline_ns - self._clock.monotonic_ns()) > 0:
            pump.wait(left_ns)
            if any(inbox.drain(1) for inbox in inboxes):
                return True
        return False

    def counters(self) -> dict[str, int]:
        """What the pump dropped before this driver saw it: `messages_received`, `messages_refused`, `messages_dropped`."""
        return self._inbox.counters()

    def close(self) -> None:
        self._inbox.close()
        self._pump.close()
        self._control.close()
        if self._announce is not self._control:
            self._announce.close()
