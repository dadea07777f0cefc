"""Removal of what dead drivers left behind (wire 15.21a.7). What shows any sign of life stays.

An epoch is removed when its superblock has not been refreshed for the staleness limit *and* the process that made it is gone; half-made
ones (killed before the superblock was written) when their directory is that old. Other namespaces of the same user are looked at too, but
only those whose `driver.lock` exists and is free.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tensor_pool.clock import Clock
from tensor_pool.errors import ProtocolError, RegionError
from tensor_pool.sbe.control import ShmRegionSuperblock
from tensor_pool.shm.directories import list_names, opened_child, opened_directory, remove_directory, remove_file
from tensor_pool.shm.epoch_files import remove_epoch_directory
from tensor_pool.shm.layout import MAGIC, SUPERBLOCK_BYTES
from tensor_pool.shm.lock import lock_file
from tensor_pool.shm.paths import HEADER_FILE, LOCK_FILE, NamespacePaths, directory_number

_OPEN_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LOCK_FILE_AGE_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What one collection did."""

    epochs_removed: int = 0
    epochs_kept: int = 0

    def __add__(self, other: CollectionReport) -> CollectionReport:
        return CollectionReport(self.epochs_removed + other.epochs_removed, self.epochs_kept + other.epochs_kept)


class EpochCollector:
    """Looks for epochs that nobody owns any more. Reads and unlinks files: not for a duty cycle."""

    def __init__(self, paths: NamespacePaths, clock: Clock, *, process_id: int, staleness_ns: int) -> None:
        self._paths = paths
        self._clock = clock
        self._process_id = process_id
        self._staleness_ns = staleness_ns

    def collect_own(self, live: Collection[tuple[int, int]]) -> CollectionReport:
        """Collect in our namespace, whose lock we hold. `live` are the (stream id, epoch) that this driver made and looks after itself."""
        with suppress(FileNotFoundError), opened_directory(self._paths.base_dir, self._paths.components) as namespace:
            return self._collect(namespace, live)
        return CollectionReport()

    def collect_abandoned(self) -> CollectionReport:
        """Collect in this user's other namespaces."""
        user_directory, own = self._paths.components
        report = CollectionReport()
        with suppress(FileNotFoundError), opened_directory(self._paths.base_dir, (user_directory,)) as user:
            for name in list_names(user):
                if name != own:
                    # one odd directory must not keep the others from being cleaned
                    with suppress(OSError, RegionError):
                        report += self._collect_namespace(user, name)
        return report

    def _collect_namespace(self, user: int, name: str) -> CollectionReport:
        with opened_child(user, name) as namespace:
            if os.fstat(namespace).st_uid != os.geteuid() or LOCK_FILE not in list_names(namespace) or _is_locked(namespace):
                return CollectionReport()
            report = self._collect(namespace, ())
            if list_names(namespace) == [LOCK_FILE]:
                self._remove_namespace(user, name, namespace)
        return report

    def _remove_namespace(self, user: int, name: str, namespace: int) -> None:
        age_ns = self._clock.realtime_ns() - os.stat(LOCK_FILE, dir_fd=namespace, follow_symlinks=False).st_mtime_ns
        if age_ns < _LOCK_FILE_AGE_NS:
            return  # somebody may be starting there
        descriptor = lock_file(namespace)
        if descriptor is None:
            return
        try:
            remove_file(namespace, LOCK_FILE)
            remove_directory(user, name)
        finally:
            os.close(descriptor)

    def _collect(self, namespace: int, live: Collection[tuple[int, int]]) -> CollectionReport:
        report = CollectionReport()
        for stream_name in list_names(namespace):
            stream_id = directory_number(stream_name)
            if stream_id is None:
                continue
            with suppress(FileNotFoundError), opened_child(namespace, stream_name) as stream:
                for epoch_name in list_names(stream):
                    epoch = directory_number(epoch_name)
                    if epoch is None or (stream_id, epoch) in live:
                        continue
                    removed = self._is_dead(stream, epoch_name) and remove_epoch_directory(stream, epoch_name)
                    report += CollectionReport(int(removed), int(not removed))
            if not any(stream_id == live_stream for live_stream, _ in live):
                remove_directory(namespace, stream_name)
        return report

    def _is_dead(self, stream: int, epoch_name: str) -> bool:
        with opened_child(stream, epoch_name) as epoch:
            superblock = _read_superblock(epoch)
            if superblock is None:
                age_ns = self._clock.realtime_ns() - os.fstat(epoch).st_mtime_ns
                return age_ns > self._staleness_ns
        age_ns = self._clock.monotonic_ns() - superblock.activity_timestamp_ns
        # a time that has not come yet is of another boot
        is_stale = age_ns > self._staleness_ns or age_ns < 0
        # our own id on an epoch that is not ours is a former life's: in containers every driver may be process 1
        return is_stale and (superblock.pid == self._process_id or not process_is_alive(superblock.pid))


def process_is_alive(process_id: int) -> bool:
    """Whether a process of this id exists and runs (a zombie does not), as far as this pid namespace can see."""
    try:
        with open(f"/proc/{process_id}/stat", "rb") as file:
            state = file.read(4096).rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    return state not in (b"Z", b"X")


def _read_superblock(epoch_directory: int) -> ShmRegionSuperblock | None:
    try:
        descriptor = os.open(HEADER_FILE, _OPEN_READ, dir_fd=epoch_directory)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        body = os.pread(descriptor, SUPERBLOCK_BYTES, 0)
    finally:
        os.close(descriptor)
    if len(body) != SUPERBLOCK_BYTES or int.from_bytes(body[:8], "little") != MAGIC:
        return None
    try:
        return ShmRegionSuperblock.decode_body(body)
    except ProtocolError:
        return None


def _is_locked(namespace: int) -> bool:
    descriptor = lock_file(namespace)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False
