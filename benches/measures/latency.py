"""Latency at 1 kHz: from the moment before the payload is copied until the reader holds the frame, before it adds anything up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benches.agreement import Access
from benches.figures import Row, Target, row
from benches.measures.throughput import details
from benches.plan import IOX, SIZES, ZENOH, Plan
from benches.stage import Run, Stage, Wanted, open_stage

RATE_HZ: Final = 1000
# 64 slots of 640 KiB do not fit a cache, 8 do
MEASURED: Final = (("8 KiB", 8), ("8 KiB", 64), ("640 KiB", 8), ("640 KiB", 64))
# starting everybody takes longer than measuring them
MEASURED_IN_QUICK: Final = (("8 KiB", 64), ("640 KiB", 64))
NO_WORSE: Final = Target("ratio", "<=", 1.0)
QUIET: Final = Target("median", "<", 3.0)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody who polls, or who waits."""

    label: str
    module: str
    waits: bool
    access: Access = Access.BORROW
    package: str | None = None


SPINNING: Final = Waiting("spinning reader", "ours", waits=False)
POLLING: Final = Waiting("iceoryx2 polling", "iceoryx2_peer", waits=False, package=IOX)
BARE: Final = Waiting("bare loop", "bare_loop", waits=False)
SLEEPING: Final = Waiting("waiting reader", "ours", waits=True)
EVENTS: Final = Waiting("iceoryx2 event-driven", "iceoryx2_peer", waits=True, package=IOX)
CALLBACK: Final = Waiting("zenoh with shared memory", "zenoh_peer", waits=True, access=Access.COPY, package=ZENOH)
CONTESTANTS: Final = (BARE, SPINNING, POLLING, SLEEPING, EVENTS, CALLBACK)
# without a target, and nobody's rival
ONLY_IN_FULL: Final = (BARE, CALLBACK)
RIVALS: Final = {SPINNING: POLLING, SLEEPING: EVENTS}


class Latency:
    """Readers that poll, and readers that sleep, with the share of a core that each takes."""

    name = "latency"

    def steps(self, plan: Plan) -> int:
        return len(self._measured(plan)) * len(self._present(plan)) * plan.rounds

    def _present(self, plan: Plan) -> list[Waiting]:
        wanted = [contestant for contestant in CONTESTANTS if not plan.is_quick or contestant not in ONLY_IN_FULL]
        return [contestant for contestant in wanted if contestant.package is None or plan.peers.has(contestant.package)]

    def _measured(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        return MEASURED_IN_QUICK if plan.is_quick else MEASURED

    def run(self, plan: Plan) -> list[Row]:
        rows: list[Row] = []
        for label, slots in self._measured(plan):
            with open_stage() as stage:
                runs = self._measure(plan, stage, label, slots)
            for contestant in runs:
                rows += _rows(f"{label}, depth {slots}", contestant, runs)
        return rows

    def _measure(self, plan: Plan, stage: Stage, label: str, slots: int) -> dict[Waiting, list[Run]]:
        present = self._present(plan)
        plan.say(f"latency, {label}: starting everybody")
        stage.start_stack()
        wanted = [Wanted(contestant.label, contestant.module, SIZES[label], slots, contestant.waits) for contestant in present]
        pairs = dict(zip(present, stage.pairs(wanted), strict=True))
        runs: dict[Waiting, list[Run]] = {contestant: [] for contestant in present}
        for turn in range(plan.rounds):
            for contestant in present if turn % 2 == 0 else present[::-1]:
                plan.say(f"latency, {label}: {contestant.label}")
                run = stage.run(pairs[contestant], plan.latency_seconds, rate_hz=RATE_HZ, access=contestant.access)
                runs[contestant].append(run)
                plan.advance()
        stage.end(list(pairs.values()))
        return runs


def _rows(label: str, contestant: Waiting, runs: dict[Waiting, list[Run]]) -> list[Row]:
    rival = RIVALS.get(contestant)
    rival = rival if rival in runs else None
    beside = details(runs[contestant])
    rows = []
    for name, attribute in (("p50", "p50_ns"), ("p99", "p99_ns")):
        # of a waiting reader only the median is promised
        has_target = rival is not None and (name == "p50" or not contestant.waits)
        rows.append(
            row(
                f"latency, {label}: {contestant.label}, {name}",
                "us",
                [getattr(run, attribute) / 1e3 for run in runs[contestant]],
                against=None if rival is None else rival.label,
                others=[] if rival is None else [getattr(run, attribute) / 1e3 for run in runs[rival]],
                target=NO_WORSE if has_target else None,
                details=beside,
            )
        )
    if contestant.waits:
        shares = [run.reader_cpu * 100 for run in runs[contestant]]
        target = QUIET if contestant is SLEEPING else None
        words = f"latency, {label}: {contestant.label}, processor of its process"
        rows.append(row(words, "% of a core", shares, target=target, details=beside))
    return rows
