"""Producers and consumers that write down what they do, for the checker of `tensor_pool.testing`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

import tensor_pool as tp
from faultlib.orders import Orders, say, settings
from tensor_pool.client.consumer import Consumer
from tensor_pool.client.producer import Producer
from tensor_pool.consumer.stats import ConsumerStats
from tensor_pool.errors import FrameOverwrittenError
from tensor_pool.session import Session
from tensor_pool.testing import EventLog, checksum, stamp_frame
from tensor_pool.testing.events import ACCEPT, ATTEMPT, PUBLISH, TOTALS, WITHDRAW

ATTACH_LIMIT_S = 20.0
WORD = 1 << 40


def publish_logged(producer: Producer, log: EventLog, nbytes: int, *, in_place: bool) -> int:
    """One stamped frame: the attempt is written down before, the publish after."""
    epoch = producer.epoch or 0
    seq = producer.stats.last_seq + 1
    frame = np.empty(nbytes, dtype=np.uint8)
    stamp_frame(frame, epoch * WORD + seq)
    crc = checksum(frame)
    log.write(ATTEMPT, epoch, seq, crc)
    if in_place:
        with producer.claim() as slot:
            slot.array[:] = frame
    else:
        producer.publish(frame)
    log.write(PUBLISH, epoch, seq, crc)
    return seq


def producer_process() -> None:
    """Connects; on the order `attach` becomes the producer, on `publish` publishes at a pace until it is told to stop (or is killed)."""
    options = settings()
    orders = Orders()
    with tp.connect() as session, EventLog(options["log"]) as log:
        say("connected")
        orders.wait_for("attach")
        with session.producer(options["stream_id"], shape=options["nbytes"], slots=options["slots"], wait=ATTACH_LIMIT_S) as producer:
            say("attached", epoch=producer.epoch, time_ns=time.monotonic_ns())
            orders.wait_for("publish")
            number = 0
            while not orders.stop.wait(options["pause_s"]):
                publish_logged(producer, log, options["nbytes"], in_place=number % 2 == 1)
                number += 1
            say("stopped", epoch=producer.epoch, published=number)


def consumer_process() -> None:
    """Reads until it is told to stop; writes down every accepted frame and when each epoch was mapped."""
    options = settings()
    orders = Orders()
    with (
        tp.connect() as session,
        EventLog(options["log"]) as log,
        session.consumer(options["stream_id"], wait=ATTACH_LIMIT_S) as consumer,
    ):
        say("attached")
        epoch: int | None = None
        totals = Totals(consumer, log)
        while not orders.stop.is_set():
            if consumer.stats.epoch != epoch:
                epoch = consumer.stats.epoch
                say("mapped", epoch=epoch, time_ns=time.monotonic_ns())
                totals.write_ended()
            frame = consumer.read(0.01)
            if frame is not None:
                log.write(ACCEPT, frame.epoch, frame.seq, checksum(frame.payload))
        totals.write_all()
        say("stopped")


class Totals:
    """Writes down the consumer's own counts, one line an epoch. A consumer remembers the last 64, so ask in time."""

    def __init__(self, consumer: Consumer, log: EventLog) -> None:
        self._consumer = consumer
        self._log = log
        self._last: ConsumerStats | None = None

    def write_ended(self) -> None:
        """Those of epochs that ended since the last call."""
        earlier = self._consumer.earlier_stats
        begin = next((number + 1 for number, stats in enumerate(earlier) if stats is self._last), 0)
        for stats in earlier[begin:]:
            self._write(stats)
        self._last = earlier[-1] if earlier else None

    def write_all(self) -> None:
        """Those, and what is counted now."""
        self.write_ended()
        self._write(self._consumer.stats)

    def _write(self, stats: ConsumerStats) -> None:
        # also of an epoch of which nothing was seen: that all of it is unseen has to be said too
        if stats.epoch is not None:
            self._log.write(TOTALS, stats.epoch, -1, None, **counts(stats))


def counts(stats: ConsumerStats) -> dict[str, Any]:
    fields = asdict(stats)
    del fields["epoch"], fields["reattached"]
    return fields


