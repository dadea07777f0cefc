"""F14: no message, however damaged, makes a decoder do anything but give a message or refuse it once, quickly and in bounded memory."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

import tensor_pool as tp
from faultlib.experiment import ROOT, Bench, Context, Outcome
from faultlib.orders import Orders, say, settings
from faultlib.sanitized import fuzz_native
from faultlib.stacks import StackProcess
from tensor_pool import _native
from tensor_pool.errors import ProtocolError
from tensor_pool.runtime import find_stack
from tensor_pool.sbe import codec, control, driver
from tensor_pool.testing import check_frame, stamp_frame
from tensor_pool.transport import TransportClient, exclusive_channel

INPUTS = 100_000
TARGETS_NEEDED = 16
TRACED_INPUTS = 4_000
MEASURED_INPUTS = 300
LIVE_MESSAGES = 20_000
# of these, so many one by one: two counters for one request would make up for none for another
LIVE_ONE_BY_ONE = 300
SLOWEST_S = 1.0
COVERAGE_NEEDED = 0.9
ALLOCATION_BASE_BYTES = 64 << 10
ALLOCATION_PER_BYTE = 64
RSS_GROWTH_MIB = 64
STREAM_ID = 4242
HONEST_BYTES = 4096
# two seconds of frames: a reader whom a busy machine keeps waiting has lost nothing to the damaged requests
HONEST_SLOTS = 1024
WORKERS = 2


class CodecFuzz:
    """Damaged known answers to every decoder in other processes, and damaged requests to a running driver that goes on serving others."""

    name = "F14"
    what = "SBE fuzz"

    def run(self, context: Context) -> Outcome:
        inputs = context.count(INPUTS)
        with context.bench("F14") as bench:
            problems, live = _fuzz_a_running_driver(bench, context)
            context.progress(0.1, "the native decoders under AddressSanitizer")
            native_problems, void, native = fuzz_native(bench, context, inputs)
            problems += native_problems
            options = {"root": str(ROOT), "seed": context.seed, "inputs": inputs, "workers": WORKERS}
            workers = [
                bench.harness.python(f"fuzzer-{number}", "faultlib.f14_codec_fuzz:fuzz_process", json.dumps({**options, "number": number}))
                for number in range(WORKERS)
            ]
            while any(worker.is_running for worker in workers):
                done = sum(message["event"] == "target" for worker in workers for message in worker.messages())
                context.progress(min(done / 23, 1.0), f"{done} decoders")
                time.sleep(0.5)
            for worker in workers:
                worker.expect_exit(0)
            targets = [message for worker in workers for message in worker.messages() if message["event"] == "target"]
            ends = [message for worker in workers for message in worker.messages() if message["event"] == "end"]
        problems += [f"{target['name']}: {problem}" for target in targets for problem in target["problems"]]
        growth_mib = max(end["rss_growth_mib"] for end in ends)
        if growth_mib > RSS_GROWTH_MIB:
            problems.append(f"memory grew by {growth_mib} MiB")
        executed, lines = (sum(target[key] for target in targets) for key in ("lines_executed", "lines"))
        if len(targets) < TARGETS_NEEDED:
            void.append(f"{len(targets)} decoders were fuzzed, {TARGETS_NEEDED} are needed")
        if executed < COVERAGE_NEEDED * lines:
            void.append(f"{executed} of {lines} lines of the decoders were reached")
        figures = {
            "targets": len(targets),
            "inputs": sum(target["inputs"] for target in targets),
            "accepted": sum(target["accepted"] for target in targets),
            "refused": sum(target["refused"] for target in targets),
            "slowest_us": max(target["slowest_us"] for target in targets),
            "largest_allocation_bytes": max(target["largest_allocation_bytes"] for target in targets),
            "rss_growth_mib": growth_mib,
            "decoder_lines": lines,
            "decoder_lines_reached": executed,
            **native,
            **live,
        }
        return Outcome(figures, problems, void)


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged(seeds: list[bytes], choice: random.Random, count: int, *, keep: slice = slice(0, 0)) -> Iterator[bytes]:
    """Known answers with flipped bits, cut ends, odd numbers, doubled or swapped parts. What `keep` names stays as it was."""
    odd = [bytes(width) for width in (1, 2, 4, 8)] + [b"\xff" * width for width in (1, 2, 4, 8)]
    odd += [value.to_bytes(4, "little") for value in (0x7FFFFFFF, 0x80000000, 1 << 30, (1 << 30) + 1, 65534, 65535)]
    for _ in range(count):
        original = choice.choice(seeds)
        data = bytearray(original)
        for _ in range(choice.choice((0, 1, 1, 2, 3, 8))):
            position = choice.randrange(len(data) + 1)
            kind = choice.randrange(6)
            if kind == 0 and position < len(data):
                data[position] ^= 1 << choice.randrange(8)
            elif kind == 1:
                del data[position:]
            elif kind == 2:
                patch = choice.choice(odd)
                data[position : position + len(patch)] = patch
            elif kind == 3:
                data[position:position] = choice.randbytes(choice.choice((1, 2, 4, 16, 200)))
            elif kind == 4:
                other = choice.choice(seeds)
                data[position:] = other[choice.randrange(len(other) + 1) :]
            elif position < len(data):
                data[position] = choice.randrange(256)
        if keep.stop:
            data = data if len(data) >= 8 else bytearray(original[:8])
            data[keep] = original[keep]
        yield bytes(data)


# --- decoders in a process of their own --------------------------------------------------------------------------------


def fuzz_process() -> None:
    """Every second decoder. Reports each as soon as it is done."""
    options = settings()
    sys.path.insert(0, options["root"])
    from tests.vectors.known_answers import decode_with, decoders, encode, load_known_answers

    answers = load_known_answers()
    names = list(decoders())[options["number"] :: options["workers"]]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in names:
        message_class = decoders()[name]
        seeds = [answer.data for answer in answers if answer.message_class is message_class]
        # a message that is only part of another has no answers of its own
        seeds = seeds or [answer.data[64:256] for answer in answers if answer.message == "SlotHeader"]
        choice = random.Random(f"{options['seed']}-{name}")  # noqa: S311 - to be repeated, not to be secret
        fuzzed = _Fuzzed(lambda data, kind=message_class: decode_with(kind, data), encode)  # type: ignore[misc]
        say("target", name=name, **fuzzed.run(message_class, seeds, choice, options["inputs"]))
    growth_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    say("end", rss_growth_mib=round(growth_kib / 1024, 1))


class _Fuzzed:
    """One decoder under fire."""

    def __init__(self, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> None:
        self._decode = decode
        self._encode = encode
        self._problems: list[str] = []
        self._accepted = 0
        self._refused = 0

    def run(self, message_class: type, seeds: list[bytes], choice: random.Random, inputs: int) -> dict[str, Any]:
        slowest_s = 0.0
        for data in damaged(seeds, choice, inputs):
            began_s = time.perf_counter()
            self._check(data)
            slowest_s = max(slowest_s, time.perf_counter() - began_s)
        if slowest_s > SLOWEST_S:
            self._problems.append(f"one input took {slowest_s:.1f} s")
        largest_bytes = self._allocations(damaged(seeds, choice, MEASURED_INPUTS))
        reached, lines = _lines_reached(message_class, self._check, damaged(seeds, choice, TRACED_INPUTS))
        return {
            "inputs": inputs,
            "accepted": self._accepted,
            "refused": self._refused,
            "slowest_us": round(slowest_s * 1e6),
            "largest_allocation_bytes": largest_bytes,
            "lines_executed": reached,
            "lines": lines,
            "problems": self._problems[:5],
        }

    def _check(self, data: bytes) -> None:
        try:
            message = self._decode(data)
        except ProtocolError as refusal:
            self._refused += 1
            if not refusal.name or not refusal.rule:
                self._problems.append(f"a refusal names no message or rule: {refusal} of {data.hex()}")
            return
        except Exception as error:  # noqa: BLE001 - any other is a finding
            self._problems.append(f"{type(error).__name__}: {error} of {data.hex()}")
            return
        self._accepted += 1
        if self._decode(self._encode(message)) != message:
            self._problems.append(f"written and read again it is another message: {data.hex()}")

    def _allocations(self, inputs: Iterator[bytes]) -> int:
        largest = 0
        tracemalloc.start()
        try:
            for data in inputs:
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                self._check(data)
                used = tracemalloc.get_traced_memory()[1] - before
                largest = max(largest, used)
                if used > ALLOCATION_BASE_BYTES + ALLOCATION_PER_BYTE * len(data):
                    self._problems.append(f"{used} bytes were allocated for a message of {len(data)}")
        finally:
            tracemalloc.stop()
        return largest


def _lines_reached(message_class: type, check: Callable[[bytes], None], inputs: Iterator[bytes]) -> tuple[int, int]:
    """How many lines of the functions that read this message were executed, and how many there are."""
    module = sys.modules[message_class.__module__]
    codes = set(_reading_code(message_class, module))
    lines = {(code, line) for code in codes for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno}
    reached: set[tuple[CodeType, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code not in codes:
            return None
        if event == "line":
            reached.add((frame.f_code, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        for data in inputs:
            check(data)
    finally:
        sys.settrace(None)
    return len(reached & lines), len(lines)


def _reading_code(message_class: type, module: ModuleType) -> Iterator[CodeType]:
    """The functions of this class, and of the groups and the codec's helpers it names, that read bytes."""
    for name in ("decode", "decode_body", "_read", "_read_body"):
        function = vars(message_class).get(name)
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is None:
            continue
        yield code
        for other in code.co_names:
            group = vars(module).get(other)
            if isinstance(group, type) and group is not message_class and not hasattr(group, "TEMPLATE_ID"):
                yield from _reading_code(group, module)
            helper = vars(codec).get(other)
            if isinstance(helper, FunctionType):
                yield helper.__code__


