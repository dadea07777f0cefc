"""What an administrator may ask: the operations behind the admin socket, performed in the duty cycle."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tensor_pool.driver.config import DriverSettings, is_stream_id, name_problem, sizes_problem
from tensor_pool.driver.lifecycle import DriverRooms, StreamLifecycle
from tensor_pool.driver.state import LeaseEvent, StreamState
from tensor_pool.driver.storage import DriverPlace
from tensor_pool.driver.streams import Stream, StreamDefinition
from tensor_pool.errors import AttachRejectedError, ConfigError, StorageSpaceError
from tensor_pool.sbe.driver import ShutdownReason
from tensor_pool.shm.epoch_files import PoolSize, StreamSizes

LOOKING: Final = ("status", "streams", "leases")
CHANGING: Final = ("provision", "revoke", "shutdown")
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "provision": ("stream_id", "slots", "stride_bytes", "name", "tags"),
    "revoke": ("lease_id",),
}
_PROVISIONED_POOL_ID: Final = 1
_LONGEST_NAME: Final = 200
_MOST_TAGS: Final = 64


@dataclass(slots=True)
class AdminRequest:
    """One request, already authorised, and where its answer goes."""

    operation: str
    arguments: dict[str, Any] = field(default_factory=dict)
    answer: Future[dict[str, Any]] = field(default_factory=Future)
    release: Future[None] | None = None
    """Space being set free before this request can be judged."""

    def begin(self) -> bool:
        """False where whoever asked has given up."""
        return self.answer.running() or self.answer.set_running_or_notify_cancel()


class DriverOperations:
    """Performs one request at a time. What cannot be is an exception whose words reach whoever asked."""

    def __init__(
        self,
        settings: DriverSettings,
        place: DriverPlace,
        rooms: DriverRooms,
        lifecycle: StreamLifecycle,
        *,
        stop: Callable[[ShutdownReason, str], None],
        inbox_counters: Callable[[], dict[str, int]],
    ) -> None:
        self._settings = settings
        self._place = place
        self._rooms = rooms
        self._lifecycle = lifecycle
        self._stop = stop
        self._inbox_counters = inbox_counters
        self._operations: dict[str, Callable[[AdminRequest, int], dict[str, Any] | None]] = {
            "status": self.status,
            "streams": self.streams,
            "leases": self.leases,
            "provision": self.provision,
            "revoke": self.revoke,
            "shutdown": self.shutdown,
        }

    def perform(self, request: AdminRequest, now_ns: int) -> dict[str, Any] | None:
        """The answer, or None where it has to wait for files that are being made."""
        _refuse_unknown(request)
        return self._operations[request.operation](request, now_ns)

    # --- looking -------------------------------------------------------------------------------------------------------

    def status(self, request: AdminRequest, now_ns: int) -> dict[str, Any]:
        policies = self._settings.policies
        return {
            "instance_id": self._place.instance_id,
            "process_id": self._place.process_id,
            "directory": self._place.root,
            "streams": len(self._rooms.streams),
            "leases": len(self._rooms.leases),
            "announce_period_ms": policies.announce_period_ms,
            "lease_keepalive_interval_ms": policies.lease_keepalive_interval_ms,
            "lease_expiry_grace_intervals": policies.lease_expiry_grace_intervals,
            "free_bytes": self._place.free_bytes(),
            "counters": self._rooms.counters.snapshot(),
            "inbox": self._inbox_counters(),
        }

    def streams(self, request: AdminRequest, now_ns: int) -> dict[str, Any]:
        return {"streams": [self._describe(stream) for stream in self._rooms.streams]}

    def leases(self, request: AdminRequest, now_ns: int) -> dict[str, Any]:
        table = self._rooms.leases
        return {
            "leases": [
                {
                    "lease_id": lease.lease_id,
                    "stream_id": lease.stream_id,
                    "client_id": lease.client_id,
                    "role": lease.role.name.lower(),
                    "state": lease.state.value,
                    "expires_in_ms": max(0, table.expiry_ns(lease.lease_id) - now_ns) // 1_000_000,
                }
                for lease in table
            ]
        }

    def _describe(self, stream: Stream) -> dict[str, Any]:
        definition = stream.definition
        producer = self._rooms.leases.producer_of(stream.stream_id)
        return {
            "stream_id": stream.stream_id,
            "name": definition.name,
            "tags": list(definition.tags),
            "state": stream.state.value,
            "epoch": stream.files.layout.epoch if stream.files else None,
            "slots": definition.sizes.nslots,
            "stride_bytes": [pool.stride_bytes for pool in definition.sizes.pools],
            "producer_id": producer.client_id if producer else None,
            "consumers": self._rooms.leases.consumers_of(stream.stream_id),
        }

    # --- changing ------------------------------------------------------------------------------------------------------

    def provision(self, request: AdminRequest, now_ns: int) -> dict[str, Any] | None:
        """Make a stream fit: define it, or cut it anew while it has no producer. A configured one stays as it is."""
        wanted = self._wanted(request.arguments)
        stream = self._rooms.streams.get(wanted.stream_id)
        if stream is None or not stream.definition.is_static:
            self._refuse_name_of_another(wanted)
        if stream is None:
            if not self._has_space(request, wanted.sizes):
                return None
            return {"stream": self._describe(self._define(wanted))}
        current = stream.definition
        if current.is_static:
            return {"stream": self._describe(stream)}
        changes_sizes = current.sizes != wanted.sizes
        if changes_sizes:
            if stream.state.is_preparing:
                return None
            if stream.state is StreamState.OWNED:
                raise AttachRejectedError(
                    f"stream {stream.stream_id} has a producer, it cannot be given other slots now",
                    hint="close that producer first, or use another stream id",
                )
            if not self._has_space(request, wanted.sizes):
                return None
        stream.definition = replace(wanted, name=wanted.name or current.name, tags=wanted.tags or current.tags)
        if changes_sizes:
            self._lifecycle.change_layout(stream, now_ns)
        return {"stream": self._describe(stream)}

    def _wanted(self, arguments: dict[str, Any]) -> StreamDefinition:
        stream_id, slots, stride_bytes = (_number(arguments, key) for key in ("stream_id", "slots", "stride_bytes"))
        if stream_id != 0 and not is_stream_id(stream_id):
            raise ConfigError(f"stream_id {stream_id} is not possible", key="stream_id", value=stream_id, hint="ids are 1 to 4294967294")
        name, tags = arguments.get("name", ""), arguments.get("tags", [])
        if not _is_name(name):
            raise ConfigError(
                f"name {name!r:.80} is not possible", key="name", value=name, hint=f"up to {_LONGEST_NAME} printable characters"
            )
        if problem := name_problem(name):
            raise ConfigError(f"name {name!r} is not possible", key="name", value=name, hint=problem)
        if not isinstance(tags, list) or len(tags) > _MOST_TAGS or not all(_is_name(tag) and tag for tag in tags):
            raise ConfigError("tags are not possible", key="tags", value=tags, hint=f"up to {_MOST_TAGS} words")
        sizes = StreamSizes(slots, (PoolSize(_PROVISIONED_POOL_ID, stride_bytes),))
        if problem := sizes_problem(sizes, self._settings.policies.max_stream_bytes):
            raise ConfigError(f"stream {stream_id} cannot be made: {problem}", key="slots", value=slots)
        return StreamDefinition(stream_id, sizes, name, tuple(tags))

    def _refuse_name_of_another(self, wanted: StreamDefinition) -> None:
        """Two streams of one name could not be found by it."""
        streams = self._rooms.streams
        other = next((one for one in streams if one.definition.name == wanted.name and one.stream_id != wanted.stream_id), None)
        if wanted.name and other is not None:
            raise ConfigError(
                f"stream {other.stream_id} is called {wanted.name!r} already",
                key="name",
                value=wanted.name,
                hint=f"give this one another name, or use stream {other.stream_id}",
            )

    def _define(self, wanted: StreamDefinition) -> Stream:
        policies, streams = self._settings.policies, self._rooms.streams
        if not policies.allow_dynamic_streams:
            raise AttachRejectedError(
                f"stream {wanted.stream_id} is not configured", hint="add it to streams, or set policies.allow_dynamic_streams"
            )
        stream_id = wanted.stream_id or streams.unused_id()
        if len(streams) >= policies.max_streams or stream_id is None:
            raise AttachRejectedError(f"there are {len(streams)} streams already", hint="raise policies.max_streams")
        return streams.define(replace(wanted, stream_id=stream_id))

    def _has_space(self, request: AdminRequest, sizes: StreamSizes) -> bool:
        """False where it is not known yet, since past epochs are being removed for it."""
        free_bytes = self._place.free_bytes()
        if sizes.total_bytes <= free_bytes:
            return True
        if request.release is None:
            request.release = self._rooms.provisioner.release()
        if not request.release.done():
            return False
        free_bytes = self._place.free_bytes()
        if sizes.total_bytes <= free_bytes:
            return True
        raise StorageSpaceError(
            f"the stream needs {sizes.total_bytes} bytes, {self._place.base_dir} has {free_bytes} free",
            path=self._place.base_dir,
            need_bytes=sizes.total_bytes,
            have_bytes=free_bytes,
            hint="fewer or smaller slots, or more shared memory (mount -o remount,size=… on tmpfs)",
        )

    def revoke(self, request: AdminRequest, now_ns: int) -> dict[str, Any] | None:
        lease_id = _number(request.arguments, "lease_id")
        lease = self._rooms.leases.get(lease_id)
        if lease is None:
            raise AttachRejectedError(f"there is no lease {lease_id}", hint="`leases` lists them")
        self._lifecycle.end_lease(lease_id, LeaseEvent.REVOKE, "revoked by an administrator", now_ns)
        return {"lease_id": lease_id, "stream_id": lease.stream_id}

    def shutdown(self, request: AdminRequest, now_ns: int) -> dict[str, Any]:
        self._stop(ShutdownReason.ADMIN, "shut down by an administrator")
        return {"process_id": self._place.process_id}


def _refuse_unknown(request: AdminRequest) -> None:
    """What we do not know somebody meant."""
    known = _ARGUMENTS.get(request.operation, ())
    for name in request.arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its arguments: {', '.join(known) or 'none'}"
            raise ConfigError(f"{request.operation} has no argument {name!r:.80}", key=name[:80], hint=hint)


def _number(arguments: dict[str, Any], key: str) -> int:
    value = arguments.get(key)
    if type(value) is not int:
        raise ConfigError(f"{key} {value!r:.80} is not a whole number", key=key, value=value, hint=f"give {key} as a number")
    if value < 0:
        raise ConfigError(f"{key} {value} is below 0", key=key, value=value, hint=f"{key} is 0 or more")
    return value


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_NAME and value.isprintable()
