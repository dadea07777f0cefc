"""F12: full shared memory ends in `StorageSpaceError` with need, have and a hint: no signal, nothing half-made, and what runs goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensor_pool as tp
from faultlib.experiment import Bench, Context, Outcome
from faultlib.orders import Orders, say, settings
from faultlib.stacks import StackProcess
from tensor_pool.client.consumer import Consumer
from tensor_pool.client.producer import Producer
from tensor_pool.errors import StorageSpaceError, TensorPoolError
from tensor_pool.testing import ChildProcess, check_frame, stamp_frame

MIB = 1 << 20
SIZES_MIB = (4, 16, 50)
SLOTS = 8
FRAMES = 200
# a reader that is further behind than half of the ring goes to the newest frame, and here every one is to be read
BURST = SLOTS // 2
FIRST_STREAM = 10_000


class FullMemory:
    """Tmpfs of three sizes in a mount namespace: too small, filled up, filled by another process, and filled under a running stream."""

    name = "F12"
    what = "shared memory full"

    def run(self, context: Context) -> Outcome:
        with context.bench("F12") as bench:
            options = {"seed": context.seed, "evidence_dir": str(context.evidence_dir)}
            unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
            command = [*unshare, sys.executable, "-m", "tensor_pool.testing.child", "faultlib.f12_full_memory:inside", json.dumps(options)]
            try:
                child = bench.harness.start("namespace", command)
            except FileNotFoundError:
                return Outcome({}, void=["there is no unshare command (package util-linux)"])
            total = len(SIZES_MIB) * len(CASES)
            while child.is_running:
                done = [message for message in child.messages() if message["event"] == "case"]
                context.progress(len(done) / total, f"case {len(done)} of {total}")
                time.sleep(0.3)
            cases = [message for message in child.messages() if message["event"] == "case"]
            refused = [message["words"] for message in child.messages() if message["event"] == "no_namespace"]
            if refused or (not cases and "unshare" in child.stderr()):
                return Outcome({}, void=[f"no tmpfs of our own could be mounted: {(refused or [child.stderr()])[0].strip()}"])
            child.expect_exit(0)
        problems = [f"{case['name']}: {problem}" for case in cases for problem in case["problems"]]
        if len(cases) != total:
            problems.append(f"{len(cases)} of {total} cases were run")
        figures = {
            "cases": len(cases),
            "refusals": sum(len(case["refusals"]) for case in cases),
            "frames_verified": sum(c["verified"] for c in cases),
        }
        if cases and cases[0]["refusals"]:
            figures["example"] = cases[0]["refusals"][0]["words"]
        return Outcome(figures, problems)


# --- inside the namespace --------------------------------------------------------------------------------------------


def inside() -> None:
    """Every case with a tmpfs and a stack of its own."""
    options = settings()
    context = Context(options["seed"], Path(options["evidence_dir"]))
    for size_mib in SIZES_MIB:
        for name, case in CASES.items():
            with context.bench(f"F12-{name}-{size_mib}") as bench:
                mount = bench.directories.root / "tmpfs"
                mount.mkdir()
                done = subprocess.run(  # noqa: S603
                    ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tensor-pool-test", str(mount)],  # noqa: S607
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode != 0:
                    say("no_namespace", words=done.stderr)
                    return
                try:
                    say("case", **asdict_case(case(bench, mount, size_mib * MIB), f"{name}_{size_mib}_mib"))
                finally:
                    bench.harness.close()
                    subprocess.run(["umount", "--lazy", str(mount)], check=True)  # noqa: S603, S607


class Case:
    """What one case found."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount
        self.refusals: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.verified = 0

    def files(self) -> set[str]:
        return {str(path.relative_to(self.mount)) for path in self.mount.rglob("*") if path.is_file()}

    def refused(self, reply: dict[str, Any], before: set[str]) -> None:
        """A reply that has to be a proper refusal which left nothing behind."""
        if reply["event"] != "refused":
            self.problems.append(f"expected a refusal, got {reply}")
            return
        self.refusals.append(reply)
        if reply["error"] != "StorageSpaceError":
            self.problems.append(f"refused with {reply['error']}, not with StorageSpaceError: {reply['words']}")
        elif not 0 <= reply["have_bytes"] < reply["need_bytes"] or not reply["hint"]:
            self.problems.append(f"need {reply['need_bytes']}, have {reply['have_bytes']}, hint {reply['hint']!r}")
        left = self.files() - before
        if left:
            self.problems.append(f"left behind: {sorted(left)}")

    def worked(self, reply: dict[str, Any]) -> None:
        if reply["event"] != "verified":
            self.problems.append(f"expected frames to arrive, got {reply}")
            return
        self.verified += reply["frames"]
        if reply["bad"]:
            self.problems.append(f"{reply['bad']} bad frames")

    def ended(self, *processes: ChildProcess) -> None:
        """No process may have died, by a signal least of all."""
        self.problems += [f"process {process.name} ended with {process.returncode}" for process in processes if not process.is_running]


