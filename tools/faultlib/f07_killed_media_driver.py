"""F7: the death of the media driver is an exception in every client, in time; and the stream is back soon after a new one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import tensor_pool as tp
from faultlib.experiment import Bench, Context, Outcome, percentile
from faultlib.orders import Orders, say, settings
from faultlib.stacks import CLI, MEDIA_DRIVER_TIMEOUT_MS, StackProcess, toml
from tensor_pool.errors import LeaseLostError, MediaDriverTimeoutError, TensorPoolError
from tensor_pool.session import Session
from tensor_pool.testing import ChildProcess, check_frame, stamp_frame

ROUNDS = 5
DRIVER_TIMEOUT_S = 1.0
NOTICED_BOUND_S = 1.2 * DRIVER_TIMEOUT_S
BACK_BOUND_S = 2 * DRIVER_TIMEOUT_S
STREAM_ID = 10_000
NBYTES = 4096
SLOTS = 16
# by then it has noticed, if it is one that ends
DRIVER_ENDS_S = 0.2
ROLES = ("producer", "consumer", "consumer-2")


class KilledMediaDriver:
    """The media driver in a process of its own, killed under a driver, a producer and two consumers; then it is started again."""

    name = "F7"
    what = "kill -9 media driver"

    def run(self, context: Context) -> Outcome:
        rounds = context.count(ROUNDS)
        noticed_s: list[float] = []
        back_s: list[float] = []
        problems: list[str] = []
        with context.bench("F7") as bench:
            media_driver = MediaDriverProcess(bench)
            stack = StackProcess(bench, media_driver_dir=media_driver.directory)
            clients = {role: _client(bench, role) for role in ROLES}
            for client in clients.values():
                client.wait_for_message(event="working", round=0)
            for number in range(rounds):
                context.progress(number / rounds, f"round {number + 1} of {rounds}")
                killed_ns = time.monotonic_ns()
                media_driver.process.kill()
                for role, client in clients.items():
                    lost = client.wait_for_message(event="lost", round=number, timeout_s=20)
                    noticed_s.append((lost["time_ns"] - killed_ns) / 1e9)
                    if lost["error"] != "MediaDriverTimeoutError":
                        problems.append(f"round {number}: the {role} raised {lost['error']}: {lost['words']}")
                media_driver.start()
                restarted_ns = time.monotonic_ns()
                _restart_stack_if_it_ended(bench, stack, problems)
                for client in clients.values():
                    back = client.wait_for_message(event="working", round=number + 1, timeout_s=30)
                    back_s.append((back["time_ns"] - restarted_ns) / 1e9)
            for role, client in clients.items():
                client.send({"order": "stop"})
                client.expect_exit(0)
                problems += [f"the {role} accepted a bad frame" for message in client.messages() if message["event"] == "bad"]
        if max(noticed_s) > NOTICED_BOUND_S:
            problems.append(f"a client noticed after {max(noticed_s):.2f} s, the bound is {NOTICED_BOUND_S} s")
        if max(back_s) > BACK_BOUND_S:
            problems.append(f"a client was back after {max(back_s):.2f} s, the bound is {BACK_BOUND_S} s")
        figures = {
            "rounds": rounds,
            "noticed_s_p50": round(percentile(noticed_s, 50), 3),
            "noticed_s_max": round(max(noticed_s), 3),
            "noticed_bound_s": NOTICED_BOUND_S,
            "back_s_p50": round(percentile(back_s, 50), 3),
            "back_s_max": round(max(back_s), 3),
            "back_bound_s": BACK_BOUND_S,
        }
        return Outcome(figures, problems)


class MediaDriverProcess:
    """`tensor-pool media-driver`."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.directory: Path = bench.directories.aeron_dir
        self._config = bench.directories.root / "media-driver.toml"
        self._config.write_text(toml({"media_driver": {"driver_timeout_ms": MEDIA_DRIVER_TIMEOUT_MS}}))
        self.process = self.start()

    def start(self) -> ChildProcess:
        """Start it as its supervisor would: again until it runs, since a killed one keeps its directory busy for the driver timeout."""
        deadline_s = time.monotonic() + 20
        while True:
            self.process = self._bench.harness.python(
                "media-driver", CLI, "media-driver", "--aeron-dir", self.directory, "--config", self._config
            )
            while self.process.is_running:
                if self._is_up():
                    return self.process
                time.sleep(0.005)
            if time.monotonic() > deadline_s:
                self.process.expect_exit(0)

    def _is_up(self) -> bool:
        from tensor_pool import _native

        directory = str(self.directory)
        return _native.media_driver_is_active(directory, 1000) and _native.media_driver_pid(directory) == self.process.pid


def _restart_stack_if_it_ended(bench: Bench, stack: StackProcess, problems: list[str]) -> None:
    """A driver that lost its media driver may end with an exit code, for its supervisor to start it again; a signal is a failure."""
    try:
        code = stack.process.wait(DRIVER_ENDS_S)
    except AssertionError:
        return  # it goes on by itself
    if code < 0:
        problems.append(f"the driver process ended by signal {-code}")
    stack.start()


def _client(bench: Bench, role: str) -> ChildProcess:
    return bench.harness.python(role, "faultlib.f07_killed_media_driver:client_process", json.dumps({"role": role.partition("-")[0]}))


# --- the clients ---------------------------------------------------------------------------------------------------


def client_process() -> None:
    """Works; on losing the media driver says so and starts again from `connect`."""
    work = {"producer": _produce, "consumer": _consume}[settings()["role"]]
    orders = Orders()
    number = 0
    while not orders.stop.is_set():
        try:
            with tp.connect(driver_timeout=DRIVER_TIMEOUT_S) as session:
                for _ in _work(work, session, orders, number):
                    pass
        except _LostError as lost:
            error = lost.error
            say("lost", round=number, error=type(error).__name__, words=str(error), time_ns=lost.time_ns)
            number += 1
        except TensorPoolError:
            time.sleep(0.01)  # not there yet


class _LostError(Exception):
    """The transport went away under work that had begun."""

    def __init__(self, error: TensorPoolError) -> None:
        super().__init__(str(error))
        self.error = error
        self.time_ns = time.monotonic_ns()


def _work(work: Callable[[Session, Orders], Iterator[None]], session: Session, orders: Orders, number: int) -> Iterator[None]:
    started = False
    try:
        for _ in work(session, orders):
            if not started:
                say("working", round=number, time_ns=time.monotonic_ns())
                started = True
            yield
    except (MediaDriverTimeoutError, TensorPoolError) as error:
        if not started:
            raise
        raise _LostError(error) from error


def _produce(session: Session, orders: Orders) -> Iterator[None]:
    frame = np.empty(NBYTES, dtype=np.uint8)
    # the lease of the life before may not have expired yet
    producer = session.producer(STREAM_ID, shape=NBYTES, dtype="uint8", slots=SLOTS, wait=2 * DRIVER_TIMEOUT_S)
    with producer:
        while not orders.stop.wait(0.002):
            try:
                stamp_frame(frame, producer.stats.last_seq + 1)
                producer.publish(frame)
            except LeaseLostError:
                continue
            yield


def _consume(session: Session, orders: Orders) -> Iterator[None]:
    with session.consumer(STREAM_ID, wait=2 * DRIVER_TIMEOUT_S) as consumer:
        while not orders.stop.is_set():
            frame = consumer.read(0.1)
            if frame is not None:
                if not check_frame(frame.array, frame.seq):
                    say("bad", seq=frame.seq)
                yield
