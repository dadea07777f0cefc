"""A client's mapping of one epoch: every region opened safely, every superblock checked, or none mapped at all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from tensor_pool._native import Region
from tensor_pool.errors import SuperblockMismatchError
from tensor_pool.sbe.control import RegionType, ShmRegionSuperblock
from tensor_pool.shm.layout import ACTIVITY_OFFSET, HEADER_SLOT_BYTES, MAGIC, SUPERBLOCK_BYTES, PoolLayout, PoolSpec
from tensor_pool.uri import RegionUri

# one public implementation writes this for a pool's slot_bytes (E4)
POOL_SLOT_BYTES_UNSPECIFIED = 0xFFFFFFFF


class MappedPools:
    """The mapped regions of one epoch."""

    def __init__(self, layout: PoolLayout, header: Region, pools: tuple[tuple[int, int, Region], ...]) -> None:
        self.layout = layout
        self.header = header
        self.pools = pools
        self._superblock = header.read(0, ACTIVITY_OFFSET)

    @classmethod
    def open(cls, layout: PoolLayout, allowed_base_dirs: Sequence[str], *, writable: bool, now_ns: int, freshness_ns: int) -> MappedPools:
        """Map every region of `layout`, or none. Raises `RegionError` (or a kind of it) or `ProtocolError` for a bad URI."""
        with ExitStack() as opened:
            header = _open(layout.header_uri, allowed_base_dirs, writable=writable, minimum_length=layout.header_bytes)
            opened.callback(header.close)
            pools = []
            for pool in layout.pools:
                length = SUPERBLOCK_BYTES + pool.stride_bytes * pool.nslots
                region = _open(pool.uri, allowed_base_dirs, writable=writable, minimum_length=length)
                opened.callback(region.close)
                pools.append((pool.pool_id, pool.stride_bytes, region))
            check_header_superblock(header, layout)
            for spec, (_, _, region) in zip(layout.pools, pools, strict=True):
                check_pool_superblock(region, layout, spec)
            mapped = cls(layout, header, tuple(pools))
            mapped.check_activity(now_ns, freshness_ns)
            opened.pop_all()
        return mapped

    def check_unchanged(self) -> None:
        """Read the superblock again (wire 15.1: on every announce). Whatever changed but the activity is a mismatch."""
        now = self.header.read(0, ACTIVITY_OFFSET)
        if now != self._superblock:
            raise SuperblockMismatchError(
                f"the superblock of stream {self.layout.stream_id} epoch {self.layout.epoch} changed under the mapping",
                path=self.header.path,
            )

    @property
    def activity_ns(self) -> int:
        """When the driver last said that it is alive, in CLOCK_MONOTONIC."""
        return self.header.load_u64(ACTIVITY_OFFSET)

    def check_activity(self, now_ns: int, freshness_ns: int) -> None:
        age_ns = now_ns - self.activity_ns
        if age_ns > freshness_ns:
            raise SuperblockMismatchError(
                f"stream {self.layout.stream_id} epoch {self.layout.epoch}: its driver was last active {age_ns / 1e9:.1f} s ago",
                path=self.header.path,
                hint="the driver is gone or stopped; the mapping is not trusted until it is back",
            )

    def close(self) -> None:
        self.header.close()
        for _, _, region in self.pools:
            region.close()

    def __enter__(self) -> MappedPools:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _open(uri: str, allowed_base_dirs: Sequence[str], *, writable: bool, minimum_length: int) -> Region:
    parsed = RegionUri.parse(uri)
    return Region.open(
        parsed.path,
        allowed_base_dirs,
        writable=writable,
        minimum_length=minimum_length,
        require_hugepages=parsed.require_hugepages,
    )


def check_header_superblock(region: Region, layout: PoolLayout) -> ShmRegionSuperblock:
    """The superblock of a header ring, where it is what `layout` says; `SuperblockMismatchError` otherwise."""
    superblock = _common_checks(region, layout, RegionType.HEADER_RING, pool_id=0)
    if superblock.slot_bytes != HEADER_SLOT_BYTES:
        raise _mismatch(region, "slot_bytes", superblock.slot_bytes, HEADER_SLOT_BYTES)
    return superblock


def check_pool_superblock(region: Region, layout: PoolLayout, pool: PoolSpec) -> ShmRegionSuperblock:
    """The superblock of a payload pool, where it is what `layout` says; `SuperblockMismatchError` otherwise."""
    superblock = _common_checks(region, layout, RegionType.PAYLOAD_POOL, pool_id=pool.pool_id)
    if superblock.stride_bytes != pool.stride_bytes:
        raise _mismatch(region, "stride_bytes", superblock.stride_bytes, pool.stride_bytes)
    if superblock.slot_bytes not in (pool.stride_bytes, POOL_SLOT_BYTES_UNSPECIFIED):
        raise _mismatch(region, "slot_bytes", superblock.slot_bytes, pool.stride_bytes)
    return superblock


def _common_checks(region: Region, layout: PoolLayout, region_type: RegionType, *, pool_id: int) -> ShmRegionSuperblock:
    body = region.read(0, SUPERBLOCK_BYTES)
    magic = int.from_bytes(body[:8], "little")
    if magic != MAGIC:
        raise _mismatch(region, "magic", f"{magic:#018x}", f"{MAGIC:#018x}")
    superblock = ShmRegionSuperblock.decode_body(body)
    expected = {
        "layout_version": layout.layout_version,
        "epoch": layout.epoch,
        "stream_id": layout.stream_id,
        "region_type": region_type,
        "pool_id": pool_id,
        "nslots": layout.nslots,
    }
    for field, value in expected.items():
        found = getattr(superblock, field)
        if found != value:
            raise _mismatch(region, field, found, value)
    return superblock


def _mismatch(region: Region, field: str, found: object, expected: object) -> SuperblockMismatchError:
    return SuperblockMismatchError(f"{region.path}: {field} in the superblock is {found}, announced is {expected}", path=region.path)
