"""An SHM driver without threads, sockets or Aeron: tests hand it bytes, move its clock, and read what it said."""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from tensor_pool.driver.agent import DriverAgent
from tensor_pool.driver.config import DriverSettings
from tensor_pool.driver.operations import AdminRequest
from tensor_pool.driver.provisioning import Provisioner, RetentionPolicy
from tensor_pool.driver.storage import epoch_collector, epoch_ledger, epoch_storage, find_place
from tensor_pool.errors import RegionError, StorageSpaceError
from tensor_pool.sbe import codec, control, driver
from tensor_pool.shm.regions import OwnedRegion, RegionFactory
from tensor_pool.testing.clock import ManualClock

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
STEP_NS = 10_000_000


class PlainFileRegion:
    """A region as an ordinary mapping. Closing it twice is fine."""

    def __init__(self, path: str, length: int, descriptor: int) -> None:
        self.path = path
        self.length = length
        self._mapping: mmap.mmap | None = mmap.mmap(descriptor, length)

    def write(self, offset: int, data: bytes) -> None:
        assert self._mapping is not None, f"{self.path} was closed"
        self._mapping[offset : offset + len(data)] = data

    def store_u64(self, offset: int, value: int) -> None:
        self.write(offset, value.to_bytes(8, "little"))

    def prefault(self) -> None:
        pass

    def lock(self) -> None:
        pass

    def close(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None


@dataclass(slots=True)
class PlainFileRegionFactory:
    """A `RegionFactory` with a budget instead of a full file system. `reservations` are (relative path, reserve) in order."""

    budget_bytes: int = 1 << 40
    reservations: list[tuple[str, bool]] = field(default_factory=list)

    def create(self, base_dir: str, relative_path: str, length: int, *, mode: int, reserve: bool, hugepages: bool) -> OwnedRegion:
        path = os.path.join(base_dir, relative_path)
        self.reservations.append((relative_path, reserve))
        if reserve and length > self.budget_bytes:
            raise StorageSpaceError(
                f"{path} needs {length} bytes, {self.budget_bytes} are free", path=path, need_bytes=length, have_bytes=self.budget_bytes
            )
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        except OSError as error:
            raise RegionError(f"cannot make {path}: {error.strerror}", path=path) from error
        try:
            os.fchmod(descriptor, mode)
            os.ftruncate(descriptor, length)
            return PlainFileRegion(path, length, descriptor)
        finally:
            os.close(descriptor)


class ManualExecutor(Executor):
    """Runs nothing until told to."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Future[_Result]:
        future: Future[_Result] = Future()
        self._jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self, limit: int | None = None) -> int:
        """Run what waits, at most `limit` jobs. Returns how many ran."""
        ran = 0
        while self._jobs and (limit is None or ran < limit):
            future, job = self._jobs.popleft()
            ran += 1
            try:
                future.set_result(job())
            except Exception as error:  # noqa: BLE001 - whoever holds the future gets it
                future.set_exception(error)
        return ran

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.run()


class RecordingLink:
    """A `DriverLink` that keeps what is said. With `is_blocked` nothing is taken."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._requests: deque[bytes] = deque()
        self.said: list[bytes] = []
        self._delivered = 0
        self.is_blocked = False
        self.is_closed = False

    def deliver(self, message: bytes) -> None:
        self._requests.append(message)
        self._delivered += 1

    def drain(self, limit: int) -> list[bytes]:
        return [self._requests.popleft() for _ in range(min(limit, len(self._requests)))]

    def send_control(self, message: bytes) -> bool:
        if self.is_blocked:
            return False
        self.said.append(message)
        return True

    def send_announce(self, message: bytes) -> bool:
        return self.send_control(message)

    def wait(self, timeout_ns: int) -> bool:
        self._clock.advance(timeout_ns)
        return False

    def wake(self) -> None:
        pass

    def counters(self) -> dict[str, int]:
        return {"messages_received": self._delivered, "messages_refused": 0, "messages_dropped": 0}

    def close(self) -> None:
        self.is_closed = True


class InvokedDriver:
    """A whole driver but for threads and sockets. `said()` decodes what it sent since the last call."""

    def __init__(
        self,
        base_dir: Path,
        state_directory: Path,
        settings: DriverSettings | None = None,
        *,
        clock: ManualClock | None = None,
        region_factory: RegionFactory | None = None,
        process_id: int | None = None,
    ) -> None:
        given = settings or DriverSettings()
        self.clock = clock or ManualClock()
        self.settings = replace(given, shm=replace(given.shm, base_dir=str(base_dir)))
        self.place = find_place(self.settings, process_id=process_id or os.getpid(), host_name="test")
        self.executor = ManualExecutor()
        self.link = RecordingLink(self.clock)
        policies = self.settings.policies
        self.provisioner = Provisioner(
            epoch_storage(self.settings, self.place, region_factory or PlainFileRegionFactory(), self.clock),
            epoch_ledger(self.place, state_directory, self.clock),
            epoch_collector(self.settings, self.place, self.clock),
            self.executor,
            self.clock,
            RetentionPolicy(policies.epoch_gc_enabled, policies.epoch_gc_keep, policies.epoch_gc_min_age_ns),
        )
        self.provisioner.start(collect=policies.epoch_gc_on_startup)
        self.agent = DriverAgent(self.settings, self.place, self.link, self.provisioner, self.clock, bytes(32))

    @property
    def root(self) -> Path:
        """The directory tree of this driver."""
        return Path(self.place.root)

    def run(self) -> None:
        """Everything there is to do at this moment, slow work included."""
        while self.agent.do_work() + self.executor.run():
            pass

    def send(self, *messages: codec.WireMessage | bytes) -> list[Any]:
        """Deliver, run, and return what was said."""
        for message in messages:
            self.link.deliver(message if isinstance(message, bytes) else message.encode())
        self.run()
        return self.said()

    def advance(self, duration_ns: int) -> list[Any]:
        """Let time go by in steps that no driver takes for a stall. Returns what was said meanwhile."""
        end_ns = self.clock.monotonic + duration_ns
        while self.clock.monotonic < end_ns:
            self.clock.advance(min(STEP_NS, end_ns - self.clock.monotonic))
            self.run()
        return self.said()

    def said(self) -> list[Any]:
        """Decoded, in order, each once."""
        modules = {control.SCHEMA_ID: control, driver.SCHEMA_ID: driver}
        messages, self.link.said = self.link.said, []
        return [modules[codec.peek(message).schema_id].decode(message) for message in messages]

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """An administrator's request, answered. Raises what the driver raised."""
        answer = self.agent.submit(AdminRequest(operation, arguments))
        self.run()
        return answer.result(timeout=0)

    def close(self) -> None:
        self.agent.close()

    def __enter__(self) -> InvokedDriver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
