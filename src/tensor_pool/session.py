"""What joins a program to a stack: `connect()` to one that runs, `embedded()` for one of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, TypeVar

import numpy.typing as npt

from tensor_pool import _native
from tensor_pool.client import arguments
from tensor_pool.client.admin import AdminClient, StreamInfo
from tensor_pool.client.conductor import LONGEST_WAIT_NS, Conductor, closed_error
from tensor_pool.client.consumer import Consumer, ConsumerOptions
from tensor_pool.client.link import ControlLink
from tensor_pool.client.producer import Producer, ProducerOptions
from tensor_pool.client.services import ClientServices
from tensor_pool.clock import Clock, SystemClock, wait_ns
from tensor_pool.consumer.frame import Frame
from tensor_pool.errors import AttachRejectedError, AttachTimeoutError, ConfigError
from tensor_pool.producer.arrays import DeclaredFrame
from tensor_pool.recorder import RecorderSettings, RecordingSession
from tensor_pool.runtime import AgentRunner, StackDescription, find_stack
from tensor_pool.stack import Stack, StackSettings
from tensor_pool.tensors import next_stride_bytes
from tensor_pool.transport import TransportClient

LOGGER = logging.getLogger("tensor_pool.client")
RESOLVE_INTERVAL_NS = 50_000_000
# 24 days, which Aeron can still count in nanoseconds
LONGEST_DRIVER_TIMEOUT_MS = (1 << 31) - 1
_Handle = TypeVar("_Handle", Producer, Consumer, RecordingSession)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session runs. `threaded=False` is invoker mode: control messages and timers wait until the caller calls `invoke()`, attaches,
    or waits for a frame. Leases are renewed by the native pump meanwhile. A program that only publishes, or only polls with `read(0)`, has
    to call `invoke()`.
    """

    threaded: bool = True
    driver_timeout_ms: int = 10_000


