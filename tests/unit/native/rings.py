"""A ring on its own: files below a directory of its own, a writer, readers, and a second mapping to break its bytes with."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensor_pool import _native
from tensor_pool._native import FrameReader, Region, RingWriter

SUPERBLOCK_BYTES = 64
SLOT_BYTES = 256
STREAM_ID = 7001
EPOCH = 11

UINT8, FLOAT32, FLOAT64 = 1, 9, 10
ROW, COLUMN = 1, 2

IDENTITY = ("delivered", "skipped", "gap", "late", "invalid")
COUNTED = (*IDENTITY, "wrong_epoch", "unmapped", "not_committed", "malformed")

# offsets in a slot, written out by hand from the tables of requirements.md 3
SEQ_COMMIT, VALUES_LEN, PAYLOAD_SLOT, POOL_ID, PAYLOAD_OFFSET = 0, 8, 12, 16, 18
TIMESTAMP, META_VERSION, SLOT_PAD, HEADER_LENGTH = 22, 30, 34, 60
EMBEDDED_BLOCK_LENGTH, EMBEDDED_TEMPLATE, EMBEDDED_SCHEMA, EMBEDDED_VERSION = 64, 66, 68, 70
DTYPE, MAJOR_ORDER, NDIMS, PAD_ALIGN, PROGRESS_UNIT, PROGRESS_STRIDE = 72, 74, 76, 77, 78, 79
DIMS, STRIDES, TENSOR_PAD = 83, 115, 147


@contextmanager
def shared_directory() -> Iterator[Path]:
    """A new directory in shared memory, removed with everything in it."""
    directory = Path(tempfile.mkdtemp(prefix="tp-native-", dir="/dev/shm")).resolve()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass
class Ring:
    """Header ring and pools, mapped for writing."""

    directory: Path
    nslots: int
    header: Region
    pools: list[tuple[int, int, Region]]
    readers: list[FrameReader] = field(default_factory=list)

    def writer(self, *, epoch: int = EPOCH, publication: Any = None) -> RingWriter:
        return RingWriter(self.header, self.pools, nslots=self.nslots, stream_id=STREAM_ID, epoch=epoch, publication=publication)

    def reader(
        self,
        *,
        first_seq: int | None = 0,
        max_outstanding_gap: int = 1 << 40,
        epoch: int = EPOCH,
        subscription: Any = None,
        writable: bool = False,
    ) -> FrameReader:
        reader = FrameReader(subscription, stream_id=STREAM_ID)
        self.map(reader, first_seq=first_seq, max_outstanding_gap=max_outstanding_gap, epoch=epoch, writable=writable)
        self.readers.append(reader)
        return reader

    def map(
        self,
        reader: FrameReader,
        *,
        first_seq: int | None = 0,
        max_outstanding_gap: int = 1 << 40,
        epoch: int = EPOCH,
        writable: bool = False,
        resume: bool = False,
    ) -> int:
        header, *pools = (self.open(region, writable=writable) for region in (self.header, *(region for _, _, region in self.pools)))
        described = [(pool_id, stride, region) for (pool_id, stride, _), region in zip(self.pools, pools, strict=True)]
        return reader.map(
            header,
            described,
            nslots=self.nslots,
            epoch=epoch,
            first_seq=first_seq,
            max_outstanding_gap=max_outstanding_gap,
            resume=resume,
        )

    def open(self, region: Region, *, writable: bool) -> Region:
        return Region.open(region.path, [str(self.directory)], writable=writable, minimum_length=region.length)

    def slot_offset(self, seq: int) -> int:
        return SUPERBLOCK_BYTES + SLOT_BYTES * (seq % self.nslots)

    def slot(self, seq: int) -> bytes:
        return self.header.read(self.slot_offset(seq), SLOT_BYTES)

    def patch(self, seq: int, offset: int, layout: str, *values: int) -> None:
        """Write over fields of a slot, as a producer that breaks the rules would."""
        self.header.write(self.slot_offset(seq) + offset, struct.pack("<" + layout, *values))

    def payload(self, seq: int, pool: int, length: int) -> bytes:
        _, stride, region = self.pools[pool]
        return region.read(SUPERBLOCK_BYTES + stride * (seq % self.nslots), length)


@contextmanager
def ring(nslots: int = 8, strides: Sequence[int] = (4096,), *, first_pool_id: int = 1) -> Iterator[Ring]:
    """A ring of its own in shared memory."""
    with shared_directory() as directory:
        header = Region.create(str(directory), "header.ring", SUPERBLOCK_BYTES + SLOT_BYTES * nslots)
        pools = [
            (pool_id, stride, Region.create(str(directory), f"{pool_id}.pool", SUPERBLOCK_BYTES + stride * nslots))
            for pool_id, stride in enumerate(strides, first_pool_id)
        ]
        yield Ring(directory, nslots, header, pools)


def publish(
    writer: RingWriter,
    payload: Any,
    shape: Sequence[int] | None = None,
    *,
    dtype: int = UINT8,
    major_order: int = ROW,
    timestamp_ns: int = 1,
    meta_version: int = 0,
    trace_id: int = 0,
    publish_timestamp: bool = False,
) -> int:
    """Publish bytes, by default as a vector of uint8."""
    return writer.publish(
        payload,
        dtype,
        major_order,
        [memoryview(payload).nbytes] if shape is None else shape,
        timestamp_ns=timestamp_ns,
        meta_version=meta_version,
        trace_id=trace_id,
        publish_timestamp=publish_timestamp,
    )


def commit(
    claim: _native.Claim,
    shape: Sequence[int] | None = None,
    *,
    dtype: int = UINT8,
    timestamp_ns: int = 1,
    meta_version: int = 0,
    trace_id: int = 0,
) -> int:
    """Commit a claim, by default as a vector of uint8."""
    return claim.commit(
        dtype,
        ROW,
        [memoryview(claim).nbytes] if shape is None else shape,
        timestamp_ns=timestamp_ns,
        meta_version=meta_version,
        trace_id=trace_id,
        publish_timestamp=False,
    )


def publish_numbered(writer: RingWriter, number: int, *, in_place: bool = False) -> int:
    """A frame of 4096 bytes whose payload, time, version and shape tell its number (0 to 12)."""
    payload, shape = bytes([number]) * 4096, [4096 >> number, 1 << number]
    if not in_place:
        return publish(writer, payload, shape, timestamp_ns=number, meta_version=number)
    claim = writer.claim(len(payload))
    memoryview(claim)[:] = payload
    return commit(claim, shape, timestamp_ns=number, meta_version=number)


def numbered_header(number: int) -> bytes:
    """What a ring of eight slots has behind the commit word of a slot after `publish_numbered` of every number up to this one."""
    with ring() as made:
        writer = made.writer()
        for each in range(number + 1):
            publish_numbered(writer, each)
        return made.slot(number)[8:]


def balances(counters: dict[str, int]) -> bool:
    """The identity of a reader's books."""
    return sum(counters[name] for name in IDENTITY) == counters["last_seq"] - counters["first_seq"] + 1


def counted(reader: FrameReader) -> dict[str, int]:
    """The counters that are not zero."""
    counters = reader.counters()
    assert reader.epoch is None or balances(counters)
    return {name: counters[name] for name in COUNTED if counters[name]}


def in_a_fork(work: Callable[[], str]) -> str:
    """What `work` returned in a forked child, or the traceback of what it raised. A child that died says nothing."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        # a fork beside threads is what these tests are about
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.write(write_end, work().encode())
        except BaseException:  # noqa: BLE001 - nothing may leave the child but by its pipe
            os.write(write_end, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as said:
        text = said.read().decode()
    os.waitpid(child, 0)
    return text
