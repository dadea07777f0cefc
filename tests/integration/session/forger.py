"""Somebody else on the streams of a stack, who says what is not true."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensor_pool._native import Publication
from tensor_pool.clock import SystemClock
from tensor_pool.sbe import control
from tensor_pool.session import Session
from tensor_pool.transport import TransportClient, exclusive_channel, subscription_channel

from .conftest import until

ANNOUNCE_START = control.ShmPoolAnnounce.TEMPLATE_ID.to_bytes(2, "little") + control.SCHEMA_ID.to_bytes(2, "little")


class Forger:
    """Heard a true announce of a stream, and sends variations of it, or anything else."""

    def __init__(self, session: Session, transport: TransportClient) -> None:
        stack = session.stack
        self._announces = transport.subscribe(subscription_channel(stack.announce_channel), stack.announce_stream_id)
        self._announcing = transport.publish(exclusive_channel(stack.announce_channel, "1m"), stack.announce_stream_id)
        self._describing = transport.publish(exclusive_channel(stack.descriptor_channel, "1m"), stack.descriptor_stream_id)
        self.true = self._next_announce()

    def _next_announce(self) -> control.ShmPoolAnnounce:
        heard: bytes = until(
            lambda: next((data for data, _ in self._announces.poll() if data[2:6] == ANNOUNCE_START), None), "no announce was heard"
        )
        return control.ShmPoolAnnounce.decode(heard)

    def moved(self, epoch: int) -> dict[str, Any]:
        """The fields of an announce whose files would lie in the directory of that epoch."""

        def move(uri: str) -> str:
            return uri.replace(f"/{self.true.epoch}/", f"/{epoch}/")

        pools = tuple(dataclasses.replace(pool, region_uri=move(pool.region_uri)) for pool in self.true.payload_pools)
        return {"epoch": epoch, "header_region_uri": move(self.true.header_region_uri), "payload_pools": pools}

    def announce(self, **changes: Any) -> None:
        # an announce from before its publication was there would be refused
        soon_ns = SystemClock().monotonic_ns() + 50_000_000
        _send(self._announcing, dataclasses.replace(self.true, announce_timestamp_ns=soon_ns, **changes).encode())

    def send(self, message: bytes) -> None:
        """Anything, where announces are heard."""
        _send(self._announcing, message)

    def describe(self, seq: int) -> None:
        """A descriptor of the running epoch."""
        descriptor = control.FrameDescriptor(
            stream_id=self.true.stream_id, epoch=self.true.epoch, seq=seq, timestamp_ns=None, meta_version=0, trace_id=0
        )
        _send(self._describing, descriptor.encode())


def _send(publication: Publication, message: bytes) -> None:
    until(lambda: publication.offer(message) > 0, "nobody hears it")


@contextmanager
def forging(session: Session) -> Iterator[Forger]:
    with TransportClient(session.stack.aeron_dir, name="forger") as transport:
        yield Forger(session, transport)
