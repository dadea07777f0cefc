"""F9: every published frame that a consumer was attached for is delivered or counted, in every run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from faultlib.experiment import Bench, Context, Outcome
from faultlib.stacks import DEFAULT_PERIOD_MS, StackProcess
from tensor_pool.testing import ChildProcess, check_accounting, check_no_bad_frames, read_events
from tensor_pool.testing.events import TOTALS

RUNS = 200
CONSUMERS = 2
NBYTES = 16 << 10
# a stream of each size of ring
STREAMS = ((10_000, 4), (10_001, 8), (10_002, 32), (10_003, 128))


class AccountingIdentity:
    """Random pauses, overruns, aborted claims, new epochs; two consumers that read in every way; the producer's own count beside theirs."""

    name = "F9"
    what = "accounting identity"

    def run(self, context: Context) -> Outcome:
        choice = random.Random(context.seed)  # noqa: S311 - to be repeated, not to be secret
        runs = context.count(RUNS)
        sums = dict.fromkeys(("epochs", "totals", "accepted", "seqs", "losses"), 0)
        causes = dict.fromkeys(("delivered", "skipped", "gap", "late", "invalid", "unseen"), 0)
        problems: list[str] = []
        with context.bench("F9") as bench:
            StackProcess(bench, announce_period_ms=200, lease_interval_ms=DEFAULT_PERIOD_MS)
            producer = bench.harness.python("producer", "faultlib.workers:random_producer_process", json.dumps({"nbytes": NBYTES}))
            consumers = [
                bench.harness.python(f"consumer-{number}", "faultlib.workers:random_consumer_process", json.dumps({"nbytes": NBYTES}))
                for number in range(CONSUMERS)
            ]
            for worker in (producer, *consumers):
                worker.wait_for_message(event="connected")
            for run in range(runs):
                context.progress(run / runs, f"run {run} of {runs}")
                found, figures = _one_run(bench, producer, consumers, run, choice, causes)
                problems += [f"run {run}: {problem}" for problem in found]
                for name in sums:
                    sums[name] += figures.get(name, 0)
            for worker in (producer, *consumers):
                worker.end_of_input()
                worker.expect_exit(0)
            if problems:
                bench.harness.keep_evidence()
        void = [] if causes["gap"] else ["no gap occurred"]
        return Outcome({"runs": runs, "histories": runs * CONSUMERS, **sums, **causes}, problems, void)


def _one_run(
    bench: Bench, producer: ChildProcess, consumers: list[ChildProcess], run: int, choice: random.Random, causes: dict[str, int]
) -> tuple[list[str], dict[str, int]]:
    """One producer's life (or two) beside two consumers. Who comes first is random."""
    stream_id, slots = choice.choice(STREAMS)
    logs = [bench.log(f"run-{run}-{number}") for number in range(CONSUMERS + 1)]
    orders = [
        {"order": "run", "run": run, "stream_id": stream_id, "slots": slots, "seed": choice.getrandbits(32), "log": str(log)}
        for log in logs
    ]
    # a consumer that was there first is there from seq 0 on; one that comes later counts from what it finds
    workers = list(zip((producer, *consumers), orders, strict=True))
    choice.shuffle(workers)
    for worker, order in workers:
        worker.send(order)
    for worker, _ in workers:
        worker.wait_for_message(event="attached", run=run)
    producer.send({"order": "go"})
    producer.wait_for_message(event="published", run=run)
    for consumer in consumers:
        consumer.send({"order": "finish"})
    for consumer in consumers:
        consumer.wait_for_message(event="read", run=run)
    producer.send({"order": "close"})
    producer.wait_for_message(event="closed", run=run)
    return _judge(logs, causes)


def _judge(logs: list[Path], causes: dict[str, int]) -> tuple[list[str], dict[str, int]]:
    published = list(read_events(logs[0]))
    last_epoch = max(event.epoch for event in published)
    problems: list[str] = []
    figures: dict[str, Any] = {}
    for number, log in enumerate(logs[1:]):
        history = list(read_events(log))
        for event in history:
            if event.event == TOTALS:
                for cause in causes:
                    causes[cause] += event.more[cause]
        accounting = check_accounting(history, published)
        bytes_verdict = check_no_bad_frames(published, history)
        problems += [f"consumer {number}: {problem}" for problem in (*accounting.problems, *bytes_verdict.problems)]
        if not any(event.event == TOTALS and event.epoch == last_epoch for event in history):
            problems.append(f"consumer {number} never mapped epoch {last_epoch}, the last one that was published")
        for name, figure in accounting.figures.items():
            figures[name] = figures.get(name, 0) + figure
    if not problems:
        for log in logs:
            log.unlink()
    return problems, figures