class Session:
    """A process's place in a stack. Gives out producers, consumers and recorders, and closes them with itself."""

    def __init__(
        self,
        stack: StackDescription,
        *,
        options: SessionOptions | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        owned_stack: Stack | None = None,
    ) -> None:
        options = options or SessionOptions()
        self._stack = stack
        self._owned_stack = owned_stack
        self._clock = clock or SystemClock()
        self._closed = False
        self._handles: list[Producer | Consumer | RecordingSession] = []
        self._transport = TransportClient(stack.aeron_dir, driver_timeout_ms=options.driver_timeout_ms, name="tensor-pool")
        try:
            link = ControlLink(self._transport, stack, _native.Pump())
        except BaseException:
            self._transport.close()
            raise
        # a lost lease or driver is noticed well before the next announce
        longest_wait_ns = min(LONGEST_WAIT_NS, stack.announce_period_ms * 1_000_000 // 5)
        conductor = Conductor(link, self._clock, longest_wait_ns=longest_wait_ns)
        self._services = ClientServices(stack, link, conductor, self._clock, random or SystemRandom())
        self._runner: AgentRunner | None = None
        if options.threaded:
            conductor.runs_on_a_thread = True
            self._runner = AgentRunner(conductor, idle_ns=longest_wait_ns, rest=conductor.rest)
            self._runner.start()

    # --- streams -----------------------------------------------------------------------------------------------------

    def producer(
        self,
        stream_id: int,
        *,
        shape: tuple[int, ...] | int | None = None,
        dtype: npt.DTypeLike = "uint8",
        slots: int = 64,
        name: str = "",
        tags: str | Iterable[str] = (),
        publish_timestamps: bool = False,
        wait: float | None = 0.0,
    ) -> Producer:
        """Become the producer of a stream.

        With `shape` the stack is asked to make the stream fit: `slots` slots (a power of two) of the next stride that holds one frame.
        Without it the stream has to be configured, and frames of any size that fits are taken.

        `AttachRejectedError` when another producer holds the stream. A program that is started again after it was killed finds its own old
        lease there until that expires: with `wait` it waits that long for the stream, in seconds, for ever with None.
        """
        self._check_open()
        options = ProducerOptions(arguments.stream_id(stream_id), wait_ns(wait, "wait"), publish_timestamps=publish_timestamps)
        if shape is None:
            try:
                return self._keep(Producer(self._services, options))
            except AttachRejectedError as error:
                if not self.discover(stream_id=options.stream_id):
                    error.hint = "give shape= and dtype=, and the stack makes the stream; without them its configuration has to"
                raise
        declared = DeclaredFrame.of(shape, dtype)
        try:
            stride_bytes = next_stride_bytes(declared.nbytes)
        except ValueError as error:
            raise ConfigError(str(error), key="shape", value=shape, hint="split the frame, or publish it in tiles") from error
        slot_count, tag_names = arguments.integer(slots, "slots"), arguments.tags(tags)

        def provision() -> StreamInfo:
            with self._admin() as admin:
                return admin.provision(stream_id=options.stream_id, slots=slot_count, stride_bytes=stride_bytes, name=name, tags=tag_names)

        return self._keep(Producer(self._services, replace(options, declared=declared, provision=provision)))

    def consumer(self, stream: int | str, *, wait: float | None = None, spin: bool = False) -> Consumer:
        """Read a stream, by id or by name. Waits until it exists: `wait` seconds, for ever with None, not at all with 0.

        `spin=True` polls instead of sleeping between frames: the shortest latency, for a whole core.
        """
        self._check_open()
        asked, limit_ns = arguments.stream_id_or_name(stream), wait_ns(wait, "wait")
        stream_id = asked if isinstance(asked, int) else self._resolve(asked, limit_ns)
        return self._keep(Consumer(self._services, ConsumerOptions(stream_id, limit_ns, spin=spin)))

    def discover(self, name: str | None = None, tags: str | Iterable[str] = (), stream_id: int | None = None) -> list[StreamInfo]:
        """The streams of this stack that match everything given."""
        self._check_open()
        wanted = set(arguments.tags(tags))
        with self._admin() as admin:
            return [
                stream
                for stream in admin.streams()
                if (name is None or stream.name == name)
                and (stream_id is None or stream.stream_id == stream_id)
                and wanted <= set(stream.tags)
            ]

    def record(
        self,
        streams: int | str | Iterable[int | str],
        path: str | Path,
        *,
        settings: RecorderSettings | None = None,
        wait: float | None = None,
        on_frame: Callable[[Frame], None] | None = None,
    ) -> RecordingSession:
        """Record a stream, or several, below `path` until the result is closed. `on_frame` sees each frame that is written."""
        asked = arguments.streams(streams)
        consumers: list[Consumer] = []
        try:
            consumers.extend(self.consumer(stream, wait=wait) for stream in asked)
            names = {stream.stream_id: stream.name for stream in self.discover()}
            source = self._stack.instance_id
            recording = RecordingSession(consumers, Path(path), source=source, settings=settings, names=names, on_frame=on_frame)
        except BaseException:
            for consumer in consumers:
                consumer.close()
            raise
        return self._keep(recording)

    def _resolve(self, name: str, limit_ns: int | None) -> int:
        found: list[StreamInfo] = []

        def exists() -> bool:
            found[:] = self.discover(name=name)
            return bool(found)

        deadline_ns = None if limit_ns is None else self._clock.monotonic_ns() + limit_ns
        pause = threading.Event()
        while not exists():
            if deadline_ns is not None and self._clock.monotonic_ns() >= deadline_ns:
                raise AttachTimeoutError(f"no stream is called {name!r}", hint="`tensor-pool ls` lists the streams of the stack")
            pause.wait(RESOLVE_INTERVAL_NS / 1e9)
        if len(found) > 1:
            ids = ", ".join(str(stream.stream_id) for stream in found)
            raise ConfigError(f"several streams are called {name!r}: {ids}", key="stream", value=name, hint="give the stream id")
        return found[0].stream_id

    # --- the session itself --------------------------------------------------------------------------------------------

    @property
    def stack(self) -> StackDescription:
        """Where the stack is: directories, channels, stream ids."""
        return self._stack

    @property
    def counters(self) -> dict[str, int]:
        """What became of the control messages that this session heard: `messages_received`; `messages_refused`, of a kind that a client
        does not read; `messages_malformed`, of a kind that it reads, and refused by its decoder; `messages_dropped`, since it was too slow.
        """
        self._services.check_here("session")
        return {**self._services.link.counters(), "messages_malformed": self._services.conductor.malformed}

    def invoke(self) -> int:
        """One pass of the conductor: control messages that arrived, and timers. For a session without threads; the native pump, and an
        embedded stack, run on threads of their own in either mode. Returns how many messages there were.
        """
        self._check_open()
        return self._services.conductor.do_work()

    def _admin(self) -> AdminClient:
        return AdminClient(self._stack.admin_socket)

    def _keep(self, handle: _Handle) -> _Handle:
        # a session that lives for months gives out many
        self._handles = [kept for kept in self._handles if not kept.closed] + [handle]
        return handle

    def _check_open(self) -> None:
        self._services.check_here("session")
        if self._closed:
            raise closed_error("session")

    def close(self) -> None:
        """Close what the session gave out, then the session; an embedded stack goes last. In a forked child: nothing."""
        if self._closed or self._services.is_forked:
            return
        self._closed = True
        # from the last to the first, each whatever became of the others
        with ExitStack() as closing:
            if self._owned_stack is not None:
                closing.callback(self._owned_stack.close)
            closing.callback(self._transport.close)
            closing.callback(self._services.link.close)
            if self._runner is not None:
                closing.callback(self._runner.close)
                closing.callback(self._services.link.wake)
            for handle in self._handles:
                closing.callback(handle.close)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except Exception as failure:
            # what the block raised says more
            if error is None:
                raise
            LOGGER.info("closing the session: %s", failure)

    def __del__(self) -> None:
        # interpreter shutdown may have taken what close needs
        with suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        return f"<Session in {self._stack.aeron_dir}{', closed' if self._closed else ''}>"


def connect(
    stack: str | os.PathLike[str] | None = None, *, driver_timeout: float = 10.0, environ: Mapping[str, str] | None = None
) -> Session:
    """Join a running stack: the one named, else `TENSOR_POOL_STACK`, else the one this user runs.

    `stack` is a runtime directory or its `stack.json`. `driver_timeout` seconds without a sign of the media driver raise
    `MediaDriverTimeoutError`, now and later.
    """
    timeout_ns = wait_ns(driver_timeout, "driver_timeout")
    timeout_ms = LONGEST_DRIVER_TIMEOUT_MS if timeout_ns is None else min(timeout_ns // 1_000_000, LONGEST_DRIVER_TIMEOUT_MS)
    description = find_stack(stack, os.environ if environ is None else environ)
    return Session(description, options=SessionOptions(driver_timeout_ms=timeout_ms))


def embedded(*, expose: bool = False, settings: StackSettings | None = None, **options: Any) -> Session:
    """A session with a stack of its own inside this process: media driver and SHM driver, in private directories.

    Without `settings` a variable such as `TENSOR_POOL_SHM__BASE_DIR` overrides a default, as it does for `tensor-pool up`.
    With `expose` the stack is written where `connect()` of other processes of this user finds it.
    """
    stack = Stack.embedded(settings, expose=expose)
    stack.start()
    try:
        return Session(stack.description, owned_stack=stack, **options)
    except BaseException:
        stack.close()
        raise
