"""What a driver can be told: the sections `driver`, `shm`, `policies`, `profiles.<name>` and `streams.<name>` of a stack's TOML file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tensor_pool.config import power_of_two_complaint, section, setting
from tensor_pool.errors import ConfigError
from tensor_pool.sbe.control import ClockDomain
from tensor_pool.shm.directories import PermissionMode
from tensor_pool.shm.epoch_files import PoolSize, StreamSizes
from tensor_pool.shm.layout import LARGEST_STRIDE_BYTES, is_valid_stride
from tensor_pool.shm.paths import is_safe_component
from tensor_pool.transport import exclusive_channel, subscription_channel

HIGHEST_AERON_STREAM_ID: Final = (1 << 31) - 1
HIGHEST_STREAM_ID: Final = 0xFFFFFFFE
"""0 means "any", and the highest u32 is the wire's null."""
LARGEST_NSLOTS: Final = 1 << 20
# the URIs of a stream's pools have to fit one announce
MOST_POOLS: Final = 16


class AnnounceClock(Enum):
    """The clock of announces. `realtime_synced` is the operator's promise that the clocks of all hosts are disciplined (decision E100)."""

    MONOTONIC = "monotonic"
    REALTIME_SYNCED = "realtime_synced"

    @property
    def domain(self) -> ClockDomain:
        return ClockDomain[self.name]


def _namespace_complaint(namespace: str) -> str:
    return (
        "" if is_safe_component(namespace) else "cannot be a directory: letters, digits, '_', '-' and '.', beginning with a letter or digit"
    )


def _relative_complaint(path: str) -> str:
    return "" if not path or os.path.isabs(path) else "is not absolute"


def _channel_complaint(channel: str) -> str:
    try:
        exclusive_channel(channel, "1m")
        subscription_channel(channel)
    except ConfigError as error:
        return error.message.removeprefix(f"channel {channel!r} ")
    return ""


def _channel(help: str) -> str:
    channel: str = setting("aeron:ipc", help=help, check=_channel_complaint)
    return channel


def _aeron_id(default: int, help: str) -> int:
    number: int = setting(default, minimum=1, maximum=HIGHEST_AERON_STREAM_ID, help=help)
    return number


@section("driver")
class DriverSection:
    """Who this driver is and where it is spoken to."""

    instance_id: str = setting("", help="Name of this driver in recordings and on consoles; made of host name and namespace where empty")
    aeron_dir: str = setting(
        "", help="Directory of a media driver that runs already; one inside this process where empty", check=_relative_complaint
    )
    control_channel: str = _channel("Attach, detach, keepalive, hello")
    control_stream_id: int = _aeron_id(1000, "Aeron stream of the control channel")
    announce_channel: str = _channel("ShmPoolAnnounce")
    announce_stream_id: int = _aeron_id(1001, "Aeron stream of the announce channel")
    descriptor_channel: str = _channel("FrameDescriptor")
    descriptor_stream_id: int = _aeron_id(1100, "Aeron stream of the descriptor channel")
    qos_channel: str = _channel("QosProducer and QosConsumer")
    qos_stream_id: int = _aeron_id(1200, "Aeron stream of the QoS channel")
    metadata_channel: str = _channel("DataSourceAnnounce and DataSourceMeta")
    metadata_stream_id: int = _aeron_id(1300, "Aeron stream of the metadata channel")
    stream_id_range: tuple[int, int] = setting(
        (20_000, 29_999), minimum=1, maximum=HIGHEST_AERON_STREAM_ID, help="Ids for streams whose producer does not care which"
    )
    announce_clock_domain: AnnounceClock = setting(AnnounceClock.MONOTONIC, help="Clock of the announces' timestamps")

    def __post_init__(self) -> None:
        low, high = self.stream_id_range
        if low > high:
            raise ConfigError(
                f"driver.stream_id_range = [{low}, {high}] is empty",
                key="driver.stream_id_range",
                value=self.stream_id_range,
                hint="the lower id comes first",
            )


