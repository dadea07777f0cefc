"""What a publish takes beyond its memcpy: array checks, slot header, descriptor, and the wake of a reader that waits."""

from __future__ import annotations

from typing import Final

from benches.figures import Row, Target, quartiles, row
from benches.plan import SIZES, Plan
from benches.stage import Run, Wanted, open_stage

RATE_HZ: Final = 1000
SLOTS: Final = 64
MEASURED: Final = ("8 KiB", "640 KiB")
QUICK: Final = Target("median", at_most=2.0)
SELDOM_SLOW: Final = Target("median", at_most=10.0)


class PublishCost:
    """At 1 kHz, with a reader of another process waiting for every frame, and as fast as it goes, with a reader that polls."""

    name = "publish"

    def steps(self, plan: Plan) -> int:
        return 2 * len(MEASURED) * plan.rounds

    def run(self, plan: Plan) -> list[Row]:
        rows: list[Row] = []
        for label in MEASURED:
            with open_stage() as stage:
                plan.say(f"publish beyond its memcpy, {label}: starting")
                stage.start_stack()
                waiting, polling = stage.pairs(
                    [
                        Wanted("waiting", "ours", SIZES[label], SLOTS, waits=True, writer="ours_timed"),
                        Wanted("polling", "ours", SIZES[label], SLOTS, writer="ours_timed"),
                    ]
                )
                at_rate: list[Run] = []
                at_once: list[Run] = []
                for _ in range(plan.rounds):
                    plan.say(f"publish beyond its memcpy, {label}")
                    at_rate.append(stage.run(waiting, plan.latency_seconds, rate_hz=RATE_HZ))
                    plan.advance()
                    at_once.append(stage.run(polling, plan.seconds))
                    plan.advance()
                stage.end([waiting, polling])
            rows += _rows(f"publish beyond its memcpy, {label}, 1 kHz, reader waits", at_rate)
            # of a large frame the polling reader slows the copy itself down, by holding the lines of the ring: no target there
            rows += _rows(f"publish beyond its memcpy, {label}, as fast as it goes", at_once, has_target=label == "8 KiB")
        return rows


def _rows(where: str, runs: list[Run], *, has_target: bool = True) -> list[Row]:
    def figures(name: str) -> list[float]:
        return [run.more[name] / 1e3 for run in runs]

    beside = {"memcpy_us": quartiles(figures("beyond_memcpy_ns"))[1]}
    return [
        row(f"{where}, p50", "us", figures("beyond_p50_ns"), target=QUICK if has_target else None, details=beside),
        row(f"{where}, p99", "us", figures("beyond_p99_ns"), target=SELDOM_SLOW if has_target else None, details=beside),
    ]
