"""This package, as its README says: `publish`, `borrow`, `read`, `read_into`. Readers poll with `spin=True`, or wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

import tensor_pool as tp
from benches.agreement import Access, Setup
from benches.native import Source, Tally
from benches.payloads import array_source
from tensor_pool.errors import FrameOverwrittenError

# a reader without frames looks this often whether the run is over
LOOK_S: Final = 0.02
ATTACH_S: Final = 30.0


class Writer:
    """A producer of one stream; `place` is the stream's number."""

    def __init__(self, setup: Setup) -> None:
        self._nbytes = setup.nbytes
        self._session = tp.connect()
        self._producer = self._session.producer(int(setup.place), shape=(setup.nbytes // 8,), dtype="uint64", slots=setup.slots)

    def make_source(self) -> Source:
        return array_source(self._nbytes)

    def write(self, source: Source) -> Mapping[str, Any]:
        self._publish_all(source.lead)
        # refused while the run counts, as everything else
        before = self._refused()
        self._publish_all(source.next)
        return {"refused": self._refused() - before}

    def _publish_all(self, following: Callable[[], Any]) -> None:
        publish = self._producer.publish
        while (frame := following()) is not None:
            publish(frame)

    def _refused(self) -> int:
        """Descriptors that Aeron did not take: those frames are in the ring, and nobody was told."""
        stats = self._producer.stats
        return stats.descriptors_back_pressured + stats.descriptors_not_connected + stats.descriptors_closed

    def close(self) -> None:
        self._session.close()


class Reader:
    """A consumer of that stream."""

    def __init__(self, setup: Setup) -> None:
        self._session = tp.connect()
        self._consumer = self._session.consumer(int(setup.place), wait=ATTACH_S, spin=not setup.waits)
        self._out = np.empty(setup.nbytes // 8, dtype=np.uint64)

    def read(self, tally: Tally, access: Access) -> None:
        # what was left over from the run before is passed over. Not until there is nothing: the writer of this run may be at work already
        self._consumer.latest(0)
        {Access.BORROW: self._borrow, Access.COPY: self._copy, Access.INTO: self._copy_into}[access](tally)

    def _borrow(self, tally: Tally) -> None:
        check, borrow = tally.check, self._consumer.borrow
        goes_on = True
        while goes_on:
            try:
                with borrow(LOOK_S) as view:
                    goes_on = check(view.array)
            except TimeoutError:
                goes_on = not tally.is_over
            except FrameOverwrittenError:
                tally.retract()

    def _copy(self, tally: Tally) -> None:
        check, read = tally.check, self._consumer.read

        def look(frame: tp.Frame | None) -> bool:
            return check(frame.array) if frame is not None else not tally.is_over

        # no frame is held while the next one is read: its memory is used again, and is still in the cache
        while look(read(LOOK_S)):
            pass

    def _copy_into(self, tally: Tally) -> None:
        check, read_into, out = tally.check, self._consumer.read_into, self._out
        goes_on = True
        while goes_on:
            goes_on = check(out) if read_into(out, LOOK_S) is not None else not tally.is_over

    def close(self) -> None:
        self._session.close()
