"""What the fault tests run in processes of their own: `module:function arguments...` of `tensor_pool.testing.child`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tensor_pool._native import FrameReader, Region, RingWriter, failpoint_arm
from tensor_pool.driver.config import DriverSettings, PoolSection, ProfileSection, ShmSection, StreamSection
from tensor_pool.errors import StorageSpaceError
from tensor_pool.sbe.control import ShmPoolAnnounce
from tensor_pool.sbe.driver import Bool, PublishMode, Role, ShmAttachRequest, ShmAttachResponse
from tensor_pool.testing.driver import InvokedDriver
from tests.unit.native.rings import publish_numbered, ring

TMPFS_BYTES = 1 << 20


def say(words: object) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def _mount_small_tmpfs(directory: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", directory], check=True)


def full_file_system() -> int:
    """In a mount namespace of its own: make, reserve and touch more than a tmpfs of 1 MiB holds, and say what happened."""
    directory = sys.argv[1]
    _mount_small_tmpfs(directory)
    said: dict[str, object] = {}

    def note(name: str, error: StorageSpaceError) -> None:
        said[name] = [error.need_bytes, error.have_bytes, error.path, error.hint, str(error)]

    try:
        Region.create(directory, "big", 4 * TMPFS_BYTES)
    except StorageSpaceError as error:
        note("create", error)
    said["left"] = [path.name for path in Path(directory).iterdir()]

    kept = Region.create(directory, "half", TMPFS_BYTES // 2)
    kept.write(0, b"kept")
    try:
        Region.create(directory, "more", TMPFS_BYTES)
    except StorageSpaceError as error:
        note("second", error)

    sparse = Region.create(directory, "sparse", 4 * TMPFS_BYTES, reserve=False)
    for name, call in (("reserve", sparse.reserve), ("prefault", sparse.prefault)):
        try:
            call()
        except StorageSpaceError as error:
            note(name, error)
    said["content"] = kept.read(0, 4).decode()
    said["names"] = sorted(path.name for path in Path(directory).iterdir())
    say(json.dumps(said))
    return 0


def hugepages() -> int:
    """In a mount namespace of its own: a hugetlbfs, with as many pages as there are."""
    directory = sys.argv[1]
    subprocess.run(["mount", "-t", "hugetlbfs", "none", directory], check=True)
    said: dict[str, object] = {}
    sparse = Path(directory) / "file"
    with open(sparse, "wb") as file:
        file.truncate(2 << 20)
    try:
        region = Region.open(str(sparse), [directory], writable=False, minimum_length=1, require_hugepages=True)
        said["open"] = region.length
    except Exception as error:  # noqa: BLE001 - told to the test
        said["open"] = f"{type(error).__name__}: {error}"
    try:
        said["create"] = Region.create(directory, "new", 4096, hugepages=True).length
    except Exception as error:  # noqa: BLE001 - told to the test
        said["create"] = f"{type(error).__name__}: {error}"
    said["names"] = sorted(path.name for path in Path(directory).iterdir())
    say(json.dumps(said))
    return 0


@dataclass
class RegionWithoutPages:
    """A file of the right name, where there is no page to map: a driver has to hold regions, and here nobody reads them."""

    path: str
    length: int

    def write(self, offset: int, data: bytes) -> None: ...
    def store_u64(self, offset: int, value: int) -> None: ...
    def prefault(self) -> None: ...
    def lock(self) -> None: ...
    def close(self) -> None: ...


class FactoryWithoutPages:
    """A `RegionFactory` for a hugetlbfs of a host that has set no hugepages aside."""

    def create(self, base_dir: str, relative_path: str, length: int, **options: object) -> RegionWithoutPages:
        path = Path(base_dir, relative_path)
        path.touch()
        return RegionWithoutPages(str(path), length)


def driver_on_hugepages() -> int:
    """In a mount namespace of its own: what a driver that requires its files to lie on a hugetlbfs answers and announces there."""
    directory, state_directory = map(Path, sys.argv[1:])
    subprocess.run(["mount", "-t", "hugetlbfs", "none", directory], check=True)
    profile = ProfileSection(header_nslots=4, payload_pools=(PoolSection(pool_id=1, stride_bytes=64),))
    streams = {"camera": StreamSection(stream_id=10, profile="small")}
    settings = DriverSettings(shm=ShmSection(require_hugepages=True), profiles={"small": profile}, streams=streams)
    request = ShmAttachRequest(1, 10, 1, Role.CONSUMER, 0, 0, PublishMode.REQUIRE_EXISTING, Bool.TRUE)
    with InvokedDriver(directory, state_directory, settings, region_factory=FactoryWithoutPages()) as driver:
        said = [*driver.send(request), *driver.advance(2_000_000_000)]
    answers = [message for message in said if isinstance(message, ShmAttachResponse)]
    named = [message for message in said if isinstance(message, ShmAttachResponse | ShmPoolAnnounce)]
    uris = {uri for message in named for uri in (message.header_region_uri, *(pool.region_uri for pool in message.payload_pools))}
    answered = [[answer.code.name, answer.error_message] for answer in answers]
    say(json.dumps({"answered": answered, "announces": len(named) - len(answers), "uris": sorted(uris)}))
    return 0


def too_large_for_the_limit() -> int:
    """Make a region above the process's limit for files."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        Region.create(sys.argv[1], "new", 8192)
    except Exception as error:  # noqa: BLE001 - told to the test
        say(f"{type(error).__name__}: {error}")
    return 0


def killed_writer() -> int:
    """Publish eight frames, then a ninth that a failpoint ends."""
    header, pool, point = sys.argv[1:]
    bases = [str(Path(header).parent)]
    regions = [Region.open(path, bases, writable=True, minimum_length=1) for path in (header, pool)]
    writer = RingWriter(regions[0], [(1, 4096, regions[1])], nslots=8, stream_id=7001, epoch=11, publication=None)
    for number in range(9):
        if number == 8:
            failpoint_arm(point, "kill")
        publish_numbered(writer, number)
    return 0


def too_large_from_many_threads() -> int:
    """Threads whose frames are refused, beside threads that ask the writer and the reader for their counters."""
    import threading
    import time
    from contextlib import suppress

    from tensor_pool.errors import ClosedError, FrameTooLargeError

    with ring(strides=(64 * 1024,)) as made:
        writer, reader = made.writer(), made.reader()
        too_large, fitting = bytes(100_000), bytes(60_000)
        deadline = time.monotonic() + float(sys.argv[1])

        def publish(payload: bytes) -> None:
            while time.monotonic() < deadline:
                with suppress(FrameTooLargeError):
                    writer.publish(payload, 1, 1, [len(payload)], timestamp_ns=1, meta_version=0, trace_id=0, publish_timestamp=False)

        def ask() -> None:
            while time.monotonic() < deadline:
                writer.counters()
                reader.counters()
                assert writer.next_seq >= 0

        closed = FrameReader(None, stream_id=1)
        closed.close()

        def map_closed() -> None:
            while time.monotonic() < deadline:
                with suppress(ClosedError):
                    made.map(closed)
                closed.counters()

        work = [
            (publish, (too_large,)),
            (publish, (too_large,)),
            (publish, (fitting,)),
            (ask, ()),
            (ask, ()),
            (map_closed, ()),
            (map_closed, ()),
        ]
        threads = [threading.Thread(target=target, args=arguments) for target, arguments in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(writer.counters()["frames_dropped_too_large"])
    return 0
