"""Where one driver lives on disk: its checked directory tree, what the file system there offers, and the file of epochs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tensor_pool.clock import Clock
from tensor_pool.driver.config import DriverSettings
from tensor_pool.driver.epochs import EpochLedger
from tensor_pool.errors import ConfigError
from tensor_pool.shm.collection import EpochCollector
from tensor_pool.shm.directories import file_system_type
from tensor_pool.shm.epoch_files import EpochStorage, EpochStoragePolicy
from tensor_pool.shm.paths import NamespacePaths, effective_user
from tensor_pool.shm.regions import RegionFactory

# announces and activity older than this many periods are stale (wire 10.1.1, 15.14)
STALE_PERIODS = 3


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """What was found out about the place once, at the start."""

    paths: NamespacePaths
    instance_id: str
    process_id: int
    is_hugetlbfs: bool
    allowed_base_dirs: tuple[str, ...]
    free_bytes: Callable[[], int]

    @property
    def base_dir(self) -> str:
        return self.paths.base_dir

    @property
    def root(self) -> str:
        return self.paths.root


def find_place(settings: DriverSettings, *, process_id: int, host_name: str) -> DriverPlace:
    """Resolve and check the directories of the configuration (wire 15.21a.5). `ConfigError` names the key that does not fit."""
    base_dir = _canonical("shm.base_dir", settings.shm.base_dir)
    allowed = tuple(_canonical("shm.allowed_base_dirs", path) for path in settings.shm.allowed_base_dirs) or (base_dir,)
    if not any(Path(base_dir).is_relative_to(path) for path in allowed):
        raise ConfigError(
            f"shm.base_dir = {base_dir!r} is outside shm.allowed_base_dirs = {list(allowed)}: no client could map a region",
            # of the two the one that somebody must have set
            key="shm.allowed_base_dirs",
            value=settings.shm.allowed_base_dirs,
            hint="add it there, or name a base_dir below one of them",
        )
    is_hugetlbfs = file_system_type(base_dir) == "hugetlbfs"
    if settings.shm.require_hugepages and not is_hugetlbfs:
        raise ConfigError(
            f"shm.require_hugepages is set, and shm.base_dir = {base_dir!r} is not on hugetlbfs",
            key="shm.require_hugepages",
            value=True,
            hint="name a base_dir on one (mount -t hugetlbfs none <directory>), or leave require_hugepages out",
        )
    paths = NamespacePaths(base_dir, effective_user(), settings.shm.namespace)

    def free_bytes() -> int:
        statistics = os.statvfs(base_dir)
        return statistics.f_bavail * statistics.f_frsize

    return DriverPlace(
        paths=paths,
        instance_id=settings.driver.instance_id or f"{host_name}-{settings.shm.namespace}",
        process_id=process_id,
        is_hugetlbfs=is_hugetlbfs,
        allowed_base_dirs=allowed,
        free_bytes=free_bytes,
    )


def epoch_storage(settings: DriverSettings, place: DriverPlace, factory: RegionFactory, clock: Clock) -> EpochStorage:
    policy = EpochStoragePolicy(
        permissions=settings.shm.permissions_mode,
        hugepages=place.is_hugetlbfs,
        prefault=settings.policies.prefault_shm,
        lock_memory=settings.policies.mlock_shm,
    )
    return EpochStorage(place.paths, factory, policy, process_id=place.process_id, monotonic_ns=clock.monotonic_ns)


def epoch_ledger(place: DriverPlace, state_directory: Path, clock: Clock) -> EpochLedger:
    """One file for each directory tree, outside shared memory: epochs rise though that is wiped."""
    name = hashlib.sha256(place.root.encode()).hexdigest()[:16]
    return EpochLedger(state_directory / f"epochs-{place.paths.namespace}-{name}.json", clock.realtime_ns)


def epoch_collector(settings: DriverSettings, place: DriverPlace, clock: Clock) -> EpochCollector:
    staleness_ns = STALE_PERIODS * settings.policies.announce_period_ms * 1_000_000
    return EpochCollector(place.paths, clock, process_id=place.process_id, staleness_ns=staleness_ns)


def _canonical(key: str, path: str) -> str:
    if not os.path.isabs(path):
        raise ConfigError(f"{key} = {path!r} is not absolute", key=key, value=path, hint="begin it with /")
    resolved = os.path.realpath(path)
    if not os.path.isdir(resolved):
        raise ConfigError(f"{key} = {path!r} is no directory", key=key, value=path, hint="make it, or name another on a tmpfs")
    return resolved
