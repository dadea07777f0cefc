"""A process that is one writer or one reader. A line of JSON comes for each run, a line goes back with what came of it."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benches import native
from benches.agreement import Order, Reader, Setup, Writer


def main() -> int:
    setup = Setup.from_json(sys.argv[1])
    contestant = importlib.import_module(f"benches.contestants.{setup.contestant}")
    if setup.role == "writer":
        return _serve(_writer(contestant.Writer(setup)))
    return _serve(_reader(contestant.Reader(setup), setup.nbytes))


Run = Callable[[Order], dict[str, Any]]


def _writer(writer: Writer) -> Iterator[Run]:
    source = writer.make_source()

    def run(order: Order) -> dict[str, Any]:
        source.start(order.begin_ns, order.end_ns, order.rate_hz)
        more = writer.write(source)
        offered, dropped = source.counts()
        return {"offered": offered, "dropped": dropped, **more}

    try:
        yield run
    finally:
        writer.close()


def _reader(reader: Reader, nbytes: int) -> Iterator[Run]:
    tally = native.module().Tally(nbytes)

    def run(order: Order) -> dict[str, Any]:
        tally.start(order.begin_ns, order.end_ns)
        reader.read(tally, order.access)
        return tally.finish()

    try:
        yield run
    finally:
        reader.close()


def _serve(worker: Iterator[Run]) -> int:
    run = next(worker)
    say({"event": "ready"})
    for line in sys.stdin:
        order = Order.from_list(json.loads(line))
        began_s, cpu_s = time.monotonic(), time.process_time()
        result = run(order)
        shares = {"cpu_s": time.process_time() - cpu_s, "wall_s": time.monotonic() - began_s}
        say({"event": "result", "begin_ns": order.begin_ns, **shares, **result})
    next(worker, None)
    return 0


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
