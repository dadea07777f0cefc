"""An SHM driver in a process of its own, clients of it that hold a lease, and a test's own ear and mouth on its streams.

Children of a `ProcessHarness`: `harness.python("driver", "tensor_pool.testing.driver_process:run_driver", json.dumps({...}))`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from tensor_pool import _native
from tensor_pool.config import load
from tensor_pool.driver import DriverSettings, DriverStack
from tensor_pool.errors import ProtocolError, TensorPoolError
from tensor_pool.sbe import codec, control, driver
from tensor_pool.sbe.driver import (
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmLeaseKeepalive,
)
from tensor_pool.transport import TransportClient, exclusive_channel, subscription_channel

CONTROL: Final = ("aeron:ipc", 1000)
ANNOUNCE: Final = ("aeron:ipc", 1001)
ATTACH_AGAIN_S: Final = 0.25
KEEPALIVE_TIMESTAMP_OFFSET: Final = codec.HEADER_BYTES + ShmLeaseKeepalive.OFFSETS["client_timestamp_ns"]
_MODULES: Final = {control.SCHEMA_ID: control, driver.SCHEMA_ID: driver}
_Message = TypeVar("_Message")


class ControlEndpoint:
    """Speaks and hears on a driver's control and announce streams."""

    def __init__(self, transport: TransportClient) -> None:
        self._publication = transport.publish(exclusive_channel(CONTROL[0], "1m"), CONTROL[1])
        self._subscriptions = [
            (stream_id, transport.subscribe(subscription_channel(channel), stream_id)) for channel, stream_id in (CONTROL, ANNOUNCE)
        ]
        self.heard: list[Any] = []

    @property
    def publication(self) -> _native.Publication:
        return self._publication

    def send(self, message: codec.WireMessage | bytes) -> None:
        data = message if isinstance(message, bytes) else message.encode()
        while self._publication.offer(data) < 0:
            time.sleep(0.001)

    def poll(self) -> None:
        """Take what has come into `heard`. What belongs on the control stream counts only there (driver 4.5)."""
        for stream_id, subscription in self._subscriptions:
            for data, _ in subscription.poll():
                with suppress(ProtocolError, KeyError):
                    message = _MODULES[codec.peek(data).schema_id].decode(data)
                    if stream_id == CONTROL[1] or message.SCHEMA_ID == control.SCHEMA_ID:
                        self.heard.append(message)

    def wait_for(self, kind: type[_Message], matches: Callable[[_Message], bool] = lambda _: True, *, timeout_s: float = 20.0) -> _Message:
        """The first message of `kind` that matches, heard already or not; it is taken out. `TimeoutError` says what came instead."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.poll()
            for index, message in enumerate(self.heard):
                if isinstance(message, kind) and matches(message):
                    del self.heard[index]
                    return message
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {kind.__name__} in {timeout_s:g} s; heard {self.heard[-5:]}")
            time.sleep(0.001)

    def attach(self, request: ShmAttachRequest, *, timeout_s: float = 20.0) -> ShmAttachResponse:
        """Ask, again and again with the same ids, until there is an answer."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.send(request)
            try:
                return self.wait_for(ShmAttachResponse, lambda one: one.correlation_id == request.correlation_id, timeout_s=ATTACH_AGAIN_S)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise


def attach_request(stream_id: int, client_id: int, role: Role) -> ShmAttachRequest:
    """What most clients ask; the correlation id is the client id."""
    return ShmAttachRequest(
        correlation_id=client_id,
        stream_id=stream_id,
        client_id=client_id,
        role=role,
        expected_layout_version=1,
        max_dims=8,
        publish_mode=PublishMode.REQUIRE_EXISTING,
        require_hugepages=None,
    )


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201 - the harness reads it


def run_driver() -> int:
    """`{"aeron_dir", "directory", "base_dir", "overrides": {"policies.announce_period_ms": 100}, "config": path}`: until stdin ends.

    Also `listen_first` and `driver_timeout_ms`.
    """
    given: dict[str, Any] = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    settings = load(DriverSettings, given.get("config"), {}, given.get("overrides", {})).settings
    settings = replace(settings, shm=replace(settings.shm, base_dir=given["base_dir"]))
    timeout_ms = int(given.get("driver_timeout_ms", 10_000))
    with TransportClient(given["aeron_dir"], driver_timeout_ms=timeout_ms, name="shm-driver") as transport:
        stack = DriverStack(settings, transport, admin_socket=directory / "admin.sock", state_directory=directory / "state")
        try:
            stack.start(listen_first=bool(given.get("listen_first")))
        except TensorPoolError as error:
            _say(event="refused", type=type(error).__name__, message=error.message, hint=error.hint)
            return 1
        with stack:
            threading.Thread(target=_stop_at_end_of_input, args=(stack.stop_requested,), daemon=True).start()
            _say(event="ready", admin_socket=str(directory / "admin.sock"), root=stack.place.root)
            stack.stop_requested.wait()
        _say(event="closed", error=str(stack.error or ""))
        return 1 if stack.error else 0


def hold_lease() -> int:
    """`aeron_dir stream_id client_id role interval_ms`: attach, say the answer, keep the lease until stdin ends, detach."""
    aeron_dir, stream_id, client_id, role_name, interval_ms = sys.argv[1:6]
    role = Role[role_name.upper()]
    with TransportClient(aeron_dir, name="lease-holder") as transport:
        endpoint = ControlEndpoint(transport)
        response = endpoint.attach(attach_request(int(stream_id), int(client_id), role))
        _say(event="attached", code=response.code.name, lease_id=response.lease_id, epoch=response.epoch, uri=response.header_region_uri)
        if response.code is not ResponseCode.OK or response.lease_id is None:
            return 1
        message = ShmLeaseKeepalive(response.lease_id, int(stream_id), int(client_id), role, 0)
        pump = _native.Pump()
        keepalive = pump.add_keepalive(
            endpoint.publication,
            message.encode(),
            timestamp_offset=KEEPALIVE_TIMESTAMP_OFFSET,
            interval_ns=int(interval_ms) * 1_000_000,
        )
        sys.stdin.read()
        keepalive.close()
        endpoint.send(ShmDetachRequest(0, response.lease_id, int(stream_id), int(client_id), role))
        endpoint.wait_for(driver.ShmDetachResponse)
        pump.close()
    return 0


def _stop_at_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()