@section("shm")
class ShmSection:
    """Where regions live and who may map them."""

    base_dir: str = setting("/dev/shm", help="Directory on tmpfs or hugetlbfs below which every region is made")  # noqa: S108
    namespace: str = setting("default", help="Keeps the regions of several drivers on a host apart", check=_namespace_complaint)
    allowed_base_dirs: tuple[str, ...] = setting((), help="Where clients may map regions; base_dir where empty")
    permissions_mode: PermissionMode = setting(PermissionMode.GROUP, help="group: files 0660; private: 0600")
    require_hugepages: bool = setting(False, help="Refuse to start unless base_dir is on hugetlbfs")


@section("policies")
class PolicySection:
    """What the driver grants, and how often it says so."""

    allow_dynamic_streams: bool = setting(True, help="Whether streams that are not in this file may be made")
    default_profile: str = setting("", help="Profile of streams that an attach request makes; none are made where empty")
    max_stream_bytes: int = setting(4 << 30, minimum=1, unit="bytes", help="Largest stream that may be made")
    max_streams: int = setting(1024, minimum=1, help="Most streams at a time")
    max_leases: int = setting(20_000, minimum=1, help="Most leases at a time")
    announce_period_ms: int = setting(1000, minimum=10, maximum=60_000, unit="ms", help="How often each stream is announced")
    lease_keepalive_interval_ms: int = setting(1000, minimum=10, maximum=60_000, unit="ms", help="How often clients renew their leases")
    lease_expiry_grace_intervals: int = setting(3, minimum=2, maximum=1000, help="Missed keepalives after which a lease ends")
    prefault_shm: bool = setting(False, help="Touch every page when an epoch is made")
    mlock_shm: bool = setting(False, help="Lock the pages of an epoch into memory")
    epoch_gc_enabled: bool = setting(True, help="Remove files of past epochs")
    epoch_gc_keep: int = setting(2, minimum=1, help="Epochs of a stream whose files stay, the current one included")
    epoch_gc_min_age_ns: int = setting(0, minimum=0, unit="ns", help="Age below which a past epoch's files stay")
    epoch_gc_on_startup: bool = setting(True, help="Remove at the start what dead drivers left")
    shutdown_timeout_ms: int = setting(2000, minimum=0, maximum=60_000, unit="ms", help="How long a driver tries to say that it stops")
    shutdown_token: str = setting("", is_secret=True, help="With it others than the owner may provision, revoke and shut down")

    @property
    def lease_duration_ns(self) -> int:
        """How long a lease lives after its last keepalive."""
        return self.lease_keepalive_interval_ms * self.lease_expiry_grace_intervals * 1_000_000


@section("payload_pools")
class PoolSection:
    """One payload pool of a profile."""

    pool_id: int = setting(minimum=1, maximum=0xFFFE, help="Id of the pool within its stream")
    stride_bytes: int = setting(
        minimum=64, maximum=LARGEST_STRIDE_BYTES, unit="bytes", check=power_of_two_complaint, help="Size of a slot: 64 times a power of two"
    )


@section("profiles")
class ProfileSection:
    """How streams of this profile are cut."""

    header_nslots: int = setting(
        64, minimum=1, maximum=LARGEST_NSLOTS, check=power_of_two_complaint, help="Slots of the ring, a power of two"
    )
    payload_pools: tuple[PoolSection, ...] = setting(
        (PoolSection(pool_id=1, stride_bytes=1 << 20),), help="Smallest pool that fits takes a frame"
    )

    def __post_init__(self) -> None:
        # what cannot be seen in one pool by itself
        if reason := _pools_problem(self.sizes):
            raise _problem("profiles.payload_pools", [pool.pool_id for pool in self.payload_pools], reason)

    @property
    def sizes(self) -> StreamSizes:
        return StreamSizes(self.header_nslots, tuple(PoolSize(pool.pool_id, pool.stride_bytes) for pool in self.payload_pools))


