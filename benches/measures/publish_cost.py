"""What a publish takes beyond its memcpy: array checks, slot header, descriptor, and the wake of a reader that waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benches.figures import Row, Target, quartiles, row
from benches.measures.throughput import details
from benches.plan import SIZES, Plan
from benches.stage import Run, Stage, Wanted, open_stage

RATE_HZ: Final = 1000
SLOTS: Final = 64
QUICK: Final = Target("median", "<", 2.0)
SELDOM_SLOW: Final = Target("median", "<", 10.0)
MANY: Final = 16


@dataclass(frozen=True, slots=True)
class Case:
    """Who reads, and how often there is something to read."""

    label: str
    waits: bool
    rate_hz: int
    readers: int = 1
    has_target: bool = True


WAITING: Final = Case("1 kHz, reader waits", waits=True, rate_hz=RATE_HZ)
POLLING: Final = Case("as fast as it goes", waits=False, rate_hz=0)
# the producer wakes one, who wakes the next ones: what it takes does not depend on how many there are
CROWD: Final = Case(f"1 kHz, {MANY} readers wait", waits=True, rate_hz=RATE_HZ, readers=MANY, has_target=False)
MEASURED: Final = {"8 KiB": (WAITING, POLLING, CROWD), "640 KiB": (WAITING, POLLING)}


class PublishCost:
    """At 1 kHz, with readers of other processes waiting for every frame, and as fast as it goes, with a reader that polls."""

    name = "publish"

    def steps(self, plan: Plan) -> int:
        return plan.rounds * sum(len(self._cases(plan, label)) for label in MEASURED)

    def _cases(self, plan: Plan, label: str) -> Sequence[Case]:
        return [case for case in MEASURED[label] if not plan.is_quick or case is not CROWD]

    def run(self, plan: Plan) -> list[Row]:
        rows: list[Row] = []
        for label in MEASURED:
            with open_stage() as stage:
                runs = self._measure(plan, stage, label)
            for case in runs:
                against = WAITING if case is CROWD else None
                rows += _rows(f"publish beyond its memcpy, {label}, {case.label}", case, runs[case], against, runs.get(WAITING, []))
        return rows

    def _measure(self, plan: Plan, stage: Stage, label: str) -> dict[Case, list[Run]]:
        plan.say(f"publish beyond its memcpy, {label}: starting")
        stage.start_stack()
        cases = self._cases(plan, label)
        wanted = [Wanted(case.label, "ours", SIZES[label], SLOTS, case.waits, writer="ours_timed", readers=case.readers) for case in cases]
        pairs = dict(zip(cases, stage.pairs(wanted), strict=True))
        runs: dict[Case, list[Run]] = {case: [] for case in cases}
        for turn in range(plan.rounds):
            for case in cases if turn % 2 == 0 else cases[::-1]:
                plan.say(f"publish beyond its memcpy, {label}: {case.label}")
                seconds = plan.latency_seconds if case.rate_hz else plan.seconds
                runs[case].append(stage.run(pairs[case], seconds, rate_hz=case.rate_hz))
                plan.advance()
        stage.end(list(pairs.values()))
        return runs


def _rows(where: str, case: Case, runs: list[Run], against: Case | None, others: list[Run]) -> list[Row]:
    beside = {
        **details(runs),
        "memcpy_us": quartiles(_us(runs, "beyond_memcpy_ns"))[1],
        "memcpy_p99_us": quartiles(_us(runs, "beyond_memcpy_p99_ns"))[1],
    }
    return [
        row(
            f"{where}, {percent}",
            "us",
            _us(runs, f"beyond_{percent}_ns"),
            against=None if against is None else against.label,
            others=[] if against is None else _us(others, f"beyond_{percent}_ns"),
            target=target if case.has_target else None,
            details=beside,
        )
        for percent, target in (("p50", QUICK), ("p99", SELDOM_SLOW))
    ]


def _us(runs: list[Run], name: str) -> list[float]:
    return [run.more[name] / 1e3 for run in runs]
