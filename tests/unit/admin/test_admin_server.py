"""The admin socket: who may do what, and what it makes of nonsense."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tensor_pool.client.admin import AdminClient
from tensor_pool.driver.admin import GOODBYE_NS, LONGEST_REQUEST_BYTES, MOST_CONNECTIONS, AdminServer, Peer, peer_of
from tensor_pool.driver.operations import CHANGING, LOOKING, AdminRequest
from tensor_pool.errors import AttachRejectedError, ClosedError, ConfigError, StorageSpaceError, TensorPoolError, TransportError
from tensor_pool.shm.directories import PermissionMode
from tensor_pool.testing import ManualClock

OWNER = Peer(os.geteuid(), frozenset((os.getegid(),)))
OF_THE_GROUP = Peer(os.geteuid() + 1, frozenset((os.getegid(), 12345)))
STRANGER = Peer(os.geteuid() + 1, frozenset((os.getegid() + 1,)))
Serve = Callable[..., AdminServer]


class Driver:
    """Answers at once with what it was asked."""

    def __init__(self) -> None:
        self.requests: list[AdminRequest] = []
        self.error: TensorPoolError | None = None

    def submit(self, request: AdminRequest) -> Future[dict[str, Any]]:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        request.answer.set_result({"operation": request.operation, **request.arguments})
        return request.answer


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def serve(tmp_path: Path, driver: Driver) -> Iterator[Serve]:
    with ExitStack() as opened:

        def start(*, peer: Peer = OWNER, **more: Any) -> AdminServer:
            server = AdminServer(tmp_path / "admin.sock", driver.submit, identify=lambda _: peer, **more)
            server.start()
            opened.callback(server.close)
            return server

        yield start


def ask(path: Path, *lines: bytes) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path / "admin.sock"))
        connection.sendall(b"".join(lines))
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answers:
            return [json.loads(line) for line in answers]


def request(operation: str, **more: Any) -> bytes:
    return json.dumps({"op": operation, **more}).encode() + b"\n"


@pytest.mark.parametrize("operation", [*LOOKING, *CHANGING])
@pytest.mark.requirement("D-4.12-1")
def test_the_owner_may_do_everything(serve: Serve, tmp_path: Path, operation: str) -> None:
    server = serve()
    assert ask(tmp_path, request(operation, stream_id=1)) == [{"ok": True, "operation": operation, "stream_id": 1}]
    assert (server.requests_accepted, server.requests_refused) == (1, 0)


@pytest.mark.parametrize("operation", LOOKING)
def test_the_group_may_look(serve: Serve, tmp_path: Path, operation: str) -> None:
    serve(peer=OF_THE_GROUP)
    assert ask(tmp_path, request(operation))[0]["ok"]


@pytest.mark.requirement("D-4.12-2")
@pytest.mark.requirement("D-4.12-3")
@pytest.mark.parametrize("operation", CHANGING)
@pytest.mark.parametrize(
    ("token", "given"), [("", ""), ("", None), ("secret", ""), ("secret", "Secret"), ("secret", 7), ("secret", None), ("secret", "\ud800")]
)
def test_the_group_may_change_nothing_without_the_token(
    serve: Serve, driver: Driver, tmp_path: Path, operation: str, token: str, given: object
) -> None:
    server = serve(peer=OF_THE_GROUP, token=token)
    (answer,) = ask(tmp_path, request(operation, token=given))
    assert not answer["ok"]
    assert "token" in answer["error"]["hint"]
    assert driver.requests == []
    assert (server.requests_accepted, server.requests_refused) == (0, 1)


@pytest.mark.requirement("D-4.12-2")
@pytest.mark.parametrize("operation", CHANGING)
def test_the_group_may_change_with_the_token_which_goes_no_further(serve: Serve, driver: Driver, tmp_path: Path, operation: str) -> None:
    serve(peer=OF_THE_GROUP, token="secret")
    (answer,) = ask(tmp_path, request(operation, token="secret"))
    assert answer["ok"]
    assert "token" not in driver.requests[0].arguments


@pytest.mark.parametrize("operation", [*LOOKING, *CHANGING])
def test_a_stranger_may_not_even_look(serve: Serve, driver: Driver, tmp_path: Path, operation: str) -> None:
    serve(peer=STRANGER, token="secret")
    (answer,) = ask(tmp_path, request(operation, token="secret"))
    assert not answer["ok"]
    assert driver.requests == []


def test_the_kernel_says_who_is_there() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = peer_of(ours)
    assert peer.is_owner
    assert os.getegid() in peer.group_ids
    assert set(os.getgroups()) <= peer.group_ids


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"nonsense\n",
        b"[1, 2]\n",
        b'"provision"\n',
        b"null\n",
        b"{}\n",
        b'{"op": 7}\n',
        b'{"op": "reboot"}\n',
        b'{"op": ["streams"]}\n',
        b'{"op": {"a": 1}}\n',
        b"\xff\xfe\x00\n",
        b"[" * 60_000 + b"\n",
        b"9" * 60_000 + b"\n",
        b'{"op": "streams"',
    ],
)
def test_nonsense_is_answered_counted_and_the_next_request_served(serve: Serve, tmp_path: Path, line: bytes) -> None:
    server = serve()
    lines = (line, request("streams")) if line.endswith(b"\n") else (line,)
    answers = ask(tmp_path, *lines)
    assert answers[0]["ok"] is False
    assert answers[0]["error"]["message"]
    assert server.requests_refused == 1
    assert [answer["ok"] for answer in answers[1:]] == [True] * (len(lines) - 1)


def test_a_line_without_end_is_cut_off(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(tmp_path / "admin.sock"))
        connection.sendall(b"x" * (LONGEST_REQUEST_BYTES + 1))
        with connection.makefile("rb") as answers:
            assert "one line" in json.loads(answers.readline())["error"]["message"]
            assert answers.readline() == b""
    assert server.requests_refused == 1


def test_connections_have_a_limit_and_come_back_after_it(serve: Serve, tmp_path: Path) -> None:
    serve()
    held = [AdminClient(tmp_path / "admin.sock") for _ in range(MOST_CONNECTIONS)]
    for client in held:
        client._ask("status")
    with AdminClient(tmp_path / "admin.sock") as extra, pytest.raises(TensorPoolError, match="too many"):
        extra.status()
    held.pop().close()
    for client in held:
        client.close()
    deadline = threading.Event()
    for _ in range(1000):
        try:
            with AdminClient(tmp_path / "admin.sock") as client:
                client.status()
            break
        except TensorPoolError:
            deadline.wait(0.01)
    else:
        pytest.fail("nobody was let in again")


@pytest.mark.parametrize(("permissions", "mode"), [(PermissionMode.GROUP, 0o660), (PermissionMode.PRIVATE, 0o600)])
def test_the_socket_has_the_mode_of_the_permissions(serve: Serve, tmp_path: Path, permissions: PermissionMode, mode: int) -> None:
    serve(permissions=permissions)
    assert stat.S_IMODE((tmp_path / "admin.sock").stat().st_mode) == mode


def test_a_socket_that_nobody_answers_on_is_replaced(serve: Serve, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "admin.sock"))
    serve()
    assert ask(tmp_path, request("status"))[0]["ok"]


def test_a_socket_that_is_served_is_left_alone(serve: Serve, tmp_path: Path) -> None:
    serve()
    with pytest.raises(ConfigError, match="another stack"):
        serve()
    assert ask(tmp_path, request("status"))[0]["ok"]


def test_a_path_that_no_socket_can_have_is_refused_by_name(driver: Driver, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="longer than"):
        AdminServer(tmp_path / ("x" * 120), driver.submit).start()


def test_closing_removes_the_socket_and_ends_connections(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with AdminClient(tmp_path / "admin.sock") as client:
        client.status()
        server.close()
        assert not (tmp_path / "admin.sock").exists()
        with pytest.raises(TransportError):
            client.status()


def test_closing_waits_for_answers_by_the_clock_it_was_given(tmp_path: Path) -> None:
    asked = threading.Event()
    unanswered: Future[dict[str, Any]] = Future()

    def submit(_: AdminRequest) -> Future[dict[str, Any]]:
        asked.set()
        return unanswered

    class Leaping(ManualClock):
        reads = 0

        def monotonic_ns(self) -> int:
            self.reads += 1
            return self.advance(GOODBYE_NS)

    clock = Leaping()
    server = AdminServer(tmp_path / "admin.sock", submit, identify=lambda _: OWNER, clock=clock)
    server.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "admin.sock"))
        connection.sendall(request("status"))
        assert asked.wait(20)
        server.close()
        assert clock.reads == 2
        unanswered.set_result({})


ERRORS = [
    (StorageSpaceError("full", need_bytes=7, have_bytes=3, path="/x", hint="less"), StorageSpaceError),
    (StorageSpaceError("full", need_bytes=7, have_bytes=0), StorageSpaceError),
    (ConfigError("odd", key="slots", hint="even"), ConfigError),
    (AttachRejectedError("no"), AttachRejectedError),
    (TensorPoolError("well"), TensorPoolError),
    (ClosedError("gone"), TensorPoolError),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_errors_arrive_as_what_they_were(serve: Serve, driver: Driver, tmp_path: Path, error: TensorPoolError, kind: type) -> None:
    serve()
    driver.error = error
    with AdminClient(tmp_path / "admin.sock") as client, pytest.raises(kind) as caught:
        client.status()
    assert (caught.value.message, caught.value.hint) == (error.message, error.hint)
    for field in ("need_bytes", "have_bytes", "path", "key"):
        if kind is type(error):
            assert getattr(caught.value, field, None) == getattr(error, field, None)


def test_a_closed_client_says_so(serve: Serve, tmp_path: Path) -> None:
    serve()
    client = AdminClient(tmp_path / "admin.sock")
    client.close()
    with pytest.raises(ClosedError):
        client.status()