# --- a running driver under fire ---------------------------------------------------------------------------------------


def _fuzz_a_running_driver(bench: Bench, context: Context) -> tuple[list[str], dict[str, Any]]:
    """Damaged requests on its control stream: each raises exactly one counter, and an honest pair of clients loses nothing."""
    stack = StackProcess(bench)
    honest = _Honest(bench)
    before = _request_counters(stack)
    messages = context.count(LIVE_MESSAGES)
    options = {"root": str(ROOT), "seed": context.seed, "messages": messages}
    sender = bench.harness.python("sender", "faultlib.f14_codec_fuzz:sender_process", json.dumps(options))
    miscounted = 0
    for number in range(min(LIVE_ONE_BY_ONE, messages)):
        sender.send({"order": "next", "number": number})
        sender.wait_for_message(event="sent", number=number)
        miscounted += _wait_for_counters(stack, before + number + 1) != before + number + 1
    sender.send({"order": "rest"})
    sender.expect_exit(0, timeout_s=120)
    counted = _wait_for_counters(stack, before + messages)
    problems, honest_frames = honest.ended()
    if counted - before != messages or miscounted:
        problems.append(
            f"{messages} damaged requests raised the driver's counters by {counted - before}; {miscounted} of the first not by one"
        )
    if not stack.process.is_running:
        problems.append(f"the driver process ended with {stack.process.returncode}")
    return problems, {"live_messages": messages, "live_counted": counted - before, "honest_frames": honest_frames}


