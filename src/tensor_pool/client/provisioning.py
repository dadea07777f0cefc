"""A stream that fits its producer: the stack is asked to make it so, and where it cannot, its configuration has to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tensor_pool.client.admin import StreamInfo
from tensor_pool.clock import Clock
from tensor_pool.errors import AttachRejectedError, ConfigError, TensorPoolError
from tensor_pool.producer.arrays import DeclaredFrame
from tensor_pool.shm.layout import PoolLayout
from tensor_pool.tensors import next_stride_bytes

LOGGER = logging.getLogger("tensor_pool.producer")
AGAIN_S = 0.05


class Provisioning:
    """Asks the stack for a stream before each attach. `ask` is None where the stream is taken as it is configured."""

    def __init__(self, stream_id: int, ask: Callable[[], StreamInfo] | None, clock: Clock) -> None:
        self._stream_id = stream_id
        self._ask = ask
        self._clock = clock
        self._name = ""
        self._asking: threading.Thread | None = None

    def first(self, wait_ns: int | None) -> None:
        """A stream cannot be cut anew while a producer holds it, perhaps one that was killed: who waits asks again."""
        if self._ask is None:
            return
        deadline_ns = None if wait_ns is None else self._clock.monotonic_ns() + wait_ns
        pause = threading.Event()
        while True:
            try:
                self._name = self._ask().name
            except AttachRejectedError:
                if deadline_ns is not None and self._clock.monotonic_ns() >= deadline_ns:
                    raise
                pause.wait(AGAIN_S)
            else:
                return

    def again(self) -> None:
        """A driver that was started again has forgotten streams that it was asked for: ask again, beside the conductor."""
        ask = self._ask
        if ask is None or (self._asking is not None and self._asking.is_alive()):
            return

        def work() -> None:
            try:
                ask()
            except TensorPoolError as error:
                LOGGER.info("stream %d cannot be provisioned again yet: %s", self._stream_id, error)

        self._asking = threading.Thread(target=work, name="tensor-pool-provision", daemon=True)
        self._asking.start()

    def too_small_error(self, declared: DeclaredFrame, layout: PoolLayout) -> ConfigError:
        """The stream is configured, and not for such frames."""
        name = self._name or f"stream-{self._stream_id}"
        profile = f"{name}-{declared.nbytes}-bytes"
        lines = (
            f"[profiles.{profile}]",
            f"header_nslots = {layout.nslots}",
            f"payload_pools = [{{ pool_id = 1, stride_bytes = {next_stride_bytes(declared.nbytes)} }}]",
            "",
            f"[streams.{name}]",
            f"stream_id = {self._stream_id}",
            f'profile = "{profile}"',
        )
        return ConfigError(
            f"stream {layout.stream_id} has slots of {layout.largest_stride_bytes} bytes, the declared frame needs {declared.nbytes}",
            key=f"streams.{name}.profile",
            value=layout.largest_stride_bytes,
            hint="cut it for such frames in the stack's TOML, in place of what is there for it, and start the stack again:\n\n"
            + "\n".join(lines),
        )
