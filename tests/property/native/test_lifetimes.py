"""Handles, views, buffers and arrays let go of in any order: nothing crashes, and no memory is handed out that an array still holds."""

from __future__ import annotations

import gc
import itertools
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensor_pool._native import FrameBuffer, FrameReader, RingWriter, View
from tensor_pool.errors import ClosedError
from tests.unit.native.rings import EPOCH, Ring, commit, in_a_fork, publish, ring

SIZES = (0, 1, 4096, 5000, 8192)


class Lifetimes(RuleBasedStateMachine):
    """Owned arrays must keep the bytes they were read with, whatever happens to everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()
        self.number = 0
        self.owned: list[tuple[np.ndarray[Any, Any], int]] = []
        self.things: list[object] = []
        self.renew()

    def teardown(self) -> None:
        self.things.clear()
        self.owned.clear()
        self.resources.close()

    @rule()
    def renew(self) -> None:
        self.ring: Ring = self.resources.enter_context(ring(nslots=4, strides=(8192,)))
        self.writer: RingWriter = self.ring.writer()
        self.reader: FrameReader = self.ring.reader()
        self.ring.readers.clear()

    def publish(self, size: int) -> None:
        self.number += 1
        with suppress(ClosedError, RuntimeError):
            self.reader.inject(EPOCH, publish(self.writer, bytes([self.number % 256]) * size))

    @rule(size=st.sampled_from(SIZES), kept=st.sampled_from(["array", "buffer", "frame", "nothing"]))
    def read(self, size: int, kept: str) -> None:
        self.publish(size)
        with suppress(ClosedError):
            frame = self.reader.read(0, newest=True)
            if frame is None:
                return
            if kept == "frame":
                self.things.append(frame)
            elif kept != "nothing":
                buffer = frame.buffer
                assert isinstance(buffer, FrameBuffer)
                array = np.asarray(buffer)
                # a buffer that is shared with anybody would be seen through this
                array[:] = self.number % 256
                self.owned.append((array, self.number % 256))
                if kept == "buffer":
                    self.things.append(buffer)

    @rule(size=st.sampled_from(SIZES), kept=st.sampled_from(["array", "view", "frame"]))
    def borrow(self, size: int, kept: str) -> None:
        self.publish(size)
        with suppress(ClosedError):
            frame = self.reader.borrow(0)
            if frame is not None:
                assert isinstance(frame.buffer, View)
                self.things.append({"array": np.asarray(frame.buffer), "view": frame.buffer, "frame": frame}[kept])

    @rule(end=st.sampled_from(["kept", "array", "aborted", "committed"]))
    def claim(self, end: str) -> None:
        with suppress(ClosedError, RuntimeError):
            claim = self.writer.claim(64)
            if end == "array":
                self.things.append(np.asarray(claim))
            elif end == "aborted":
                claim.abort()
            elif end == "committed":
                commit(claim)
            if end != "array":
                self.things.append(claim)

    @precondition(lambda self: self.things)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        thing = self.things[data.draw(st.integers(0, len(self.things) - 1))]
        if isinstance(thing, View):
            thing.release()
            bytes(memoryview(thing))
        elif isinstance(thing, np.ndarray):
            thing.tobytes()
            if thing.flags.writeable:
                thing[:] = 1

    @precondition(lambda self: self.things)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.things.pop(data.draw(st.integers(0, len(self.things) - 1)))

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def drop_owned(self, data: st.DataObject) -> None:
        self.owned.pop(data.draw(st.integers(0, len(self.owned) - 1)))

    @rule(what=st.sampled_from(["reader", "writer", "header", "pool", "unmap", "remap", "collect"]))
    def let_go(self, what: str) -> None:
        header, pool = self.ring.header, self.ring.pools[0][2]
        with suppress(ClosedError):
            {
                "reader": self.reader.close,
                "writer": self.writer.close,
                "header": header.close,
                "pool": pool.close,
                "unmap": self.reader.unmap,
                "remap": lambda: self.ring.map(self.reader),
                "collect": gc.collect,
            }[what]()

    @rule(thing=st.sampled_from(["writer", "reader", "ring"]))
    def a_file_goes_away(self, thing: str) -> None:
        self.things.append({"writer": self.writer, "reader": self.reader, "ring": self.ring}[thing])
        self.renew()

    @invariant()
    def owned_arrays_keep_their_bytes(self) -> None:
        for array, value in self.owned:
            assert (array == value).all()
        bounds = sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array, _ in self.owned if array.nbytes)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(bounds))


LifetimesTest = Lifetimes.TestCase
LifetimesTest.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_a_buffer_comes_back_only_when_the_last_array_over_it_is_gone() -> None:
    with ring() as made:
        writer, reader = made.writer(), made.reader()

        def read() -> np.ndarray[Any, Any]:
            reader.inject(EPOCH, publish(writer, b"x" * 4096))
            frame = reader.read(0)
            assert frame is not None
            return np.asarray(frame.buffer)

        first = read()
        address = first.ctypes.data
        part = first[10:20]
        del first
        assert read().ctypes.data != address
        held = read()
        assert held.ctypes.data != address
        del part
        addresses = {held.ctypes.data} | {read().ctypes.data for _ in range(3)}
        assert address in addresses
        # a pool outlives its reader for as long as a buffer is out
        reader.close()
        made.readers.clear()
        assert bytes(held) == b"x" * 4096


@pytest.mark.parametrize("seed", range(5))
def test_a_child_of_a_fork_may_let_go_of_everything_in_any_order(seed: int) -> None:
    with ring() as made:
        handles: dict[str, Any] = {"writer": made.writer(), "reader": made.reader()}
        made.readers.clear()
        for _ in range(3):
            handles["reader"].inject(EPOCH, publish(handles["writer"], b"x" * 4096))
        handles["read"] = handles["reader"].read(0)
        handles["lent"] = handles["reader"].borrow(0)
        handles["kept"] = np.asarray(handles["reader"].read(0).buffer)
        handles["view"] = handles["lent"].buffer
        handles["lent array"] = np.asarray(handles["view"])
        handles["claim"] = handles["writer"].claim(8)
        handles |= {"header": made.header, "pool": made.pools[0][2]}

        def child() -> str:
            for name in np.random.default_rng(seed).permutation(sorted(handles)):
                del handles[str(name)]
                gc.collect()
            return "alive"

        assert in_a_fork(child) == "alive"
        assert commit(handles["claim"]) == 3
        assert handles["view"].release()
        assert bytes(handles["kept"]) == b"x" * 4096
