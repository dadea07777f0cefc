"""The limit: what one thread of this machine copies into a ring, and adds up out of it."""

from __future__ import annotations

from typing import Final

from benches import native
from benches.figures import Row, row
from benches.plan import DEPTHS, SIZES, Plan
from benches.stage import open_stage

GIB: Final = float(1 << 30)


class Limit:
    """Nothing that moves these bytes can be faster. The ring is shared memory, made and touched as everybody's."""

    name = "memcpy"

    def steps(self, plan: Plan) -> int:
        return plan.rounds * len(SIZES) * len(DEPTHS)

    def run(self, plan: Plan) -> list[Row]:
        cases = [(label, slots) for label in SIZES for slots in DEPTHS]
        figures: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
        with open_stage() as stage:
            rings = {(label, slots): native.module().CoreRing(stage.new_directory(), SIZES[label], slots) for label, slots in cases}
            for _ in range(plan.rounds):
                for case in cases:
                    plan.say(f"memcpy: {case[0]} x {case[1]}")
                    figures[case].append(rings[case].limit(plan.seconds / 2))
                    plan.advance()
        rows = []
        for (label, slots), measured in figures.items():
            rows.append(row(f"limit, {label} x {slots}: memcpy into a ring", "GiB/s", [written / GIB for written, _ in measured]))
            rows.append(row(f"limit, {label} x {slots}: added up out of it", "GiB/s", [read / GIB for _, read in measured]))
        return rows