class _Honest:
    """A producer and a consumer, a process each, who are to notice nothing of it all."""

    def __init__(self, bench: Bench) -> None:
        self._producer = bench.harness.python("honest-producer", "faultlib.f14_codec_fuzz:honest_producer_process", "{}")
        self._producer.wait_for_message(event="attached")
        self._consumer = bench.harness.python("honest-consumer", "faultlib.f14_codec_fuzz:honest_consumer_process", "{}")
        self._consumer.wait_for_message(event="attached")
        self._producer.send({"order": "publish"})

    def ended(self) -> tuple[list[str], int]:
        """What the two suffered, and how many frames went from one to the other."""
        self._producer.send({"order": "stop"})
        published = self._producer.wait_for_message(event="published")
        self._consumer.send({"order": "stop"})
        read = self._consumer.wait_for_message(event="read")
        problems = []
        if not 0 < published["frames"] == read["frames"]:
            problems.append(f"the honest producer published {published['frames']} frames, the honest consumer read {read['frames']}")
        if read["bad"]:
            problems.append(f"the honest consumer read {read['bad']} bad frames")
        if published["reattached"] or read["reattached"]:
            problems.append(f"leases were lost: {published['reattached']} of the producer, {read['reattached']} of the consumer")
        return problems, read["frames"]