class RandomReader:
    """Reads in every way the API has, with pauses, and writes down what was handed out."""

    def __init__(self, consumer: Consumer, log: EventLog, nbytes: int, choice: random.Random) -> None:
        self._consumer = consumer
        self._log = log
        self._own = np.empty(nbytes, dtype=np.uint8)
        self._choice = choice
        self._ways: tuple[Callable[[float], bool], ...] = (self._read, self._read, self._latest, self._read_into, self._borrow)

    def step(self, timeout_s: float) -> bool:
        """One read in a random way. Whether a frame (or its loss) was seen."""
        return self._choice.choice(self._ways)(timeout_s)

    def pause(self) -> None:
        """Mostly none, sometimes long enough for many laps of the ring."""
        kind = self._choice.random()
        if kind > 0.995:
            time.sleep(self._choice.uniform(0.02, 0.12))
        elif kind > 0.95:
            time.sleep(self._choice.uniform(0.0002, 0.005))

    def drain(self) -> None:
        """Read on until nothing comes any more."""
        while self._read(0.15):
            pass

    def _accept(self, epoch: int, seq: int, payload: Any) -> None:
        self._log.write(ACCEPT, epoch, seq, checksum(payload))

    def _read(self, timeout_s: float) -> bool:
        frame = self._consumer.read(timeout_s)
        if frame is not None:
            self._accept(frame.epoch, frame.seq, frame.payload)
        return frame is not None

    def _latest(self, timeout_s: float) -> bool:
        frame = self._consumer.latest(timeout_s)
        if frame is not None:
            self._accept(frame.epoch, frame.seq, frame.payload)
        return frame is not None

    def _read_into(self, timeout_s: float) -> bool:
        frame = self._consumer.read_into(self._own, timeout_s)
        if frame is not None:
            self._accept(frame.epoch, frame.seq, self._own)
        return frame is not None

    def _borrow(self, timeout_s: float) -> bool:
        key: tuple[int, int] | None = None
        try:
            with self._consumer.borrow(timeout_s) as view:
                key = view.epoch, view.seq
                self._accept(*key, view.payload)
                self.pause()
        except TimeoutError:
            return False
        except FrameOverwrittenError:
            assert key is not None
            self._log.write(WITHDRAW, *key, after_end=self._consumer.stats.epoch != key[0])
        return True


def random_producer_process() -> None:
    """For each order `run`: attach, publish in bursts and pauses, perhaps in two epochs, and say how many."""
    options = settings()
    orders = Orders()
    with tp.connect() as session:
        say("connected")
        while (order := orders.next()) is not None:
            if order["order"] == "run":
                _random_run(session, options, orders, order)


def _random_run(session: Session, options: dict[str, Any], orders: Orders, order: dict[str, Any]) -> None:
    choice = random.Random(order["seed"])  # noqa: S311 - to be repeated, not to be secret
    remaining = choice.randint(100, 600)
    epochs = choice.choice((1, 1, 2))
    with EventLog(order["log"]) as log:
        for number in range(epochs):
            with session.producer(order["stream_id"], shape=options["nbytes"], slots=order["slots"], wait=ATTACH_LIMIT_S) as producer:
                if number == 0:
                    say("attached", run=order["run"])
                    orders.wait_for("go")
                else:
                    # so that consumers have the chance to map the new epoch
                    time.sleep(choice.uniform(0.0, 0.3))
                _bursts(producer, log, options["nbytes"], remaining // epochs, choice)
                if number == epochs - 1:
                    say("published", run=order["run"], epoch=producer.epoch)
                    orders.wait_for("close")
    say("closed", run=order["run"])


def _bursts(producer: Producer, log: EventLog, nbytes: int, frames: int, choice: random.Random) -> None:
    while frames > 0:
        burst = min(frames, choice.choice((1, 1, 4, 16, 64, 128)))
        frames -= burst
        for _ in range(burst):
            if choice.random() < 0.02:
                with suppress(_GivenUpError), producer.claim():
                    raise _GivenUpError
            publish_logged(producer, log, nbytes, in_place=choice.random() < 0.5)
        time.sleep(choice.uniform(0.0, 0.01))


class _GivenUpError(Exception):
    """A claim that is aborted on purpose: its seq goes to the next frame."""


def random_consumer_process() -> None:
    """For each order `run`: attach, read at random until `finish`, read the rest, write down the totals."""
    options = settings()
    orders = Orders()
    with tp.connect() as session:
        say("connected")
        while (order := orders.next()) is not None:
            if order["order"] == "run":
                _random_reading(session, options, orders, order)


def _random_reading(session: Session, options: dict[str, Any], orders: Orders, order: dict[str, Any]) -> None:
    choice = random.Random(order["seed"])  # noqa: S311 - to be repeated, not to be secret
    with EventLog(order["log"]) as log, session.consumer(order["stream_id"], wait=ATTACH_LIMIT_S) as consumer:
        say("attached", run=order["run"])
        reader = RandomReader(consumer, log, options["nbytes"], choice)
        while not orders.has_waiting():
            reader.step(0.02)
            reader.pause()
        orders.wait_for("finish")
        reader.drain()
        Totals(consumer, log).write_all()
        say("read", run=order["run"], balanced=consumer.stats.balanced)
