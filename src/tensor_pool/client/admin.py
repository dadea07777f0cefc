"""The admin socket of a stack, from the other side."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from tensor_pool.clock import wait_ns
from tensor_pool.errors import (
    AttachRejectedError,
    ClosedError,
    ConfigError,
    ProtocolError,
    StorageSpaceError,
    TensorPoolError,
    TransportError,
)

LONGEST_ANSWER_BYTES: Final = 64 << 20
_START: Final = "`tensor-pool up` starts a stack"


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as its driver knows it. `epoch` is None before anybody attached, `producer_id` while nobody produces."""

    stream_id: int
    name: str
    tags: tuple[str, ...]
    state: str
    epoch: int | None
    slots: int
    stride_bytes: tuple[int, ...]
    producer_id: int | None
    consumers: int


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A live lease."""

    lease_id: int
    stream_id: int
    client_id: int
    role: str
    state: str
    expires_in_ms: int


class AdminClient:
    """Looks at a stack and changes it. `with AdminClient(path) as admin: admin.streams()`."""

    def __init__(self, socket_path: str | os.PathLike[str], *, timeout: float = 30.0, token: str = "") -> None:
        """Connects at once; `TransportError` where nobody answers. `token` is for those who do not own the stack."""
        timeout_ns = wait_ns(timeout)
        self._path = os.fspath(socket_path)
        self._token = token
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(None if timeout_ns is None else timeout_ns / 1e9)
        try:
            self._socket.connect(self._path)
        except PermissionError as error:
            self._socket.close()
            raise TransportError(
                f"the stack at {self._path} is another user's", code=error.errno or 0, hint="ask its owner to add you to the group"
            ) from error
        except OSError as error:
            self._socket.close()
            raise TransportError(
                f"no stack answers at {self._path}: {error.strerror or error}", code=error.errno or 0, hint=_START
            ) from error
        self._lines = self._socket.makefile("rb")

    def provision(self, *, stream_id: int, slots: int, stride_bytes: int, name: str = "", tags: Sequence[str] = ()) -> StreamInfo:
        """Have a stream of `slots` slots of `stride_bytes` each. A configured stream stays as it is configured."""
        answer = self._ask("provision", stream_id=stream_id, slots=slots, stride_bytes=stride_bytes, name=name, tags=list(tags))
        return _stream_info(answer["stream"])

    def streams(self) -> list[StreamInfo]:
        return [_stream_info(stream) for stream in self._ask("streams")["streams"]]

    def leases(self) -> list[LeaseInfo]:
        return [LeaseInfo(**lease) for lease in self._ask("leases")["leases"]]

    def status(self) -> dict[str, Any]:
        """The driver's identity, its periods, its counters."""
        answer = self._ask("status")
        del answer["ok"]
        return answer

    def revoke(self, lease_id: int) -> None:
        """End a lease now. Its client is told."""
        self._ask("revoke", lease_id=lease_id)

    def shutdown(self) -> None:
        """Ask the stack to end. It answers first, then ends."""
        self._ask("shutdown")

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        request = {"op": operation, **arguments, **({"token": self._token} if self._token else {})}
        try:
            with suppress(BrokenPipeError):  # a stack that hangs up says why first
                self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._lines.readline(LONGEST_ANSWER_BYTES)
        except ValueError as error:
            raise ClosedError("this admin client is closed") from error
        except OSError as error:
            if self._socket.fileno() < 0:
                raise ClosedError("this admin client is closed") from error
            raise TransportError(f"the stack at {self._path} did not answer: {error}", code=error.errno or 0, hint=_START) from error
        if not line.endswith(b"\n"):
            raise TransportError(f"the stack at {self._path} hung up", hint=_START)
        answer: Any = json.loads(line)
        if not isinstance(answer, dict) or "ok" not in answer:
            raise ProtocolError(f"{self._path} does not speak the admin protocol", name=operation)
        if not answer["ok"]:
            raise _error(answer["error"])
        return answer

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _stream_info(stream: dict[str, Any]) -> StreamInfo:
    return StreamInfo(**{**stream, "tags": tuple(stream["tags"]), "stride_bytes": tuple(stream["stride_bytes"])})


def _error(error: dict[str, Any]) -> TensorPoolError:
    """The error that the driver raised, as far as its kind matters to whoever asked."""
    message, hint = error["message"], error["hint"]
    match error["type"]:
        case "StorageSpaceError":
            return StorageSpaceError(
                message, path=error.get("path", ""), need_bytes=error["need_bytes"], have_bytes=error.get("have_bytes", 0), hint=hint
            )
        case "ConfigError":
            return ConfigError(message, source="admin socket", key=error.get("key", ""), hint=hint)
        case "AttachRejectedError":
            return AttachRejectedError(message, hint=hint)
        case _:
            return TensorPoolError(message, hint=hint)
