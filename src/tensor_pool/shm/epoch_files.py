"""The files of one epoch: a header ring and its payload pools, made in a directory of their own, never re-initialised, never truncated."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from tensor_pool.errors import RegionError
from tensor_pool.sbe.control import RegionType, ShmRegionSuperblock
from tensor_pool.shm.directories import (
    PermissionMode,
    list_names,
    make_new_directory,
    opened_child,
    opened_directory,
    remove_directory,
    remove_file,
)
from tensor_pool.shm.layout import (
    ACTIVITY_OFFSET,
    HEADER_SLOT_BYTES,
    LAYOUT_VERSION,
    MAGIC,
    SUPERBLOCK_BYTES,
    PoolLayout,
    PoolSpec,
)
from tensor_pool.shm.paths import HEADER_FILE, NamespacePaths, directory_number, is_region_file, pool_file
from tensor_pool.shm.regions import OwnedRegion, RegionFactory
from tensor_pool.uri import RegionUri


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A payload pool of a stream that may have no files yet."""

    pool_id: int
    stride_bytes: int


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """How the regions of a stream are cut. Every pool has as many slots as the header ring (wire 9)."""

    nslots: int
    pools: tuple[PoolSize, ...]

    @property
    def header_bytes(self) -> int:
        return SUPERBLOCK_BYTES + self.nslots * HEADER_SLOT_BYTES

    def pool_bytes(self, pool: PoolSize) -> int:
        return SUPERBLOCK_BYTES + self.nslots * pool.stride_bytes

    @property
    def total_bytes(self) -> int:
        return self.header_bytes + sum(self.pool_bytes(pool) for pool in self.pools)


class EpochFiles:
    """One epoch as its owner holds it: mapped, with the layout that announces and attach responses repeat."""

    def __init__(self, layout: PoolLayout, regions: Sequence[OwnedRegion], *, reserved: bool) -> None:
        self.layout = layout
        self.reserved = reserved
        self._regions = tuple(regions)

    def refresh_activity(self, now_ns: int) -> None:
        """Say in every superblock that the owner is alive (decision E28)."""
        for region in self._regions:
            region.store_u64(ACTIVITY_OFFSET, now_ns)

    def close(self) -> None:
        """Unmap. The files stay."""
        for region in self._regions:
            region.close()


@dataclass(frozen=True, slots=True)
class EpochStoragePolicy:
    """How files of epochs are made."""

    permissions: PermissionMode = PermissionMode.GROUP
    hugepages: bool = False
    prefault: bool = False
    lock_memory: bool = False


