"""The bare loop's ring, driven by a loop in Python: one native call writes a frame, one finds the next, one checks that it is still there.

Nobody who is called from Python can do less. What lies between this and the bare loop is Python's; what lies between this and a contestant
is the contestant's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benches import native
from benches.agreement import Access, Setup
from benches.native import Source, Tally
from benches.payloads import address_source

# how often a reader that finds nothing looks at the clock
POLLS_A_LOOK: Final = 64


class Writer:
    """Makes the ring in the directory `place`."""

    def __init__(self, setup: Setup) -> None:
        self._nbytes = setup.nbytes
        self._ring = native.module().BareWriter(setup.place, setup.nbytes, setup.slots)

    def make_source(self) -> Source:
        return address_source(self._nbytes)

    def write(self, source: Source) -> Mapping[str, Any]:
        following, write = source.next, self._ring.write
        while (address := following()) is not None:
            write(address)
        return {}

    def close(self) -> None:
        pass


class Reader:
    """Polls that ring."""

    def __init__(self, setup: Setup) -> None:
        self._ring = native.module().BareReader(setup.place, setup.nbytes, setup.slots)

    def read(self, tally: Tally, access: Access) -> None:
        self._ring.skip_old()
        following = self._ring.borrow if access is Access.BORROW else self._ring.read
        check_at, is_still = tally.check_at, self._ring.is_still
        goes_on = True
        polls = 0
        while goes_on:
            address = following()
            if address is None:
                polls += 1
                goes_on = polls % POLLS_A_LOOK != 0 or not tally.is_over
                continue
            goes_on = check_at(address)
            # a copy stays what it is
            if access is Access.BORROW and not is_still():
                tally.retract()

    def close(self) -> None:
        pass
