"""`ShmPoolAnnounce`: what exists, said every period, when it changes, and when somebody new listens (driver 8, decision E29)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from tensor_pool.clock import Clock
from tensor_pool.driver.counters import DriverCounters
from tensor_pool.driver.leases import LeaseTable
from tensor_pool.driver.state import StreamState
from tensor_pool.driver.streams import Stream, StreamTable
from tensor_pool.sbe.control import ClockDomain, PayloadPool, ShmPoolAnnounce

INTEREST_INTERVAL_NS: Final = 200_000_000
"""Ten thousand hellos must not become ten thousand announces."""
MOST_PER_CYCLE: Final = 200


class Announcer:
    """Decides when a stream is announced, and refreshes the activity of its superblocks just before."""

    def __init__(
        self,
        send: Callable[[bytes], bool],
        streams: StreamTable,
        leases: LeaseTable,
        clock: Clock,
        counters: DriverCounters,
        *,
        period_ns: int,
        clock_domain: ClockDomain,
    ) -> None:
        self._send = send
        self._streams = streams
        self._leases = leases
        self._clock = clock
        self._counters = counters
        self._period_ns = period_ns
        self._clock_domain = clock_domain
        self._round_due_ns = clock.monotonic_ns()
        self._round: deque[int] = deque()
        self._wanted: dict[int, int] = {}
        self._last_ns: dict[int, int] = {}

    def on_new_epoch(self, stream: Stream, now_ns: int) -> None:
        """Announce now, whatever was said a moment ago."""
        self._wanted.pop(stream.stream_id, None)
        if not self._announce(stream, now_ns):
            self._wanted[stream.stream_id] = now_ns

    def on_interest(self, stream: Stream, now_ns: int) -> None:
        """Announce soon: now, or as soon as the last announce is an interval ago."""
        earliest_ns = self._last_ns.get(stream.stream_id, now_ns - INTEREST_INTERVAL_NS) + INTEREST_INTERVAL_NS
        self._wanted.setdefault(stream.stream_id, max(now_ns, earliest_ns))

    def do_work(self, now_ns: int) -> int:
        """Send what is due. Returns how much that was."""
        sent = 0
        for stream_id in [stream_id for stream_id, due_ns in self._wanted.items() if due_ns <= now_ns]:
            del self._wanted[stream_id]
            sent += self._announce_by_id(stream_id, now_ns)
        if now_ns >= self._round_due_ns and not self._round:
            self._round.extend(stream.stream_id for stream in self._streams)
            # after a pause one round, not all that were missed
            self._round_due_ns = max(self._round_due_ns + self._period_ns, now_ns)
        for _ in range(min(MOST_PER_CYCLE, len(self._round))):
            sent += self._announce_by_id(self._round.popleft(), now_ns)
        return sent

    def _announce_by_id(self, stream_id: int, now_ns: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and self._announce(stream, now_ns)

    def _announce(self, stream: Stream, now_ns: int) -> bool:
        # an epoch whose producer just went is not repeated: the next thing said about this stream is a higher one
        if stream.files is None or stream.state is StreamState.PREPARING_UNOWNED:
            return True
        stream.files.refresh_activity(now_ns)
        if not self._send(self._message(stream, now_ns)):
            self._counters.announces_refused += 1
            return False
        self._counters.announces_sent += 1
        self._last_ns[stream.stream_id] = now_ns
        return True

    def _message(self, stream: Stream, now_ns: int) -> bytes:
        assert stream.files is not None
        layout = stream.files.layout
        producer = self._leases.producer_of(stream.stream_id)
        timestamp_ns = now_ns if self._clock_domain is ClockDomain.MONOTONIC else self._clock.realtime_ns()
        return ShmPoolAnnounce(
            stream_id=layout.stream_id,
            producer_id=producer.client_id if producer else 0,
            epoch=layout.epoch,
            announce_timestamp_ns=timestamp_ns,
            announce_clock_domain=self._clock_domain,
            layout_version=layout.layout_version,
            header_nslots=layout.nslots,
            header_slot_bytes=layout.header_slot_bytes,
            payload_pools=tuple(PayloadPool(pool.pool_id, pool.nslots, pool.stride_bytes, pool.uri) for pool in layout.pools),
            header_region_uri=layout.header_uri,
        ).encode()