@section("streams")
class StreamSection:
    """A stream that exists from the start. Its name is the section's."""

    stream_id: int = setting(minimum=1, maximum=HIGHEST_STREAM_ID, help="Id of the stream")
    profile: str = setting(help="How it is cut: a section of profiles")
    tags: tuple[str, ...] = setting((), help="Words by which it is found")


@dataclass(frozen=True)
class DriverSettings:
    """Every section together. Making one checks what no section can check alone; a mistake is a `ConfigError` that names its key."""

    driver: DriverSection = field(default_factory=DriverSection)
    shm: ShmSection = field(default_factory=ShmSection)
    policies: PolicySection = field(default_factory=PolicySection)
    profiles: dict[str, ProfileSection] = field(default_factory=dict)
    streams: dict[str, StreamSection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise problem

    def _problems(self) -> Iterator[ConfigError]:
        if self.policies.default_profile and self.policies.default_profile not in self.profiles:
            yield _problem("policies.default_profile", self.policies.default_profile, f"profiles are {_names(self.profiles)}")
        for name, profile in self.profiles.items():
            if reason := _space_problem(profile.sizes, self.policies.max_stream_bytes):
                yield _problem(f"profiles.{name}.header_nslots", profile.header_nslots, reason)
        owners: dict[int, str] = {}
        for name, stream in self.streams.items():
            if reason := name_problem(name):
                yield _problem(f"streams.{name}", name, reason)
            if stream.stream_id in owners:
                yield _problem(f"streams.{name}.stream_id", stream.stream_id, f"stream {owners[stream.stream_id]!r} has this id already")
            owners[stream.stream_id] = name
            if stream.profile not in self.profiles:
                yield _problem(f"streams.{name}.profile", stream.profile, f"profiles are {_names(self.profiles)}")
        if len(self.streams) > self.policies.max_streams:
            yield _problem("policies.max_streams", self.policies.max_streams, f"{len(self.streams)} streams are configured")


def is_stream_id(stream_id: int) -> bool:
    """Whether a tensor stream may have this id."""
    return 1 <= stream_id <= HIGHEST_STREAM_ID


def name_problem(name: str) -> str:
    """Why consumers could not find a stream by this name; empty where they can, or where it has none."""
    return "a number is taken for a stream id: let it begin with a letter" if name.isdecimal() else ""


def sizes_problem(sizes: StreamSizes, max_stream_bytes: int) -> str:
    """Why a stream cannot be cut like that; empty where it can."""
    if not 1 <= sizes.nslots <= LARGEST_NSLOTS or power_of_two_complaint(sizes.nslots):
        return f"{sizes.nslots} slots: the number of slots is a power of two, 1 to {LARGEST_NSLOTS}"
    for pool in sizes.pools:
        if not is_valid_stride(pool.stride_bytes):
            return f"stride_bytes {pool.stride_bytes}: a stride is 64 times a power of two, up to {LARGEST_STRIDE_BYTES}"
    return _pools_problem(sizes) or _space_problem(sizes, max_stream_bytes)


def _pools_problem(sizes: StreamSizes) -> str:
    if not 1 <= len(sizes.pools) <= MOST_POOLS:
        return f"{len(sizes.pools)} pools: a stream has 1 to {MOST_POOLS} payload pools"
    pool_ids = [pool.pool_id for pool in sizes.pools]
    for pool_id in pool_ids:
        if not 0 < pool_id < 0xFFFF or pool_ids.count(pool_id) > 1:
            return f"pool_id {pool_id}: pool ids are 1 to 65534, each once"
    return ""


def _space_problem(sizes: StreamSizes, max_stream_bytes: int) -> str:
    if sizes.total_bytes > max_stream_bytes:
        return f"{sizes.total_bytes} bytes: policies.max_stream_bytes allows {max_stream_bytes}"
    return ""


def _problem(key: str, value: object, hint: str) -> ConfigError:
    return ConfigError(f"{key} = {value!r} is not possible", key=key, value=value, hint=hint)


def _names(sections: Mapping[str, object]) -> str:
    return ", ".join(sorted(sections)) or "not defined"
