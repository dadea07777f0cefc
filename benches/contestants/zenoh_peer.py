"""zenoh with shared memory: buffers from a provider, a callback on the thread that receives.

Of the ways its documentation shows from Python these are the fastest: a `ShmProvider` as deep as the ring with `BlockOn(GarbageCollect())`,
a publisher that blocks on congestion as in its throughput example, `express` where single frames must not wait for a batch, and a direct
callback. Its buffers are no buffers to Python (`memoryview(sample.payload.as_shm())` is a TypeError in 1.10, and no address is lent): a
frame goes in from a bytearray and comes out as bytes, one copy each.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, Final

import zenoh

from benches.agreement import Access, Setup
from benches.native import Source, Tally
from benches.payloads import bytearray_source

LOOK_S: Final = 0.02
KEY: Final = "tensor_pool/bench"
# allocations have headers, and a buffer on its way is in nobody's ring
SPARE_SLOTS: Final = 4


def _open(place: str, *, listens: bool) -> Any:
    config = zenoh.Config()
    settings = {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "listen/endpoints": [place] if listens else [],
        "connect/endpoints": [] if listens else [place],
        "transport/shared_memory/enabled": True,
        "transport/shared_memory/mode": "init",
    }
    for name, value in settings.items():
        config.insert_json5(name, json.dumps(value))
    return zenoh.open(config)


class Writer:
    """A publisher with shared memory of its own. Connects to the reader at `place`."""

    def __init__(self, setup: Setup) -> None:
        self._nbytes = setup.nbytes
        self._session = _open(setup.place, listens=False)
        blocks = zenoh.CongestionControl.BLOCK
        self._publisher = self._session.declare_publisher(KEY, congestion_control=blocks, express=setup.waits)
        self._provider = zenoh.shm.ShmProvider.default_backend((setup.slots + SPARE_SLOTS) * setup.nbytes)

    def make_source(self) -> Source:
        return bytearray_source(self._nbytes)

    def write(self, source: Source) -> Mapping[str, Any]:
        following, allocate, put, nbytes = source.next, self._provider.alloc, self._publisher.put, self._nbytes
        policy = zenoh.shm.BlockOn(zenoh.shm.GarbageCollect())
        while (payload := following()) is not None:
            buffer = allocate(nbytes, policy=policy)
            buffer[:] = payload
            put(buffer)
        return {}

    def close(self) -> None:
        self._session.close()


class Reader:
    """A subscriber that listens at `place`."""

    def __init__(self, setup: Setup) -> None:
        self._session = _open(setup.place, listens=True)
        self._tally: Tally | None = None
        # None until the first frame has shown it
        self._is_shared: bool | None = None
        self._over = threading.Event()
        callback = zenoh.handlers.Callback(self._receive, indirect=False)
        self._subscriber = self._session.declare_subscriber(KEY, callback)

    def _receive(self, sample: Any) -> None:
        tally = self._tally
        if self._is_shared is None:
            self._is_shared = sample.payload.as_shm() is not None
        if tally is not None and not tally.check(sample.payload.to_bytes()):
            self._over.set()

    def read(self, tally: Tally, access: Access) -> None:
        if access is not Access.COPY:
            raise ValueError("zenoh gives out copies in Python")
        self._over.clear()
        self._tally = tally
        while not tally.is_over:
            self._over.wait(LOOK_S)
        self._tally = None
        if self._is_shared is False:
            raise RuntimeError("zenoh sent frames by socket: its shared memory was not used")

    def close(self) -> None:
        self._session.close()
