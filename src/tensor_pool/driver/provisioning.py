"""Files made, retired and collected beside the duty cycle: reserving a gigabyte takes a third of a second.

Everything here that touches a file runs in the worker, one job after the other, so that no two of them meet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from tensor_pool.clock import Clock
from tensor_pool.driver.epochs import EpochLedger
from tensor_pool.errors import StorageSpaceError
from tensor_pool.runtime import failpoints
from tensor_pool.shm.collection import EpochCollector
from tensor_pool.shm.epoch_files import EpochFiles, EpochStorage, StreamSizes

LOGGER = logging.getLogger("tensor_pool.driver")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long files of past epochs stay. `keep` counts the current epoch of a stream too."""

    enabled: bool = True
    keep: int = 2
    min_age_ns: int = 0


@dataclass(frozen=True, slots=True)
class Made:
    """The files of a stream's next epoch are there."""

    stream_id: int
    files: EpochFiles


@dataclass(frozen=True, slots=True)
class NotMade:
    """They are not, and nothing of them is left."""

    stream_id: int
    error: BaseException


class Provisioner:
    """The duty cycle's side hands jobs to the worker and polls for what became of them."""

    def __init__(
        self,
        storage: EpochStorage,
        ledger: EpochLedger,
        collector: EpochCollector,
        executor: Executor,
        clock: Clock,
        retention: RetentionPolicy,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` is called, from the worker, when a job is done."""
        self._executor = executor
        self._wake = wake
        self._making: dict[int, Future[EpochFiles]] = {}
        self._tidying: list[Future[None]] = []
        self._worker = _Worker(storage, ledger, collector, clock, retention)

    def start(self, *, collect: bool) -> None:
        """Read what former lives left, before the first job. With `collect` the worker begins by removing what is dead."""
        self._worker.load()
        if collect:
            self.collect()

    def make(self, stream_id: int, sizes: StreamSizes, *, reserve: bool) -> None:
        """Make the stream's next epoch. `poll` tells when it is there."""
        assert stream_id not in self._making
        self._making[stream_id] = self._submit(self._worker.make, stream_id, sizes, reserve)

    def retire(self, files: EpochFiles) -> None:
        """Another epoch has taken the place of this one."""
        self._tidying.append(self._submit(self._worker.retire, files))

    def release(self) -> Future[None]:
        """Remove every past epoch whose files are kept: their space is needed."""
        return self._submit(self._worker.drop_retired)

    def collect(self) -> None:
        """Remove what dead drivers left."""
        self._tidying.append(self._submit(self._worker.collect))

    def _submit(self, job: Callable[_Arguments, _Result], *arguments: _Arguments.args, **options: _Arguments.kwargs) -> Future[_Result]:
        future = self._executor.submit(job, *arguments, **options)
        future.add_done_callback(lambda _: self._wake())
        return future

    def poll(self) -> list[Made | NotMade]:
        """What was finished since the last call."""
        finished: list[Made | NotMade] = []
        for stream_id, future in list(self._making.items()):
            if future.done():
                del self._making[stream_id]
                error = future.exception()
                finished.append(Made(stream_id, future.result()) if error is None else NotMade(stream_id, error))
        for tidied in [future for future in self._tidying if future.done()]:
            self._tidying.remove(tidied)
            if (problem := tidied.exception()) is not None:
                LOGGER.warning("old epochs could not be removed: %s", problem)
        return finished

    def close(self) -> None:
        """Unmap and remove every epoch that this driver made (wire 15.14), and end the worker."""
        removing = self._executor.submit(self._worker.remove_all)
        self._executor.shutdown(wait=True)
        if (problem := removing.exception()) is not None:
            LOGGER.warning("not every epoch could be removed: %s", problem)


class _Worker:
    def __init__(
        self, storage: EpochStorage, ledger: EpochLedger, collector: EpochCollector, clock: Clock, retention: RetentionPolicy
    ) -> None:
        self._storage = storage
        self._ledger = ledger
        self._collector = collector
        self._clock = clock
        self._retention = retention
        self._current: dict[tuple[int, int], EpochFiles] = {}
        # (epoch, when it was retired), oldest first
        self._retired: dict[int, list[tuple[int, int]]] = {}

    def load(self) -> None:
        self._ledger.load(self._storage.epochs_on_disk())

    def make(self, stream_id: int, sizes: StreamSizes, reserve: bool) -> EpochFiles:
        epoch = self._ledger.next(stream_id)
        failpoints.reach("driver.epoch_saved")
        try:
            files = self._storage.create(stream_id, epoch, sizes, reserve=reserve)
        except StorageSpaceError:
            # what is kept for late readers goes before a producer is refused
            if not any(self._retired.values()):
                raise
            self.drop_retired()
            files = self._storage.create(stream_id, epoch, sizes, reserve=reserve)
        failpoints.reach("driver.files_made")
        self._current[stream_id, epoch] = files
        return files

    def retire(self, files: EpochFiles) -> None:
        stream_id, epoch = files.layout.stream_id, files.layout.epoch
        self._current.pop((stream_id, epoch), None)
        files.close()
        if not files.reserved:
            # nobody ever wrote there (decision E56)
            self._storage.remove(stream_id, epoch)
            return
        now_ns = self._clock.monotonic_ns()
        retired = self._retired.setdefault(stream_id, [])
        retired.append((epoch, now_ns))
        if self._retention.enabled:
            while len(retired) >= self._retention.keep and now_ns - retired[0][1] >= self._retention.min_age_ns:
                self._storage.remove(stream_id, retired.pop(0)[0])

    def collect(self) -> None:
        report = self._collector.collect_own(self._ours()) + self._collector.collect_abandoned()
        if report.epochs_removed:
            LOGGER.info("removed %d epochs of dead drivers, kept %d", report.epochs_removed, report.epochs_kept)

    def remove_all(self) -> None:
        for files in self._current.values():
            files.close()
        ours = self._ours()
        for stream_id, epoch in ours:
            self._storage.remove(stream_id, epoch)
        for stream_id in {stream_id for stream_id, _ in ours}:
            self._storage.remove_stream_directory(stream_id)

    def drop_retired(self) -> None:
        for stream_id, retired in self._retired.items():
            while retired:
                self._storage.remove(stream_id, retired.pop(0)[0])

    def _ours(self) -> set[tuple[int, int]]:
        return set(self._current) | {(stream_id, epoch) for stream_id, retired in self._retired.items() for epoch, _ in retired}
