"""A reader's books beside a model that is as plain as can be: a dictionary of slots, a list of announced frames, one fate for every seq."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensor_pool._native import ReadFrame, View
from tests.unit.native.rings import EPOCH, IDENTITY, balances, commit, publish, ring

NSLOTS = 8
SHORT, LONG = 10, 200
GAP_LIMIT = 6


@dataclass
class Lent:
    seq: int
    generation: int
    view: View


class Books(RuleBasedStateMachine):
    """The model knows: what each slot holds, which seqs were announced, and which fate each booked seq had."""

    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()
        self.ring = self.resources.enter_context(ring(nslots=NSLOTS, strides=(256,)))
        self.writer = self.ring.writer()
        self.reader = self.ring.reader(max_outstanding_gap=GAP_LIMIT)
        self.next_seq = 0
        self.slots: dict[int, tuple[int, bool]] = {}  # index: (seq, is committed)
        self.lengths: dict[int, int] = {}
        self.broken: set[int] = set()
        self.unannounced: list[int] = []
        self.lent: list[Lent] = []
        self.generation = 0
        self.life = dict.fromkeys(("wrong_epoch", "not_committed", "descriptors_received"), 0)
        self.start_books(0)

    def teardown(self) -> None:
        self.lent.clear()
        self.resources.close()

    # --- the model ---------------------------------------------------------------------------------------------------

    def start_books(self, first_seq: int) -> None:
        self.first = self.next_booked = self.next_announced = first_seq
        self.queue: list[int] = []
        self.announced: set[int] = set()
        self.fate: dict[int, str] = {}
        self.went_back = False

    def announce(self, seq: int) -> None:
        self.reader.inject(EPOCH, seq)
        self.life["descriptors_received"] += 1
        if seq < self.next_announced:
            self.went_back |= self.next_announced != self.first
            return
        self.queue = [*self.queue, seq][-NSLOTS:]
        self.announced.add(seq)
        self.next_announced = seq + 1

    def take(self, newest: bool) -> int | None:
        if not self.queue:
            return None
        last = self.queue[-1]
        behind = last - self.next_booked >= GAP_LIMIT
        taken = last if newest or behind else self.queue[0]
        for seq in range(self.next_booked, taken):
            self.fate[seq] = "skipped" if newest and seq in self.announced else "gap"
        self.queue = [seq for seq in self.queue if seq > taken]
        self.next_booked = taken + 1
        return taken

    def expected(self, *, newest: bool, room: int = LONG) -> int | str | None:
        """The seq that must come, None for nothing, or "short"; with everything booked that is passed over."""
        while (seq := self.take(newest)) is not None:
            held, committed = self.slots.get(seq % NSLOTS, (0, False))
            if held != seq or not committed:
                self.fate[seq] = "late"
                self.life["not_committed"] += held == seq
            elif seq in self.broken:
                self.fate[seq] = "invalid"
            elif self.lengths[seq] > room:
                self.queue.insert(0, seq)
                self.next_booked = seq
                return "short"
            else:
                self.fate[seq] = "delivered"
                return seq
        return None

    def check(self, frame: ReadFrame | None, expected: int | str | None) -> None:
        assert (None if frame is None else frame.seq) == expected
        if frame is not None:
            assert frame.nbytes == self.lengths[frame.seq]
            assert set(memoryview(frame.buffer)[: frame.nbytes]) <= {frame.seq % 251}

    # --- what a producer does ----------------------------------------------------------------------------------------

    @rule(
        length=st.sampled_from([0, SHORT, LONG]),
        fate=st.sampled_from(["announced", "announced", "lost", "kept for later", "announced twice", "broken"]),
    )
    def publish(self, length: int, fate: str) -> None:
        seq = publish(self.writer, bytes([self.next_seq % 251]) * length)
        assert seq == self.next_seq
        self.next_seq += 1
        self.slots[seq % NSLOTS] = (seq, True)
        self.lengths[seq] = length
        if fate == "broken":
            self.ring.patch(seq, 72, "h", 12)
            self.broken.add(seq)
        if fate == "kept for later":
            self.unannounced.append(seq)
        elif fate != "lost":
            self.announce(seq)
        if fate == "announced twice":
            self.announce(seq)

    @rule(then=st.sampled_from(["abort", "announce and abort", "commit"]))
    def claim(self, then: str) -> None:
        claim = self.writer.claim(SHORT)
        self.slots[self.next_seq % NSLOTS] = (self.next_seq, False)
        if then == "commit":
            memoryview(claim)[:] = bytes([self.next_seq % 251]) * SHORT
            assert commit(claim) == self.next_seq
            self.slots[self.next_seq % NSLOTS] = (self.next_seq, True)
            self.lengths[self.next_seq] = SHORT
            self.announce(self.next_seq)
            self.next_seq += 1
            return
        if then == "announce and abort":
            self.announce(self.next_seq)
        claim.abort()

    @precondition(lambda self: self.unannounced)
    @rule(data=st.data())
    def a_late_descriptor(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.unannounced))
        self.unannounced.remove(seq)
        self.announce(seq)

    @rule(ahead=st.integers(0, 20))
    def a_descriptor_of_a_frame_that_is_not_there(self, ahead: int) -> None:
        self.announce(self.next_seq + ahead)

    @rule()
    def another_epoch(self) -> None:
        self.reader.inject(EPOCH + 1, self.next_seq)
        self.life["descriptors_received"] += 1
        self.life["wrong_epoch"] += 1

    # --- what a consumer does ----------------------------------------------------------------------------------------

    @rule(newest=st.booleans())
    def read(self, newest: bool) -> None:
        self.check(self.reader.read(0, newest=newest), self.expected(newest=newest))

    @rule(newest=st.booleans(), room=st.sampled_from([0, SHORT, LONG]))
    def read_into(self, newest: bool, room: int) -> None:
        out = bytearray(room)
        expected = self.expected(newest=newest, room=room)
        if expected == "short":
            with pytest.raises(ValueError):
                self.reader.read_into(out, 0, newest=newest)
            assert out == bytes(room)
            return
        frame = self.reader.read_into(out, 0, newest=newest)
        self.check(frame, expected)
        if frame is not None:
            assert set(out[: frame.nbytes]) <= {frame.seq % 251}

    @rule(newest=st.booleans())
    def borrow(self, newest: bool) -> None:
        frame = self.reader.borrow(0, newest=newest)
        self.check(frame, self.expected(newest=newest))
        if frame is not None:
            assert isinstance(frame.buffer, View)
            self.lent.append(Lent(frame.seq, self.generation, frame.buffer))

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        lent = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        is_whole = self.slots[lent.seq % NSLOTS] == (lent.seq, True)
        assert lent.view.still_valid() == is_whole
        assert lent.view.release() == is_whole
        assert lent.view.release() == is_whole
        if not is_whole and lent.generation == self.generation:
            self.fate[lent.seq] = "late"

    @rule(from_the_start=st.booleans())
    def remap(self, from_the_start: bool) -> None:
        first = self.ring.map(self.reader, first_seq=0 if from_the_start else None, max_outstanding_gap=GAP_LIMIT)
        newest = max((seq for seq, committed in self.slots.values() if committed), default=-1)
        assert first == (0 if from_the_start else newest + 1)
        self.generation += 1
        self.start_books(first)

    @rule(announced_meanwhile=st.booleans())
    def lose_the_mapping_and_win_it_back(self, announced_meanwhile: bool) -> None:
        self.reader.unmap()
        if announced_meanwhile:
            self.reader.inject(EPOCH, self.next_seq)
            self.life["descriptors_received"] += 1
        assert self.ring.map(self.reader, first_seq=None, max_outstanding_gap=GAP_LIMIT, resume=True) == self.first
        self.queue = []
        self.announced = set()
        self.next_announced = self.next_booked
        self.went_back = False

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def every_seq_has_one_fate(self) -> None:
        counters = self.reader.counters()
        fates = list(self.fate.values())
        assert {name: counters[name] for name in IDENTITY} == {name: fates.count(name) for name in IDENTITY}
        assert set(self.fate) == set(range(self.first, self.next_booked))
        assert (counters["first_seq"], counters["last_seq"]) == (self.first, self.next_booked - 1)
        assert balances(counters)
        assert {name: counters[name] for name in self.life} == self.life
        assert self.reader.needs_remap() == self.went_back
        newest = max((seq for seq, committed in self.slots.values() if committed), default=-1)
        assert counters["newest_committed"] == max(newest, self.first - 1)


BooksTest = pytest.mark.requirement("W-15.4-2")(Books.TestCase)
BooksTest.settings = settings(max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
