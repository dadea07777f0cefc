"""Frames a second: a writer as fast as it can, a reader as fast as it can, every word of every accepted frame added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benches.agreement import Access
from benches.figures import Row, Target, quartiles, row
from benches.plan import DEPTHS, IOX, SIZES, ZENOH, Plan
from benches.stage import Run, Stage, Wanted, open_stage


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who moves frames in some way."""

    label: str
    module: str
    access: Access = Access.BORROW
    package: str | None = None


BORROWED: Final = Contestant("borrowed views", "ours")
OWNED: Final = Contestant("owned frames", "ours", Access.COPY)
INTO: Final = Contestant("read_into", "ours", Access.INTO)
BARE: Final = Contestant("bare loop", "bare_loop")
# any loop in Python loses this much to the bare loop, whatever it calls
LOOPED: Final = Contestant("bare ring driven from Python", "bare_python")
LOOPED_COPY: Final = Contestant("bare ring driven from Python, with a copy out", "bare_python", Access.COPY)
BARE_COPY: Final = Contestant("bare loop with a copy out", "bare_loop", Access.COPY)
POLLING: Final = Contestant("iceoryx2 polling", "iceoryx2_peer", package=IOX)
SHARED: Final = Contestant("zenoh with shared memory", "zenoh_peer", Access.COPY, ZENOH)
# neighbours in this list are neighbours in time
CONTESTANTS: Final = (LOOPED, BARE, BORROWED, POLLING, OWNED, BARE_COPY, LOOPED_COPY, INTO, SHARED)

# nobody is held against these, and they hold nobody
ONLY_IN_FULL: Final = (LOOPED, LOOPED_COPY, INTO, SHARED)

AS_GOOD: Final = Target("ratio", ">=", 1.0)
BETTER: Final = Target("ratio", ">=", 1.0, aim=1.3)
NEAR_THE_LOOP: Final = Target("ratio_low", ">=", 0.9)
NEAR_THE_COPYING_LOOP: Final = Target("ratio", ">=", 0.9)

Runs = dict[Contestant, list[Run]]


class Throughput:
    """Every size at every depth; contestants take turns, and each round of everybody is one set of pairs."""

    name = "throughput"

    def steps(self, plan: Plan) -> int:
        return len(SIZES) * len(DEPTHS) * len(self._present(plan)) * plan.rounds

    def run(self, plan: Plan) -> list[Row]:
        rows: list[Row] = []
        for label, nbytes in SIZES.items():
            for slots in DEPTHS:
                with open_stage() as stage:
                    runs = self._measure(plan, stage, f"{label}, depth {slots}", nbytes, slots)
                rows += _rows(f"{label}, depth {slots}", label, runs)
        return rows

    def _present(self, plan: Plan) -> list[Contestant]:
        wanted = [contestant for contestant in CONTESTANTS if not plan.is_quick or contestant not in ONLY_IN_FULL]
        return [contestant for contestant in wanted if contestant.package is None or plan.peers.has(contestant.package)]

    def _measure(self, plan: Plan, stage: Stage, where: str, nbytes: int, slots: int) -> Runs:
        present = self._present(plan)
        plan.say(f"throughput, {where}: starting everybody")
        stage.start_stack()
        modules = list(dict.fromkeys(contestant.module for contestant in present))
        pairs = dict(zip(modules, stage.pairs([Wanted(module, module, nbytes, slots) for module in modules]), strict=True))
        runs: Runs = {contestant: [] for contestant in present}
        for turn in range(plan.rounds):
            # nobody is always the one after the same neighbour's mess in the cache
            order = present if turn % 2 == 0 else present[::-1]
            for contestant in order:
                plan.say(f"throughput, {where}: {contestant.label}")
                runs[contestant].append(stage.run(pairs[contestant.module], plan.seconds, access=contestant.access))
                plan.advance()
        stage.end(list(pairs.values()))
        return runs


def details(runs: Sequence[Run]) -> dict[str, float]:
    """Medians of what stands beside a figure."""
    names = ("published_hz", "received_hz", "lag_frames", "dropped_share", "lost_share", "writer_cpu", "reader_cpu", "stack_cpu")
    return {name: quartiles([getattr(run, name) for run in runs])[1] for name in names}


def _rows(where: str, size: str, runs: Runs) -> list[Row]:
    def received(contestant: Contestant, against: Contestant | None = None, target: Target | None = None) -> Row | None:
        if contestant not in runs or (against is not None and against not in runs):
            return None
        return row(
            f"{where}: {contestant.label}, received",
            "frames/s",
            [run.received_hz for run in runs[contestant]],
            against=None if against is None else against.label,
            others=[] if against is None else [run.received_hz for run in runs[against]],
            target=target,
            details=details(runs[contestant]),
        )

    def published(contestant: Contestant, against: Contestant, target: Target | None = None) -> Row | None:
        if against not in runs:
            return None
        return row(
            f"{where}: {contestant.label}, published",
            "frames/s",
            [run.published_hz for run in runs[contestant]],
            against=against.label,
            others=[run.published_hz for run in runs[against]],
            target=target,
            details=details(runs[contestant]),
        )

    is_small = size == "8 KiB"
    rows = [
        published(BORROWED, POLLING, BETTER if is_small else None),
        received(BORROWED, POLLING, BETTER if is_small else AS_GOOD),
        received(BORROWED, BARE, None if is_small else NEAR_THE_LOOP),
        received(OWNED, BARE_COPY, NEAR_THE_COPYING_LOOP if size == "640 KiB" else None),
        received(INTO, BARE_COPY),
        received(LOOPED, BARE),
        received(LOOPED_COPY, BARE_COPY),
        received(BORROWED, LOOPED),
        received(OWNED, LOOPED_COPY),
        *(received(contestant) for contestant in (BARE, BARE_COPY, POLLING, SHARED)),
    ]
    return [found for found in rows if found is not None]
