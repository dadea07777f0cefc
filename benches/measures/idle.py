"""What a stack takes when nothing happens: media driver, SHM driver, one producer, one consumer that waits."""

from __future__ import annotations

import time
from typing import Final

import tensor_pool as tp
from benches.figures import Row, Target, row
from benches.plan import Plan
from benches.stage import cpu_s, open_stage
from benches.worker import say

STREAM: Final = 10_000
QUIET: Final = Target("median", "<", 3.0)
# everything that comes once a second comes as often in every round
SECONDS: Final = 2.0
# what attaching has to do is done by then, and who rests longer when nothing happens does
SETTLED_S: Final = 3.0
LIMIT_S: Final = 60.0


def producer() -> int:
    """A producer that publishes nothing, until its input ends."""
    import sys

    with tp.connect() as session, session.producer(STREAM, shape=(512, 640), dtype="uint16"):
        say({"event": "ready"})
        sys.stdin.read()
    return 0


def consumer() -> int:
    """A consumer that waits for a frame; whoever started it ends it."""
    with tp.connect() as session, session.consumer(STREAM) as waiting:
        say({"event": "ready"})
        waiting.read()
    return 0


class Idle:
    """Processor time of the three processes, in all."""

    name = "idle"

    def steps(self, plan: Plan) -> int:
        return plan.rounds

    def run(self, plan: Plan) -> list[Row]:
        shares: dict[str, list[float]] = {"stack": [], "producer": [], "consumer": []}
        with open_stage() as stage:
            children = {"stack": stage.start_stack()}
            for name in ("producer", "consumer"):
                children[name] = stage.harness.python(name, f"benches.measures.idle:{name}")
                children[name].wait_for_message(LIMIT_S, event="ready")
            plan.say("idle: starting")
            time.sleep(SETTLED_S)
            for _ in range(plan.rounds):
                plan.say("idle: nobody publishes")
                before = {name: (time.monotonic(), cpu_s(child)) for name, child in children.items()}
                time.sleep(SECONDS)
                for name, child in children.items():
                    began_s, took_s = before[name]
                    shares[name].append((cpu_s(child) - took_s) / (time.monotonic() - began_s) * 100)
                plan.advance()
        rows = [row(f"idle: {name}", "% of a core", values) for name, values in shares.items()]
        in_all = [sum(values) for values in zip(*shares.values(), strict=True)]
        return [row("idle: stack, producer and waiting consumer", "% of a core", in_all, target=QUIET), *rows]