def asdict_case(case: Case, name: str) -> dict[str, Any]:
    return {"name": name, "problems": case.problems, "refusals": case.refusals, "verified": case.verified}


def _stack(bench: Bench, mount: Path) -> tuple[ChildProcess, _Clients]:
    stack = StackProcess(bench, shm_base_dir=mount)
    return stack.process, _Clients(bench)


class _Worker:
    """A process that does what it is asked, one thing after the other, and says how it went."""

    def __init__(self, bench: Bench, role: str) -> None:
        self.process = bench.harness.python(role, f"faultlib.f12_full_memory:{role}_process", "{}")
        self.process.wait_for_message(event="connected")
        self._number = 0

    def ask(self, order: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        self.process.send({"order": order, "number": self._number, **fields})
        return self.process.wait_for_message(number=self._number)


class _Clients:
    """A process that produces on request, and another that reads what the first has produced."""

    def __init__(self, bench: Bench) -> None:
        self._producer = _Worker(bench, "producer")
        self._consumer = _Worker(bench, "consumer")
        self.processes = (self._producer.process, self._consumer.process)

    def produce(self, stream: int, stream_bytes: int) -> dict[str, Any]:
        """Become the producer of a stream of about that many bytes."""
        return self._producer.ask("produce", stream_id=FIRST_STREAM + stream, nbytes=stream_bytes // SLOTS)

    def verify(self, stream: int) -> dict[str, Any]:
        """Publish and read, over every slot of the ring many times, until a frame is bad. A refusal, if there is one, is the answer."""
        stream_id, bad = FIRST_STREAM + stream, 0
        attached = self._consumer.ask("attach", stream_id=stream_id)
        if attached["event"] != "attached":
            return attached
        for _ in range(FRAMES // BURST):
            published = self._producer.ask("publish", stream_id=stream_id, frames=BURST)
            if published["event"] != "published":
                return published
            read = self._consumer.ask("read", first_seq=published["first_seq"], frames=BURST)
            if read["event"] != "read":
                return read
            bad += read["bad"]
            if bad:
                break
        return {"event": "verified", "frames": FRAMES, "bad": bad}


def _too_small(bench: Bench, mount: Path, size_bytes: int) -> Case:
    """One stream that needs four times what there is."""
    case = Case(mount)
    stack, clients = _stack(bench, mount)
    before = case.files()
    case.refused(clients.produce(0, 4 * size_bytes), before)
    case.ended(stack, *clients.processes)
    return case


def _filled_up(bench: Bench, mount: Path, size_bytes: int) -> Case:
    """Streams of a quarter each until one is refused; the first goes on working."""
    case = Case(mount)
    stack, clients = _stack(bench, mount)
    for stream in range(10):
        before = case.files()
        reply = clients.produce(stream, _power_of_two(size_bytes // 4))
        if reply["event"] == "refused":
            case.refused(reply, before)
            break
    else:
        case.problems.append("nothing was refused")
    case.worked(clients.verify(0))
    case.ended(stack, *clients.processes)
    return case


def _filled_by_another(bench: Bench, mount: Path, size_bytes: int) -> Case:
    """Another process takes the space first; when it has given it back the same request is granted."""
    case = Case(mount)
    stack, clients = _stack(bench, mount)
    filler = _Filler(bench, mount)
    filler.fill()
    before = case.files()
    case.refused(clients.produce(0, _power_of_two(size_bytes // 4)), before)
    filler.give_back()
    reply = clients.produce(0, _power_of_two(size_bytes // 4))
    if reply["event"] != "producing":
        case.problems.append(f"refused although there is space again: {reply}")
    else:
        case.worked(clients.verify(0))
    case.ended(stack, *clients.processes)
    return case


def _filled_mid_flight(bench: Bench, mount: Path, size_bytes: int) -> Case:
    """The last byte is taken under a running stream: its space was reserved, so it goes on; a second stream is refused."""
    case = Case(mount)
    stack, clients = _stack(bench, mount)
    reply = clients.produce(0, _power_of_two(size_bytes // 4))
    if reply["event"] != "producing":
        case.problems.append(f"refused although there is space: {reply}")
        return case
    filler = _Filler(bench, mount)
    filler.fill()
    case.worked(clients.verify(0))
    before = case.files()
    case.refused(clients.produce(1, _power_of_two(size_bytes // 4)), before)
    case.worked(clients.verify(0))
    case.ended(stack, *clients.processes, filler.process)
    return case


CASES: dict[str, Callable[[Bench, Path, int], Case]] = {
    "too_small": _too_small,
    "filled_up": _filled_up,
    "filled_by_another": _filled_by_another,
    "filled_mid_flight": _filled_mid_flight,
}


def _power_of_two(value: int) -> int:
    return 1 << (value.bit_length() - 1)


class _Filler:
    """A process that takes every byte there is."""

    def __init__(self, bench: Bench, mount: Path) -> None:
        self.process = bench.harness.python(
            "filler", "faultlib.f12_full_memory:filler_process", json.dumps({"path": str(mount / "filler")})
        )

    def fill(self) -> None:
        self.process.send({"order": "fill"})
        self.process.wait_for_message(event="full")

    def give_back(self) -> None:
        self.process.send({"order": "give_back"})
        self.process.wait_for_message(event="gone")


def filler_process() -> None:
    path = Path(settings()["path"])
    orders = Orders()
    while (order := orders.next()) is not None:
        if order["order"] == "fill":
            with open(path, "wb", buffering=0) as file:
                try:
                    while file.write(bytes(4096)):
                        pass
                except OSError:
                    say("full", bytes=path.stat().st_size)
        else:
            path.unlink()
            say("gone")


def producer_process() -> None:
    """Becomes the producer of streams and publishes stamped frames, as it is ordered."""
    with tp.connect() as session:
        producers: dict[int, Producer] = {}

        def produce(stream_id: int, nbytes: int) -> dict[str, Any]:
            producers[stream_id] = session.producer(stream_id, shape=nbytes, slots=SLOTS)
            return {"event": "producing"}

        def publish(stream_id: int, frames: int) -> dict[str, Any]:
            first_seq = producers[stream_id].stats.last_seq + 1
            for seq in range(first_seq, first_seq + frames):
                with producers[stream_id].claim() as slot:
                    stamp_frame(slot.array, seq)
            return {"event": "published", "first_seq": first_seq}

        _obey({"produce": produce, "publish": publish})


def consumer_process() -> None:
    """Attaches to a stream (one at a time) and reads, as it is ordered."""
    with tp.connect() as session, ExitStack() as attached:

        def attach(stream_id: int) -> dict[str, Any]:
            nonlocal consumer
            attached.close()
            consumer = attached.enter_context(session.consumer(stream_id, wait=5.0))
            return {"event": "attached"}

        def read(first_seq: int, frames: int) -> dict[str, Any]:
            assert consumer is not None, "attach first"
            return {"event": "read", "bad": sum(not _arrives(consumer, seq) for seq in range(first_seq, first_seq + frames))}

        consumer: Consumer | None = None
        _obey({"attach": attach, "read": read})


def _obey(work: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Do what is ordered until the end of input, and answer each order under its number."""
    orders = Orders()
    say("connected")
    while (order := orders.next()) is not None:
        number = order.pop("number")
        try:
            answer = work[order.pop("order")](**order)
        except TensorPoolError as error:
            sizes = {"need_bytes": error.need_bytes, "have_bytes": error.have_bytes} if isinstance(error, StorageSpaceError) else {}
            answer = {"event": "refused", "error": type(error).__name__, "words": error.message, "hint": error.hint, **sizes}
        say(number=number, **answer)


def _arrives(consumer: Consumer, seq: int) -> bool:
    """Whether the next frame is this one, byte for byte."""
    frame = consumer.read(5.0)
    return frame is not None and frame.seq == seq and check_frame(frame.array, seq)
