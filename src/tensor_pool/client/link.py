"""The Aeron handles a session has for control traffic: what it sends, and the inboxes that the pump fills."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from tensor_pool import _native
from tensor_pool.runtime import StackDescription
from tensor_pool.sbe import control, driver
from tensor_pool.sbe.driver import ShmLeaseKeepalive
from tensor_pool.transport import TransportClient, exclusive_channel, subscription_channel

CONTROL_TERM_LENGTH = "1m"
QOS_TERM_LENGTH = "1m"
DESCRIPTOR_TERM_LENGTH = "16m"
# messages that a client reads; whatever else is on these streams is counted by the pump and never reaches Python
CONTROL_MESSAGES = (
    (control.SCHEMA_ID, control.ShmPoolAnnounce.TEMPLATE_ID),
    *(
        (driver.SCHEMA_ID, kind.TEMPLATE_ID)
        for kind in (driver.ShmAttachResponse, driver.ShmDetachResponse, driver.ShmDriverShutdown, driver.ShmLeaseRevoked)
    ),
)
KEEPALIVE_TIMESTAMP_OFFSET = 8 + 17


class Keepalive(Protocol):
    """A message that is sent again and again."""

    @property
    def last_sent_ns(self) -> int: ...

    def close(self) -> None: ...


class ControlLink:
    """Control and QoS traffic of one session."""

    def __init__(self, transport: TransportClient, stack: StackDescription, pump: _native.Pump) -> None:
        self._pump = pump
        self._subscriptions: dict[_native.FrameReader, _native.Subscription] = {}
        self._transport = transport
        # whether the last control message was refused because somebody who hears them is behind
        self.is_back_pressured = False
        self._stack = stack
        self._control = transport.publish(exclusive_channel(stack.control_channel, CONTROL_TERM_LENGTH), stack.control_stream_id)
        self._qos = transport.publish(exclusive_channel(stack.qos_channel, QOS_TERM_LENGTH), stack.qos_stream_id)
        endpoints = dict.fromkeys(((stack.control_channel, stack.control_stream_id), (stack.announce_channel, stack.announce_stream_id)))
        self._inboxes = [
            pump.add_inbox(transport.subscribe(subscription_channel(channel), stream_id), CONTROL_MESSAGES)
            for channel, stream_id in endpoints
        ]

    def drain(self) -> list[tuple[bytes, int]]:
        """(message, join time of its image), in the order of arrival for each stream."""
        return [message for inbox in self._inboxes for message in inbox.drain()]

    def counters(self) -> dict[str, int]:
        """What the pump counted of both streams: `messages_received`, `messages_refused` (of a kind that no client reads, or too short),
        `messages_dropped` (nobody took them in time).
        """
        counted: Counter[str] = Counter()
        for inbox in self._inboxes:
            counted.update(inbox.counters())
        return dict(counted)

    def hear_hellos(self) -> None:
        """Keep the Hellos of consumers too. Fifty consumers send fifty a second, which concern producers alone."""
        for inbox in self._inboxes:
            inbox.accept(control.SCHEMA_ID, control.ConsumerHello.TEMPLATE_ID)

    def send_control(self, message: bytes) -> bool:
        """Whether Aeron took it. A refused control message is sent again by whoever's timer asked for it."""
        position = self._control.offer(message)
        self.is_back_pressured = position == _native.BACK_PRESSURED
        return position > 0

    def send_qos(self, message: bytes) -> bool:
        return self._qos.offer(message) > 0

    def keep_alive(self, message: ShmLeaseKeepalive, interval_ns: int) -> Keepalive:
        return self._pump.add_keepalive(
            self._control, message.encode(), timestamp_offset=KEEPALIVE_TIMESTAMP_OFFSET, interval_ns=interval_ns
        )

    def open_reader(self, stream_id: int) -> _native.FrameReader:
        """A reader of the shared descriptor stream, drained by the pump while nobody reads."""
        subscription = self._transport.subscribe(subscription_channel(self._stack.descriptor_channel), self._stack.descriptor_stream_id)
        reader = _native.FrameReader(subscription, stream_id=stream_id)
        self._subscriptions[reader] = subscription
        self._pump.add_reader(reader)
        return reader

    def close_reader(self, reader: _native.FrameReader) -> None:
        self._pump.remove_reader(reader)
        reader.close()
        # a publication that has ended lives on in the media driver until every subscription has read it to its end
        self._subscriptions.pop(reader).close()

    def open_sleeping_counter(self, stream_id: int, consumer_id: int) -> _native.Counter:
        """By it the producer sees whether this consumer sleeps."""
        return _native.sleeping_counter(self._transport.native, stream_id, consumer_id)

    def open_waiters(self, stream_id: int) -> _native.Waiters:
        return _native.Waiters(self._transport.native, stream_id)

    def open_descriptor_publication(self) -> _native.Publication:
        channel = exclusive_channel(self._stack.descriptor_channel, DESCRIPTOR_TERM_LENGTH)
        return self._transport.publish(channel, self._stack.descriptor_stream_id)

    def wait(self, timeout_ns: int) -> bool:
        """Wait for a message. True when there may be one."""
        return self._pump.wait(timeout_ns)

    def wake(self) -> None:
        self._pump.wake()

    def log_errors(self) -> None:
        """What Aeron complained of since the last call goes into the log."""
        self._transport.log_errors()

    def close(self) -> None:
        for inbox in self._inboxes:
            inbox.close()
        self._pump.close()
