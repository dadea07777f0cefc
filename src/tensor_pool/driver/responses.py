"""Attach and detach responses as bytes."""

from __future__ import annotations

from tensor_pool.driver.leases import Lease
from tensor_pool.sbe.driver import PayloadPool, ResponseCode, ShmAttachResponse, ShmDetachResponse
from tensor_pool.shm.layout import MAX_DIMS, PoolLayout


def granted(lease: Lease, expiry_ns: int, layout: PoolLayout) -> bytes:
    """Every field filled (driver 4.2)."""
    return ShmAttachResponse(
        correlation_id=lease.correlation_id,
        code=ResponseCode.OK,
        lease_id=lease.lease_id,
        lease_expiry_timestamp_ns=expiry_ns,
        stream_id=layout.stream_id,
        epoch=layout.epoch,
        layout_version=layout.layout_version,
        header_nslots=layout.nslots,
        header_slot_bytes=layout.header_slot_bytes,
        max_dims=MAX_DIMS,
        payload_pools=tuple(PayloadPool(pool.pool_id, pool.nslots, pool.stride_bytes, pool.uri) for pool in layout.pools),
        header_region_uri=layout.header_uri,
        error_message="",
    ).encode()


def refused(correlation_id: int, code: ResponseCode, words: str) -> bytes:
    """The code, the reason, and null in every other field."""
    return ShmAttachResponse(
        correlation_id=correlation_id,
        code=code,
        lease_id=None,
        lease_expiry_timestamp_ns=None,
        stream_id=None,
        epoch=None,
        layout_version=None,
        header_nslots=None,
        header_slot_bytes=None,
        max_dims=None,
        payload_pools=(),
        header_region_uri="",
        error_message=words,
    ).encode()


def detached(correlation_id: int, code: ResponseCode, words: str = "") -> bytes:
    return ShmDetachResponse(correlation_id=correlation_id, code=code, error_message=words).encode()
