"""What a session lends to its producers and consumers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random

from tensor_pool.client.conductor import Conductor, forked_error
from tensor_pool.client.link import ControlLink
from tensor_pool.clock import Clock
from tensor_pool.runtime import StackDescription
from tensor_pool.shm.layout import PoolLayout
from tensor_pool.shm.mapping import MappedPools

# announces and activity older than three periods are not believed (wire 10.1.1, 15.1)
FRESHNESS_PERIODS = 3


@dataclass(frozen=True, slots=True)
class ClientServices:
    """One of each a session; handles borrow them and close none."""

    stack: StackDescription
    link: ControlLink
    conductor: Conductor
    clock: Clock
    random: Random
    process_id: int = field(default_factory=os.getpid)

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that made the session. No thread of it is here, and its lock may be held for ever."""
        return os.getpid() != self.process_id

    def check_here(self, what: str) -> None:
        """Raise in a child made by fork."""
        if self.is_forked:
            raise forked_error(what)

    def map_pools(self, layout: PoolLayout, *, writable: bool) -> MappedPools:
        """Every region of an epoch, opened and checked; `RegionError` or `ProtocolError` where any of them cannot be."""
        now_ns = self.clock.monotonic_ns()
        return MappedPools.open(layout, self.stack.allowed_base_dirs, writable=writable, now_ns=now_ns, freshness_ns=self.freshness_ns)

    @property
    def freshness_ns(self) -> int:
        return FRESHNESS_PERIODS * self.stack.announce_period_ms * 1_000_000

    @property
    def keepalive_interval_ns(self) -> int:
        return self.stack.lease_keepalive_interval_ms * 1_000_000

    @property
    def report_interval_ns(self) -> int:
        """Hello and QoS go out at the announce cadence (wire 15.11)."""
        return self.stack.announce_period_ms * 1_000_000
