"""The admin socket: JSON lines, each request and each answer one object. Sockets block, so this has threads of its own.

    {"op": "provision", "stream_id": 10000, "slots": 64, "stride_bytes": 1048576, "name": "camera-1", "tags": []}
    {"ok": true, "stream": {...}}
    {"ok": false, "error": {"type": "StorageSpaceError", "message": "...", "hint": "...", "need_bytes": 1, "have_bytes": 0}}

Who connects is asked of the kernel. Looking is for the owner and the owner's group; changing for the owner, or with the token in `token`.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensor_pool.clock import Clock, SystemClock
from tensor_pool.driver.operations import CHANGING, LOOKING, AdminRequest
from tensor_pool.errors import ConfigError, TensorPoolError
from tensor_pool.shm.directories import PermissionMode

LONGEST_REQUEST_BYTES: Final = 65_536
LONGEST_SOCKET_PATH_BYTES: Final = 107
MOST_CONNECTIONS: Final = 64
IDLE_S: Final = 60.0
ANSWER_S: Final = 20.0
GOODBYE_NS: Final = 1_000_000_000
_CREDENTIALS: Final = struct.Struct("3i")
_SO_PEERGROUPS: Final = 59  # of <asm-generic/socket.h>; Python's socket module has no name for it
_MOST_GROUPS: Final = 65_536
_ERROR_FIELDS: Final = ("key", "need_bytes", "have_bytes", "code", "path")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel knows it."""

    user_id: int
    group_ids: frozenset[int]

    @property
    def is_owner(self) -> bool:
        return self.user_id in (0, os.geteuid())

    @property
    def may_look(self) -> bool:
        return self.is_owner or os.getegid() in self.group_ids


def peer_of(connection: socket.socket) -> Peer:
    _, user_id, group_id = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    groups = {group_id}
    # a kernel older than 4.13 does not know the other groups
    with suppress(OSError):
        groups.update(
            number for (number,) in struct.iter_unpack("I", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS))
        )
    return Peer(user_id, frozenset(groups))


