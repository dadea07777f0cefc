"""F16: our bytes are those of the reference compiler, over a real media driver too, and a second codec accepts and refuses the same."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

from faultlib.experiment import ROOT, Context, Outcome
from faultlib.f14_codec_fuzz import damaged
from faultlib.orders import Orders, say, settings
from faultlib.stacks import StackProcess, held_stream
from tensor_pool import _native
from tensor_pool.errors import ProtocolError
from tensor_pool.runtime import find_stack
from tensor_pool.sbe import codec, control
from tensor_pool.transport import TransportClient, exclusive_channel, subscription_channel

ANSWERS = 128
DAMAGED = 40_000
CHANNEL, STREAM_ID = "aeron:ipc", 7_777
TENSOR_STREAM_ID = 10_000
COPIES = 20
LISTEN_S = 1.0


class Interop:
    """Known answers encoded by one process, carried by Aeron, judged by another; a running driver's own bytes read by a second codec."""

    name = "F16"
    what = "interop with known answers"

    def run(self, context: Context) -> Outcome:
        options = {"root": str(ROOT), "seed": context.seed, "damaged": context.count(DAMAGED), "copies": COPIES}
        with context.bench("F16") as bench:
            StackProcess(bench)
            ring = held_stream(bench, TENSOR_STREAM_ID)
            receiver = bench.harness.python("receiver", "faultlib.f16_interop:receiver_process", json.dumps(options))
            receiver.wait_for_message(event="listening")
            context.progress(0.1, "known answers over Aeron")
            sender = bench.harness.python("sender", "faultlib.f16_interop:sender_process", json.dumps(options))
            sent = sender.wait_for_message(event="sent")
            received = receiver.wait_for_message(event="received")
            context.progress(0.4, "the driver's own bytes")
            listener = bench.harness.python("listener", "faultlib.f16_interop:listener_process", json.dumps({**options, "ring": str(ring)}))
            heard = listener.wait_for_message(event="heard")
            context.progress(0.6, "two codecs on damaged bytes")
            judge = bench.harness.python("judge", "faultlib.f16_interop:differential_process", json.dumps(options))
            judged = judge.wait_for_message(event="judged", timeout_s=300)
        problems = [*sent["problems"], *received["problems"], *heard["problems"], *judged["problems"]]
        if sent["answers"] != ANSWERS:
            problems.append(f"there are {sent['answers']} known answers, {ANSWERS} belong to the project")
        if sent["equal"] + sent["only_read"] + sent["refused"] != ANSWERS:
            problems.append(
                f"of {ANSWERS} known answers {sent['equal']} were written again, {sent['only_read']} only read, {sent['refused']} refused"
            )
        if not heard["announces"]:
            problems.append("no announce of the driver was heard")
        figures = {
            "known_answers": sent["answers"],
            "written_equal": sent["equal"],
            "only_read": sent["only_read"],
            "refused_by_decision": sent["refused"],
            "carried_by_aeron": received["equal"],
            "driver_announces_read": heard["announces"],
            "driver_superblocks_read": heard["superblocks"],
            "damaged_compared": judged["compared"],
            "damaged_refused_by_both": judged["refused"],
        }
        void = (
            [] if judged["refused"] and judged["compared"] > judged["refused"] else ["the damaged bytes were all accepted or all refused"]
        )
        return Outcome(figures, problems, void)


def _known_answers(options: dict[str, Any]) -> Any:
    sys.path.insert(0, options["root"])
    from tests.vectors import known_answers

    return known_answers


def sender_process() -> None:
    """Encodes every answer from its values and compares with the bytes of the reference compiler; then sends what it encoded."""
    options = settings()
    known = _known_answers(options)
    problems: list[str] = []
    messages: list[bytes] = []
    answers = known.load_known_answers()
    equal = only_read = refused = 0
    for answer in answers:
        if answer.key in known.REFUSED:
            problems += _refusal_problems(known, answer)
            refused += 1
            continue
        message = known.decode_with(answer.message_class, answer.data)
        written = known.encode(message)
        if answer.decode_only or answer.key in known.READ_AS_ABSENT:
            # older peers write these, and we another form
            only_read += 1
        elif written == answer.data and known.encode(known.build(answer.message_class, answer.fields)) == answer.data:
            equal += 1
        else:
            problems.append(f"{answer}: wrote {written.hex()}, the reference wrote {answer.data.hex()}")
        if answer.has_message_header:
            messages.append(answer.data)
    stack = find_stack(None, os.environ)
    with TransportClient(stack.aeron_dir, name="interop-sender") as transport:
        publication = transport.publish(exclusive_channel(CHANNEL, "1m"), STREAM_ID)
        while not publication.is_connected:
            time.sleep(0.005)
        for _ in range(options["copies"]):
            for data in messages:
                _offer(publication, data)
        _offer(publication, b"end")
        say("sent", answers=len(answers), equal=equal, only_read=only_read, refused=refused, problems=problems)
        Orders().stop.wait()


