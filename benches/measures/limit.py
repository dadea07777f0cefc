"""The limit: what one thread of this machine copies into a ring, and adds up out of it."""

from __future__ import annotations

from typing import Final

from benches import native
from benches.figures import Row, row
from benches.plan import SIZES, Plan

GIB: Final = float(1 << 30)
SLOTS: Final = 64


class Limit:
    """Nothing that moves these bytes can be faster."""

    name = "memcpy"

    def steps(self, plan: Plan) -> int:
        return plan.rounds * len(SIZES)

    def run(self, plan: Plan) -> list[Row]:
        bench = native.module()
        figures: dict[str, list[tuple[float, float]]] = {label: [] for label in SIZES}
        for _ in range(plan.rounds):
            for label, nbytes in SIZES.items():
                plan.say(f"memcpy: {label}")
                figures[label].append(bench.memory_limit(nbytes, SLOTS, plan.seconds / 2))
                plan.advance()
        rows = []
        for label, measured in figures.items():
            rows.append(row(f"limit, {label} x {SLOTS}: memcpy into a ring", "GiB/s", [written / GIB for written, _ in measured]))
            rows.append(row(f"limit, {label} x {SLOTS}: added up out of it", "GiB/s", [read / GIB for _, read in measured]))
        return rows
