"""Judges histories. Nothing here calls the code under test: the counts are made anew from what the workloads wrote down."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tensor_pool.testing.events import ABORT, ACCEPT, ATTEMPT, PUBLISH, TOTALS, WITHDRAW, Event

_COUNTS = ("delivered", "skipped", "gap", "late", "invalid")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, in words; nothing is wrong when `problems` is empty. `figures` say how much was looked at."""

    problems: tuple[str, ...]
    figures: Mapping[str, int]

    @property
    def passed(self) -> bool:
        return not self.problems

    def require(self) -> None:
        """Raise AssertionError with the first problems when there are any."""
        if self.problems:
            shown = "\n".join(f"  - {problem}" for problem in self.problems[:20])
            raise AssertionError(f"{len(self.problems)} problems in the histories ({dict(self.figures)}):\n{shown}")


def check_no_bad_frames(producer: Iterable[Event], *consumers: Iterable[Event]) -> Verdict:
    """Every accepted frame is, byte for byte (by crc), one that a publish attempt wrote under that epoch and seq.

    Attempts count, not only publishes that came back: a producer that was killed after its commit has published.
    """
    written: dict[tuple[int, int], set[int | None]] = defaultdict(set)
    for event in producer:
        if event.event in (ATTEMPT, PUBLISH):
            written[event.epoch, event.seq].add(event.crc)
    problems = []
    accepted = 0
    for number, history in enumerate(consumers):
        withdrawn: Counter[tuple[int, int]] = Counter()
        frames = []
        for event in history:
            if event.event == WITHDRAW:
                withdrawn[event.epoch, event.seq] += 1
            elif event.event == ACCEPT:
                frames.append(event)
        for event in frames:
            key = event.epoch, event.seq
            if withdrawn[key]:
                continue  # the library said in time that the view is not one frame
            accepted += 1
            if key not in written:
                problems.append(f"consumer {number} accepted epoch {event.epoch} seq {event.seq}, which nobody wrote")
            elif event.crc not in written[key]:
                problems.append(f"consumer {number} accepted epoch {event.epoch} seq {event.seq} with other bytes: crc {event.crc}")
    return Verdict(tuple(problems), {"written": len(written), "accepted": accepted})


def check_accounting(consumer: Iterable[Event], producer: Iterable[Event] = ()) -> Verdict:
    """The identities of one consumer, for every epoch that it wrote totals for.

    `delivered + skipped + gap + late + invalid = last_seq - first_seq + 1`, delivered equals the accepts (less the withdrawn ones) in the
    history, seqs only rise, and when the producer's history is given: with `unseen` the counts equal what was published since the consumer
    joined. An epoch may have several totals (a ring that went back begins its counts anew): no seq may lie between them. A view that is
    given back after its epoch has ended (`after_end`) may be counted as delivered, though it was withdrawn.
    """
    accepts: dict[int, list[int]] = defaultdict(list)
    withdrawn: Counter[int] = Counter()
    after_end: Counter[int] = Counter()
    totals: dict[int, list[Event]] = defaultdict(list)
    for event in consumer:
        if event.event == ACCEPT:
            accepts[event.epoch].append(event.seq)
        elif event.event == WITHDRAW:
            withdrawn[event.epoch] += 1
            after_end[event.epoch] += bool(event.more.get("after_end"))
        elif event.event == TOTALS:
            totals[event.epoch].append(event)
    published = _published(producer)
    problems = [f"epoch {epoch}: frames were accepted but no totals were written" for epoch in accepts if epoch not in totals]
    for epoch, parts in totals.items():
        problems += _identity_problems(epoch, parts, accepts[epoch], withdrawn[epoch], after_end[epoch])
        if epoch in published:
            problems += _published_problems(epoch, parts, published[epoch])
    every = [event for parts in totals.values() for event in parts]
    seqs = sum(event.more["last_seq"] - event.more["first_seq"] + 1 for event in every)
    losses = sum(event.more["gap"] + event.more["late"] for event in every)
    accepted = sum(map(len, accepts.values()))
    return Verdict(tuple(problems), {"epochs": len(totals), "totals": len(every), "accepted": accepted, "seqs": seqs, "losses": losses})


def _published(producer: Iterable[Event]) -> dict[int, set[int]]:
    published: dict[int, set[int]] = defaultdict(set)
    for event in producer:
        if event.event == PUBLISH or (event.event == ABORT and event.more.get("burned")):
            published[event.epoch].add(event.seq)
    return published


def _identity_problems(epoch: int, parts: list[Event], accepted: list[int], withdrawn: int, withdrawn_after_end: int) -> list[str]:
    problems = []
    for totals in parts:
        first, last = totals.more["first_seq"], totals.more["last_seq"]
        counts = {name: totals.more[name] for name in _COUNTS}
        if sum(counts.values()) != last - first + 1:
            problems.append(f"epoch {epoch}: {counts} sum up to {sum(counts.values())}, but {first}..{last} are {last - first + 1} frames")
    delivered = sum(totals.more["delivered"] for totals in parts)
    if not len(accepted) - withdrawn <= delivered <= len(accepted) - withdrawn + withdrawn_after_end:
        problems.append(f"epoch {epoch}: delivered {delivered}, but the history has {len(accepted)} accepts, {withdrawn} withdrawn")
    if any(later <= earlier for earlier, later in pairwise(accepted)):
        problems.append(f"epoch {epoch}: a seq was accepted twice or went back")
    first = min(totals.more["first_seq"] for totals in parts)
    last = max(totals.more["last_seq"] for totals in parts)
    if accepted and not first <= min(accepted) <= max(accepted) <= last:
        problems.append(f"epoch {epoch}: accepted {min(accepted)}..{max(accepted)}, outside {first}..{last}")
    return problems


def _published_problems(epoch: int, parts: list[Event], published: set[int]) -> list[str]:
    problems = []
    for earlier, later in pairwise(parts):
        last = earlier.more["last_seq"] + earlier.more.get("unseen", 0)
        if later.more["first_seq"] != last + 1:
            problems.append(f"epoch {epoch}: counted up to seq {last}, then from seq {later.more['first_seq']}")
    seen = sum(totals.more[name] for totals in parts for name in _COUNTS)
    unseen = sum(totals.more.get("unseen", 0) for totals in parts)
    first = parts[0].more["first_seq"]
    since = sum(1 for seq in published if seq >= first)
    if seen + unseen != since:
        problems.append(f"epoch {epoch}: {seen} accounted for and {unseen} unseen, but {since} were published since seq {first}")
    return problems