class EpochStorage:
    """Makes and removes the epochs of one namespace. Every call may take long: none belongs into a duty cycle."""

    def __init__(
        self,
        paths: NamespacePaths,
        factory: RegionFactory,
        policy: EpochStoragePolicy,
        *,
        process_id: int,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self.paths = paths
        self.policy = policy
        self._factory = factory
        self._process_id = process_id
        self._monotonic_ns = monotonic_ns

    def create(self, stream_id: int, epoch: int, sizes: StreamSizes, *, reserve: bool) -> EpochFiles:
        """Make every file of an epoch, superblocks written, or none.

        With `reserve` the space of the pools is taken now; without it they stay sparse, for an epoch that has no producer (decision E56).
        """
        *parents, name = self.paths.epoch_components(stream_id, epoch)
        mode = self.policy.permissions.directory_mode
        path = os.path.join(self.paths.base_dir, *parents, name)
        with opened_directory(self.paths.base_dir, parents, make_mode=mode) as directory:
            make_new_directory(directory, name, path, mode)
        with ExitStack() as undo:
            undo.callback(self.remove, stream_id, epoch)
            regions = self._create_regions(stream_id, epoch, sizes, reserve, undo)
            undo.pop_all()
        return EpochFiles(self._layout(stream_id, epoch, sizes, regions), regions, reserved=reserve)

    def _create_regions(self, stream_id: int, epoch: int, sizes: StreamSizes, reserve: bool, undo: ExitStack) -> list[OwnedRegion]:
        parts = self.paths.epoch_components(stream_id, epoch)
        files = [(HEADER_FILE, sizes.header_bytes, True, self._header_superblock(stream_id, epoch, sizes))]
        files += [
            (pool_file(pool.pool_id), sizes.pool_bytes(pool), reserve, self._pool_superblock(stream_id, epoch, sizes, pool))
            for pool in sizes.pools
        ]
        regions = []
        for name, length, reserve_file, superblock in files:
            region = self._factory.create(
                self.paths.base_dir,
                os.path.join(*parts, name),
                length,
                mode=self.policy.permissions.file_mode,
                reserve=reserve_file,
                hugepages=self.policy.hugepages,
            )
            undo.callback(region.close)
            region.write(0, superblock.encode_body())
            if reserve:
                self._prepare_memory(region)
            regions.append(region)
        return regions

    def _prepare_memory(self, region: OwnedRegion) -> None:
        if self.policy.prefault:
            region.prefault()
        if self.policy.lock_memory:
            region.lock()

    def _header_superblock(self, stream_id: int, epoch: int, sizes: StreamSizes) -> ShmRegionSuperblock:
        return self._superblock(
            stream_id, epoch, sizes, region_type=RegionType.HEADER_RING, pool_id=0, slot_bytes=HEADER_SLOT_BYTES, stride_bytes=0
        )

    def _pool_superblock(self, stream_id: int, epoch: int, sizes: StreamSizes, pool: PoolSize) -> ShmRegionSuperblock:
        return self._superblock(
            stream_id,
            epoch,
            sizes,
            region_type=RegionType.PAYLOAD_POOL,
            pool_id=pool.pool_id,
            slot_bytes=pool.stride_bytes,
            stride_bytes=pool.stride_bytes,
        )

    def _superblock(
        self, stream_id: int, epoch: int, sizes: StreamSizes, *, region_type: RegionType, pool_id: int, slot_bytes: int, stride_bytes: int
    ) -> ShmRegionSuperblock:
        now_ns = self._monotonic_ns()
        return ShmRegionSuperblock(
            magic=MAGIC,
            layout_version=LAYOUT_VERSION,
            epoch=epoch,
            stream_id=stream_id,
            region_type=region_type,
            pool_id=pool_id,
            nslots=sizes.nslots,
            slot_bytes=slot_bytes,
            stride_bytes=stride_bytes,
            pid=self._process_id,
            start_timestamp_ns=now_ns,
            activity_timestamp_ns=now_ns,
        )

    def _layout(self, stream_id: int, epoch: int, sizes: StreamSizes, regions: Sequence[OwnedRegion]) -> PoolLayout:
        uris = [str(RegionUri(region.path, self.policy.hugepages)) for region in regions]
        return PoolLayout(
            stream_id=stream_id,
            epoch=epoch,
            layout_version=LAYOUT_VERSION,
            nslots=sizes.nslots,
            header_slot_bytes=HEADER_SLOT_BYTES,
            header_uri=uris[0],
            pools=tuple(
                PoolSpec(pool.pool_id, sizes.nslots, pool.stride_bytes, uri) for pool, uri in zip(sizes.pools, uris[1:], strict=True)
            ),
        )

    def remove(self, stream_id: int, epoch: int) -> None:
        """Remove an epoch's files and directory. What a driver did not make there stays, and the directory with it."""
        *parents, name = self.paths.epoch_components(stream_id, epoch)
        with suppress(FileNotFoundError), opened_directory(self.paths.base_dir, parents) as directory:
            remove_epoch_directory(directory, name)

    def epochs_on_disk(self) -> dict[int, list[int]]:
        """The epochs that have a directory, by stream, whoever made them."""
        found: dict[int, list[int]] = {}
        with suppress(FileNotFoundError), opened_directory(self.paths.base_dir, self.paths.components) as namespace:
            for stream_name in list_names(namespace):
                stream_id = directory_number(stream_name)
                if stream_id is not None:
                    with suppress(OSError, RegionError), opened_child(namespace, stream_name) as stream:
                        numbers = (directory_number(name) for name in list_names(stream))
                        found[stream_id] = [number for number in numbers if number is not None]
        return found

    def remove_stream_directory(self, stream_id: int) -> None:
        """Remove the directory of a stream that has no epoch any more."""
        with suppress(FileNotFoundError), opened_directory(self.paths.base_dir, self.paths.components) as directory:
            remove_directory(directory, str(stream_id))


def remove_epoch_directory(stream_directory: int, name: str) -> bool:
    """Remove the epoch directory `name`, found in an opened stream directory. False where something else lies in it."""
    with suppress(FileNotFoundError), opened_child(stream_directory, name) as epoch_directory:
        for file in list_names(epoch_directory):
            if is_region_file(file):
                remove_file(epoch_directory, file)
    return remove_directory(stream_directory, name)
