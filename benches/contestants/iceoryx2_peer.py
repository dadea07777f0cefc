"""iceoryx2: loaned samples, filled by one memmove, borrowed by the reader and looked at where they lie.

Of the ways its documentation shows from Python this is the fastest: `loan_uninit`, a memmove to `payload_ptr`, `assume_init().send()`
(`send_copy` and `write_payload` take longer), and on the other side `receive` and `payload_ptr`, without an object around the memory.
Safe overflow is on, as by default: its writer never waits. Event-driven it is a notifier and a listener beside the service.

Its writer is lent the memory that was given back last. A reader that keeps up sees two or three pieces of it, and the first time that it
lags both would pay for the pages of the others: in its first run the reader comes late, so that all of them go round once.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import iceoryx2

from benches.agreement import Access, Setup, shared_memory_prefix, warm_rate_hz
from benches.native import Source, Tally
from benches.payloads import address_source

LOOK_MS: Final = 20
# how often a polling reader that finds nothing looks at the clock
POLLS_A_LOOK: Final = 64
ALIGNMENT: Final = 64
# the reader's buffer is full by then, and the writer has gone on
LATE_LAPS: Final = 2
SERVICE: Final = "tensor_pool/bench"


class _Place:
    """The services that writer and reader share. Whoever comes first makes them."""

    def __init__(self, setup: Setup) -> None:
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        words = ctypes.c_uint64 * (setup.nbytes // 8)
        payload = type("Payload", (ctypes.Structure,), {"_fields_": [("words", words)]})
        # files of this run alone, so that nothing of it outlives it
        config = iceoryx2.config.default()
        config.global_cfg.root_path = iceoryx2.Path.new(setup.place)
        root, number = setup.place.rsplit("/", 1)
        config.global_cfg.prefix = iceoryx2.FileName.new(f"{shared_memory_prefix(root)}{number}-")
        disabled = iceoryx2.SignalHandlingMode.Disabled
        self.node = iceoryx2.NodeBuilder.new().config(config).signal_handling_mode(disabled).create(iceoryx2.ServiceType.Ipc)
        name = iceoryx2.ServiceName.new(SERVICE)
        self.frames = (
            self.node.service_builder(name)
            .publish_subscribe(payload)
            .payload_alignment(iceoryx2.Alignment.new(ALIGNMENT))
            .enable_safe_overflow(True)
            .subscriber_max_buffer_size(setup.slots)
            .subscriber_max_borrowed_samples(1)
            .history_size(0)
            .max_publishers(1)
            .max_subscribers(1)
            .open_or_create()
        )
        self.events = None
        if setup.waits:
            self.events = self.node.service_builder(name).event().open_or_create()


class Writer:
    """A publisher, with a notifier where the reader waits."""

    def __init__(self, setup: Setup) -> None:
        self._nbytes = setup.nbytes
        self._place = _Place(setup)
        self._publisher = self._place.frames.publisher_builder().max_loaned_samples(1).create()
        events = self._place.events
        self._notifier = None if events is None else events.notifier_builder().create()

    def make_source(self) -> Source:
        return address_source(self._nbytes)

    def write(self, source: Source) -> Mapping[str, Any]:
        following, loan, move, nbytes = source.next, self._publisher.loan_uninit, ctypes.memmove, self._nbytes
        notify = None if self._notifier is None else self._notifier.notify
        while (address := following()) is not None:
            sample = loan()
            move(sample.payload_ptr, address, nbytes)
            if sample.assume_init().send() == 0:
                source.drop_last()
            if notify is not None:
                notify()
        return {}

    def close(self) -> None:
        self._publisher.delete()


class Reader:
    """A subscriber, with a listener where it waits."""

    def __init__(self, setup: Setup) -> None:
        self._place = _Place(setup)
        self._subscriber = self._place.frames.subscriber_builder().buffer_size(setup.slots).create()
        events = self._place.events
        self._listener = None if events is None else events.listener_builder().create()
        self._late_s = LATE_LAPS * setup.slots / warm_rate_hz(setup.nbytes)

    def read(self, tally: Tally, access: Access) -> None:
        if access is not Access.BORROW:
            raise ValueError("iceoryx2 lends its samples; a copy of them is no way of its own")
        # what was left over from the run before is passed over. Not until there is nothing: the writer of this run may be at work already
        for _ in range(self._subscriber.buffer_size):
            if (sample := self._subscriber.receive()) is None:
                break
            sample.delete()
        time.sleep(self._late_s)
        self._late_s = 0.0
        if self._listener is None:
            self._poll(tally)
        else:
            self._wait(tally, self._listener.timed_wait)

    def _poll(self, tally: Tally) -> None:
        check_at, receive = tally.check_at, self._subscriber.receive
        goes_on = True
        polls = 0
        while goes_on:
            sample = receive()
            if sample is not None:
                goes_on = check_at(sample.payload_ptr)
                sample.delete()
                continue
            polls += 1
            if polls % POLLS_A_LOOK == 0:
                goes_on = not tally.is_over

    def _wait(self, tally: Tally, wait: Callable[[Any], Any]) -> None:
        check_at, receive = tally.check_at, self._subscriber.receive
        look = iceoryx2.Duration.from_millis(LOOK_MS)
        goes_on = True
        while goes_on:
            wait(look)
            while goes_on and (sample := receive()) is not None:
                goes_on = check_at(sample.payload_ptr)
                sample.delete()
            goes_on = goes_on and not tally.is_over

    def close(self) -> None:
        self._subscriber.delete()
