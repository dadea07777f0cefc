"""How long it takes to become the producer, or a consumer, of a stream of 64 slots of 1 MiB."""

from __future__ import annotations

import time
from typing import Final

import tensor_pool as tp
from benches.figures import Row, Target, row
from benches.plan import Plan
from benches.stage import open_stage
from benches.worker import say

SLOTS: Final = 64
SLOT_BYTES: Final = 1 << 20
CONSUMER: Final = Target("median", "<=", 30.0)
PRODUCER: Final = Target("median", "<=", 120.0)
FIRST_STREAM: Final = 20_000
LIMIT_S: Final = 60.0


def worker() -> int:
    """A line on standard input for each stream; a line back with how long both took."""
    import sys

    with tp.connect() as writing, tp.connect() as reading:
        say({"event": "ready"})
        for turn, _ in enumerate(sys.stdin):
            began_ns = time.monotonic_ns()
            producer = writing.producer(FIRST_STREAM + turn, shape=(SLOT_BYTES,), dtype="uint8", slots=SLOTS)
            attached_ns = time.monotonic_ns()
            consumer = reading.consumer(FIRST_STREAM + turn)
            joined_ns = time.monotonic_ns()
            consumer.close()
            producer.close()
            say({"event": "attached", "turn": turn, "producer_ns": attached_ns - began_ns, "consumer_ns": joined_ns - attached_ns})
    return 0


class Attach:
    """`session.producer` (making the stream, mapping it, touching its pages) and `session.consumer`, on a stack with its defaults."""

    name = "attach"

    def steps(self, plan: Plan) -> int:
        return plan.rounds

    def run(self, plan: Plan) -> list[Row]:
        producer_ms, consumer_ms = [], []
        with open_stage() as stage:
            stage.start_stack()
            child = stage.harness.python("attach", "benches.measures.attach:worker")
            child.wait_for_message(LIMIT_S, event="ready")
            # the first one pays for imports
            for turn in range(plan.rounds + 1):
                plan.say("attach: 64 slots of 1 MiB")
                child.send(turn)
                took = child.wait_for_message(LIMIT_S, event="attached", turn=turn)
                if turn > 0:
                    producer_ms.append(took["producer_ns"] / 1e6)
                    consumer_ms.append(took["consumer_ns"] / 1e6)
                    plan.advance()
            child.end_of_input()
            child.expect_exit(0)
        return [
            row("attach, 64 x 1 MiB: producer, prefaulted", "ms", producer_ms, target=PRODUCER),
            row("attach, 64 x 1 MiB: consumer", "ms", consumer_ms, target=CONSUMER),
        ]