def _wait_for_counters(stack: StackProcess, expected: int) -> int:
    """What they are once they are that many at least, or after a while."""
    deadline_s = time.monotonic() + 20
    while (counted := _request_counters(stack)) < expected and time.monotonic() < deadline_s:
        time.sleep(0.002)
    return counted


def _request_counters(stack: StackProcess) -> int:
    """Everything a request can end as, but for the keepalives and hellos of the honest clients that were accepted."""
    with stack.admin() as admin:
        counters: dict[str, int] = admin.status()["counters"]
    prefixes = ("attach_requests_", "detach_requests_")
    return sum(value for name, value in counters.items() if name.startswith(prefixes)) + sum(
        counters[name] for name in ("keepalives_unmatched", "hellos_unknown_stream", "messages_malformed")
    )


def sender_process() -> None:
    """Damaged requests of the kinds that a driver listens to: one at each order `next`, and then the rest flat out."""
    options = settings()
    orders = Orders()
    sys.path.insert(0, options["root"])
    from tests.vectors.known_answers import load_known_answers

    kinds = (driver.ShmAttachRequest, driver.ShmDetachRequest, driver.ShmLeaseKeepalive, control.ConsumerHello)
    seeds = [answer.data for answer in load_known_answers() if answer.message_class in kinds]
    choice = random.Random(options["seed"])  # noqa: S311 - to be repeated, not to be secret
    stack = find_stack(None, os.environ)
    with TransportClient(stack.aeron_dir, name="fuzz") as transport:
        publication = transport.publish(exclusive_channel(stack.control_channel, "1m"), stack.control_stream_id)
        while not publication.is_connected:
            time.sleep(0.01)
        # template and schema stay, so that the driver has to look at every one
        one_by_one = True
        for data in damaged(seeds, choice, options["messages"], keep=slice(2, 6)):
            order = orders.next() if one_by_one else None
            one_by_one = order is not None and order["order"] == "next"
            while publication.offer(data[: publication.max_message_length]) in (_native.BACK_PRESSURED, _native.NOT_CONNECTED):
                time.sleep(0.001)
            if order is not None and one_by_one:
                say("sent", number=order["number"])


def honest_producer_process() -> None:
    """A frame every two milliseconds from the order `publish` to the order `stop`; then its ring stays for whoever still reads."""
    orders = Orders()
    with tp.connect() as session, session.producer(STREAM_ID, shape=HONEST_BYTES, slots=HONEST_SLOTS) as producer:
        say("attached")
        orders.wait_for("publish")
        frame = np.empty(HONEST_BYTES, dtype=np.uint8)
        frames = 0
        while not orders.stop.wait(0.002):
            stamp_frame(frame, frames)
            producer.publish(frame)
            frames += 1
        say("published", frames=frames, reattached=producer.stats.reattached)
        while orders.next() is not None:
            pass


def honest_consumer_process() -> None:
    """Reads every frame; from the order `stop` on what is there, to its end."""
    orders = Orders()
    with tp.connect() as session, session.consumer(STREAM_ID, wait=10.0) as consumer:
        say("attached")
        frames = bad = 0
        while True:
            is_last_look = orders.stop.is_set()
            frame = consumer.read(0.2)
            if frame is not None:
                frames += 1
                bad += not check_frame(frame.array, frame.seq)
            elif is_last_look:
                break
        say("read", frames=frames, bad=bad, reattached=consumer.stats.reattached)