def _refusal_problems(known: Any, answer: Any) -> list[str]:
    try:
        known.decode_with(answer.message_class, answer.data)
    except ProtocolError as refusal:
        expected = known.REFUSED[answer.key]
        return [] if refusal.rule == expected else [f"{answer}: refused by rule {refusal.rule}, expected {expected}"]
    return [f"{answer}: accepted, the decision says refused"]


def _offer(publication: _native.Publication, data: bytes) -> None:
    while publication.offer(data) < 0:
        time.sleep(0.001)


def receiver_process() -> None:
    """What Aeron carried is what the reference compiler wrote, and both codecs read the same values from it."""
    options = settings()
    known = _known_answers(options)
    from tests.property.sbe.reference import load_schemas

    schemas = load_schemas()
    expected = [answer for answer in known.load_known_answers() if answer.has_message_header and answer.key not in known.REFUSED]
    problems: list[str] = []
    stack = find_stack(None, os.environ)
    with TransportClient(stack.aeron_dir, name="interop-receiver") as transport:
        subscription = transport.subscribe(subscription_channel(CHANNEL), STREAM_ID)
        say("listening")
        received: list[bytes] = []
        while not received or received[-1] != b"end":
            received += [message for message, _ in subscription.poll()]
        del received[-1]
    copies = expected * options["copies"]
    if len(received) != len(copies):
        problems.append(f"{len(received)} messages arrived, {len(copies)} were sent")
    equal = 0
    for data, answer in zip(received, copies, strict=False):
        ours = known.plain(known.decode_with(answer.message_class, data))
        theirs = schemas[answer.schema].decode(answer.message, data)
        if data == answer.data and ours == theirs:
            equal += 1
        else:
            problems.append(f"{answer}: arrived as {data.hex()}, read as {ours} and {theirs}")
    say("received", equal=equal, problems=problems[:5])


def listener_process() -> None:
    """What a running driver says and writes into shared memory, read by the codec that knows only the schemas."""
    options = settings()
    known = _known_answers(options)
    from tests.property.sbe.reference import load_schemas

    schemas = load_schemas()
    problems: list[str] = []
    announces: list[dict[str, Any]] = []
    stack = find_stack(None, os.environ)
    kind = (control.SCHEMA_ID, control.ShmPoolAnnounce.TEMPLATE_ID)
    with TransportClient(stack.aeron_dir, name="interop-listener") as transport:
        subscription = transport.subscribe(subscription_channel(stack.announce_channel), stack.announce_stream_id)
        end_s = time.monotonic() + LISTEN_S
        while time.monotonic() < end_s:
            for data, _ in subscription.poll():
                header = codec.peek(data)
                if (header.schema_id, header.template_id) != kind:
                    continue
                theirs = schemas[control.SCHEMA_ID].decode("ShmPoolAnnounce", data)
                if known.plain(control.ShmPoolAnnounce.decode(data)) != theirs:
                    problems.append(f"the codecs read an announce differently: {data.hex()}")
                announces.append(theirs)
            time.sleep(0.005)
    with open(options["ring"], "rb") as ring:
        superblock = schemas[control.SCHEMA_ID].decode("ShmRegionSuperblock", ring.read(64))
    for name, field in (("stream_id", "stream_id"), ("epoch", "epoch"), ("layout_version", "layout_version"), ("nslots", "header_nslots")):
        if announces and superblock[name] != announces[-1][field]:
            problems.append(f"the superblock says {name} {superblock[name]}, the announce {announces[-1][field]}")
    say("heard", announces=len(announces), superblocks=1, problems=problems[:5])


def differential_process() -> None:
    """Both codecs on the same damaged bytes: the same values, or both refuse."""
    options = settings()
    known = _known_answers(options)
    from tests.property.sbe.reference import RefusedError, load_schemas

    schemas = load_schemas()
    answers = known.load_known_answers()
    choice = random.Random(options["seed"])  # noqa: S311 - to be repeated, not to be secret
    classes = {answer.message_class for answer in answers}
    problems: list[str] = []
    compared = refused = 0
    for message_class in sorted(classes, key=lambda each: (each.SCHEMA_ID, each.TEMPLATE_ID)):
        seeds = [answer.data for answer in answers if answer.message_class is message_class]
        for data in damaged(seeds, choice, options["damaged"] // len(classes)):
            compared += 1
            try:
                theirs = schemas[message_class.SCHEMA_ID].decode(message_class.__name__, data)
            except RefusedError:
                theirs = None
                refused += 1
            try:
                ours = known.plain(known.decode_with(message_class, data))
            except ProtocolError:
                ours = None
            if ours != theirs:
                problems.append(f"{message_class.__name__}: {data.hex()} is {ours} for us and {theirs} for the reference")
    say("judged", compared=compared, refused=refused, problems=problems[:5])
