"""Where a stream's regions are and how they are cut, as an announce or an attach response says it."""

from __future__ import annotations

from dataclasses import dataclass

from tensor_pool.errors import ProtocolError
from tensor_pool.sbe.control import ShmPoolAnnounce
from tensor_pool.sbe.driver import ShmAttachResponse

MAGIC = 0x544F504C53484D31
SUPERBLOCK_BYTES = 64
ACTIVITY_OFFSET = 56
HEADER_SLOT_BYTES = 256
LAYOUT_VERSION = 1
MAX_DIMS = 8
LARGEST_STRIDE_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One payload pool: `nslots` slots of `stride_bytes` each, in the file that `uri` names."""

    pool_id: int
    nslots: int
    stride_bytes: int
    uri: str


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """Everything needed to map one epoch of a stream. Making one checks what can be checked without opening a file."""

    stream_id: int
    epoch: int
    layout_version: int
    nslots: int
    header_slot_bytes: int
    header_uri: str
    pools: tuple[PoolSpec, ...]

    def __post_init__(self) -> None:
        if self.layout_version != LAYOUT_VERSION:
            raise self._refused("layout_version", f"is {self.layout_version}, {LAYOUT_VERSION} is supported", "W-15.1-1")
        if self.header_slot_bytes != HEADER_SLOT_BYTES:
            raise self._refused("header_slot_bytes", f"is {self.header_slot_bytes}, not {HEADER_SLOT_BYTES}", "W-10.1.1-3")
        if not _is_power_of_two(self.nslots):
            raise self._refused("header_nslots", f"is {self.nslots}, not a power of two", "W-12-14-1")
        if not self.pools:
            raise self._refused("payload_pools", "is empty", "W-15.1-1")
        if len({pool.pool_id for pool in self.pools}) != len(self.pools):
            raise self._refused("pool_id", "is given twice", "W-7.1-11")
        for pool in self.pools:
            if pool.pool_id in (0, 0xFFFF):
                raise self._refused("pool_id", f"{pool.pool_id} is reserved", "W-7.1-11")
            if pool.nslots != self.nslots:
                raise self._refused("pool_nslots", f"is {pool.nslots}, the header ring has {self.nslots}", "W-15.5-1")
            if not is_valid_stride(pool.stride_bytes):
                raise self._refused("stride_bytes", f"is {pool.stride_bytes}, not 64 times a power of two", "W-15.22-12")

    def _refused(self, field: str, words: str, rule: str) -> ProtocolError:
        return ProtocolError(f"stream {self.stream_id} epoch {self.epoch}: {field} {words}", name="ShmPoolAnnounce", field=field, rule=rule)

    @property
    def largest_stride_bytes(self) -> int:
        return max(pool.stride_bytes for pool in self.pools)

    @property
    def header_bytes(self) -> int:
        """Length of the header ring's file."""
        return SUPERBLOCK_BYTES + HEADER_SLOT_BYTES * self.nslots


def layout_from_announce(announce: ShmPoolAnnounce) -> PoolLayout:
    """The layout that an announce describes; `ProtocolError` where it breaks a rule."""
    return PoolLayout(
        stream_id=announce.stream_id,
        epoch=announce.epoch,
        layout_version=announce.layout_version,
        nslots=announce.header_nslots,
        header_slot_bytes=announce.header_slot_bytes,
        header_uri=announce.header_region_uri,
        pools=tuple(PoolSpec(p.pool_id, p.pool_nslots, p.stride_bytes, p.region_uri) for p in announce.payload_pools),
    )


def layout_from_response(response: ShmAttachResponse) -> PoolLayout:
    """The layout that a successful attach response gives. A required field that is null is a `ProtocolError` (D-4.2-12)."""

    def required(field: str) -> int:
        value = getattr(response, field)
        if value is None:
            raise ProtocolError(f"attach response: {field} is null", name="ShmAttachResponse", field=field, rule="D-4.2-12")
        return int(value)

    for field in ("lease_id", "max_dims"):
        required(field)
    if not response.header_region_uri or any(not pool.region_uri for pool in response.payload_pools):
        raise ProtocolError("attach response: a region URI is empty", name="ShmAttachResponse", field="region_uri", rule="D-4.2-12")
    return PoolLayout(
        stream_id=required("stream_id"),
        epoch=required("epoch"),
        layout_version=required("layout_version"),
        nslots=required("header_nslots"),
        header_slot_bytes=required("header_slot_bytes"),
        header_uri=response.header_region_uri,
        pools=tuple(PoolSpec(p.pool_id, p.pool_nslots, p.stride_bytes, p.region_uri) for p in response.payload_pools),
    )


def is_valid_stride(stride_bytes: int) -> bool:
    """64 times a power of two, below 2^31 (wire 15.22, E23)."""
    return 64 <= stride_bytes <= LARGEST_STRIDE_BYTES and _is_power_of_two(stride_bytes)


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
