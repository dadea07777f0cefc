"""An announce that came late names files that are gone by then: the consumer waits for the next one."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from tensor_pool.clock import SystemClock
from tensor_pool.sbe import control
from tensor_pool.session import Session
from tensor_pool.testing import check_frame, stamp_frame
from tensor_pool.transport import TransportClient, exclusive_channel, subscription_channel


def next_announce(transport: TransportClient, session: Session) -> control.ShmPoolAnnounce:
    subscription = transport.subscribe(subscription_channel(session.stack.announce_channel), session.stack.announce_stream_id)
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        for data, _ in subscription.poll():
            if data[2:6] == control.ShmPoolAnnounce.TEMPLATE_ID.to_bytes(2, "little") + control.SCHEMA_ID.to_bytes(2, "little"):
                return control.ShmPoolAnnounce.decode(data)
        time.sleep(0.01)
    raise AssertionError("no announce was heard")


def test_a_consumer_goes_on_after_an_announce_of_files_that_are_gone(stack_session: Session) -> None:
    session = stack_session
    with session.producer(10_000, shape=512, slots=8) as producer, session.consumer(10_000, wait=10.0) as consumer:
        with TransportClient(session.stack.aeron_dir, name="forger") as transport:
            announce = next_announce(transport, session)
            publication = transport.publish(exclusive_channel(session.stack.announce_channel, "1m"), session.stack.announce_stream_id)
            while not publication.is_connected:
                time.sleep(0.005)
            gone = f"/{announce.epoch + 5}/"
            forged = dataclasses.replace(
                announce,
                epoch=announce.epoch + 5,
                # an announce from before its publication was there would be refused
                announce_timestamp_ns=SystemClock().monotonic_ns() + 50_000_000,
                header_region_uri=announce.header_region_uri.replace(f"/{announce.epoch}/", gone),
                payload_pools=tuple(
                    dataclasses.replace(pool, region_uri=pool.region_uri.replace(f"/{announce.epoch}/", gone))
                    for pool in announce.payload_pools
                ),
            )
            while publication.offer(forged.encode()) < 0:
                time.sleep(0.005)
            # it lets its mapping go; the next true announce may bring it back in the same pass
            while not consumer.earlier_stats:
                time.sleep(0.005)
        frame = np.empty(512, dtype=np.uint8)
        received = None
        while received is None:
            stamp_frame(frame, producer.stats.last_seq + 1)
            producer.publish(frame)
            received = consumer.read(0.05)
        assert check_frame(received.array, received.seq)
        assert consumer.stats.epoch == announce.epoch