class AdminServer:
    """Serves `path` until `close`. Requests are handed to `submit`; its futures are waited for on the connection's thread."""

    def __init__(
        self,
        path: Path,
        submit: Callable[[AdminRequest], Future[dict[str, Any]]],
        *,
        permissions: PermissionMode = PermissionMode.GROUP,
        token: str = "",
        identify: Callable[[socket.socket], Peer] = peer_of,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._submit = submit
        self._mode = permissions.file_mode
        self._token = token
        self._identify = identify
        self._clock = clock or SystemClock()
        self._listener: socket.socket | None = None
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._guard = threading.Lock()
        self._accepting: threading.Thread | None = None
        self._accepted = 0
        self._refused = 0

    @property
    def requests_accepted(self) -> int:
        return self._accepted

    @property
    def requests_refused(self) -> int:
        """Not JSON, unknown, not allowed, or not possible."""
        return self._refused

    def start(self) -> None:
        """Bind and listen. The directory is the caller's: a socket that nobody answers on is taken away first."""
        if len(os.fsencode(self._path)) > LONGEST_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"{self._path} is longer than the {LONGEST_SOCKET_PATH_BYTES} bytes of a socket's path",
                key="runtime directory",
                value=str(self._path),
                hint="choose a shorter runtime directory",
            )
        self._remove_abandoned()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # before bind, so that there is no moment in which others may connect
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(str(self._path))
            os.chmod(self._path, self._mode)
            listener.listen(MOST_CONNECTIONS)
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"cannot serve the admin socket {self._path}: {error.strerror}", key="runtime directory", value=str(self._path)
            ) from error
        self._listener = listener
        self._accepting = threading.Thread(target=self._accept, args=(listener,), name="tensor-pool-admin", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """End every connection and remove the socket."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with suppress(FileNotFoundError):
            self._path.unlink()
        if self._accepting is not None:
            self._accepting.join()
        with self._guard:
            connections = dict(self._connections)
        # no more requests, but whoever waits for an answer (that of a shutdown) gets it
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
        deadline_ns = self._clock.monotonic_ns() + GOODBYE_NS
        for connection, thread in connections.items():
            thread.join(max(0, deadline_ns - self._clock.monotonic_ns()) / 1e9)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _remove_abandoned(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self._path))
            except (FileNotFoundError, NotADirectoryError):
                return
            except OSError:
                with suppress(OSError):
                    self._path.unlink()
                return
        raise ConfigError(
            f"another stack serves {self._path}", key="runtime directory", value=str(self._path), hint="use that one, or stop it first"
        )

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._listener is None:
                    return
                # no descriptors left: those who are connected will go
                threading.Event().wait(0.05)
                continue
            with self._guard:
                is_full = len(self._connections) >= MOST_CONNECTIONS
                if not is_full:
                    thread = threading.Thread(target=self._serve, args=(connection,), name="tensor-pool-admin-connection", daemon=True)
                    self._connections[connection] = thread
                    thread.start()
            if is_full:
                self._count(accepted=False)
                with suppress(OSError):
                    connection.sendall(_line(_error(TensorPoolError("too many connections to the admin socket", hint="try again"))))
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(IDLE_S)
            peer = self._identify(connection)
            with connection.makefile("rb") as lines:
                while line := lines.readline(LONGEST_REQUEST_BYTES + 1):
                    is_too_long = len(line) > LONGEST_REQUEST_BYTES
                    connection.sendall(_line(self._answer(line, peer)))
                    if is_too_long:
                        return
        except OSError:
            return  # gone, or silent for too long
        finally:
            with self._guard:
                self._connections.pop(connection, None)
            connection.close()

    def _answer(self, line: bytes, peer: Peer) -> dict[str, Any]:
        try:
            request = self._checked(line, peer)
            answer = self._submit(request).result(ANSWER_S)
        except TimeoutError:
            request.answer.cancel()
            self._count(accepted=False)
            return _error(TensorPoolError("the driver did not answer in time", hint="is it making files for this stream? try again"))
        except TensorPoolError as error:
            self._count(accepted=False)
            return _error(error)
        self._count(accepted=True)
        return {"ok": True, **answer}

    def _checked(self, line: bytes, peer: Peer) -> AdminRequest:
        if not peer.may_look:
            raise ConfigError("this stack is another user's", key="user", value=peer.user_id, hint="ask its owner to add you to the group")
        if len(line) > LONGEST_REQUEST_BYTES:
            raise ConfigError(f"a request is one line of at most {LONGEST_REQUEST_BYTES} bytes", key="op")
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError("the request is not a line of JSON", key="op") from error
        if not isinstance(document, dict):
            raise ConfigError("the request is not a JSON object", key="op")
        operation, token = document.pop("op", None), document.pop("token", "")
        if operation in CHANGING:
            if not (peer.is_owner or self._is_token(token)):
                raise ConfigError(
                    f"{operation} is for the owner of the stack",
                    key="token",
                    hint="give the token of policies.shutdown_token, if there is one",
                )
        elif operation not in LOOKING:
            raise ConfigError(f"unknown operation {operation!r:.80}", key="op", hint=f"one of {', '.join((*LOOKING, *CHANGING))}")
        return AdminRequest(operation, document)

    def _is_token(self, token: object) -> bool:
        if not self._token or not isinstance(token, str):
            return False
        # JSON may hold halves of surrogate pairs, which UTF-8 does not have
        given, wanted = (text.encode("utf-8", "surrogatepass") for text in (token, self._token))
        return hmac.compare_digest(given, wanted)

    def _count(self, *, accepted: bool) -> None:
        with self._guard:
            if accepted:
                self._accepted += 1
            else:
                self._refused += 1


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _error(error: TensorPoolError) -> dict[str, Any]:
    more = {name: value for name in _ERROR_FIELDS if (value := getattr(error, name, None)) not in (None, "")}
    return {"ok": False, "error": {"type": type(error).__name__, "message": error.message, "hint": error.hint, **more}}
