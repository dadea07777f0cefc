"""What a driver's configuration may say, and what its place on disk has to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensor_pool.config import load
from tensor_pool.driver.config import DriverSection, DriverSettings, PolicySection, PoolSection, ProfileSection, ShmSection, StreamSection
from tensor_pool.driver.storage import find_place
from tensor_pool.errors import ConfigError

TOML = """
[driver]
instance_id = "lab-1"
announce_clock_domain = "realtime_synced"

[shm]
namespace = "lab"
permissions_mode = "private"

[policies]
default_profile = "camera"

[profiles.camera]
header_nslots = 8
payload_pools = [{ pool_id = 1, stride_bytes = 4096 }, { pool_id = 2, stride_bytes = 1048576 }]

[streams.front]
stream_id = 10
profile = "camera"
tags = ["lab"]
"""


@pytest.mark.requirement("D-4.4-6")
@pytest.mark.requirement("D-4.4-7")
def test_the_defaults_are_those_of_the_decisions() -> None:
    settings = DriverSettings()
    policies = settings.policies
    assert (policies.announce_period_ms, policies.lease_keepalive_interval_ms, policies.lease_expiry_grace_intervals) == (1000, 1000, 3)
    assert policies.lease_duration_ns == 3_000_000_000
    assert (policies.epoch_gc_keep, policies.epoch_gc_enabled, policies.epoch_gc_on_startup) == (2, True, True)
    section = settings.driver
    assert (section.control_stream_id, section.announce_stream_id, section.descriptor_stream_id) == (1000, 1001, 1100)
    assert (section.qos_stream_id, section.metadata_stream_id, section.stream_id_range) == (1200, 1300, (20_000, 29_999))


@pytest.mark.requirement("W-15.21a.2-1")
@pytest.mark.requirement("W-15.21a.3-4")
def test_a_file_is_read_into_sections(tmp_path: Path) -> None:
    (tmp_path / "stack.toml").write_text(TOML)
    environ = {"TENSOR_POOL_SHM__BASE_DIR": str(tmp_path)}
    settings = load(DriverSettings, tmp_path / "stack.toml", environ).settings
    assert settings.streams["front"] == StreamSection(stream_id=10, profile="camera", tags=("lab",))
    assert [pool.stride_bytes for pool in settings.profiles["camera"].sizes.pools] == [4096, 1 << 20]
    place = find_place(settings, process_id=1, host_name="host")
    assert place.paths.namespace == "lab"
    assert place.base_dir == str(tmp_path)
    assert place.instance_id == "lab-1"


def profile(nslots: int = 8, *pools: tuple[int, int]) -> ProfileSection:
    return ProfileSection(header_nslots=nslots, payload_pools=tuple(PoolSection(pool_id=a, stride_bytes=b) for a, b in pools or ((1, 64),)))


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"profiles": {"p": profile(1 << 10, (1, 1 << 30))}}, "profiles.p.header_nslots"),
    ({"policies": PolicySection(default_profile="q")}, "policies.default_profile"),
    ({"streams": {"s": StreamSection(stream_id=1, profile="q")}}, "streams.s.profile"),
    (
        {"profiles": {"p": profile()}, "streams": {name: StreamSection(stream_id=1, profile="p") for name in "ab"}},
        "streams.b.stream_id",
    ),
    ({"profiles": {"p": profile()}, "streams": {"12": StreamSection(stream_id=1, profile="p")}}, "streams.12"),
]


@pytest.mark.parametrize(("sections", "key"), PROBLEMS)
def test_what_cannot_be_is_refused_by_its_key(sections: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DriverSettings(**sections)
    assert caught.value.key == key
    assert caught.value.hint


def pools(*ids: int) -> str:
    return f"[{', '.join(f'{{ pool_id = {pool_id}, stride_bytes = 64 }}' for pool_id in ids)}]"


IN_A_PROFILE = [
    *(pytest.param("header_nslots", nslots, "header_nslots", marks=pytest.mark.requirement("W-12-14-1")) for nslots in ("3", "0")),
    *(("header_nslots", nslots, "header_nslots") for nslots in ("-4", "2097152")),
    *(
        pytest.param("stride_bytes", stride, "payload_pools.1.stride_bytes", marks=pytest.mark.requirement("W-15.22-12"))
        for stride in ("0", "32", "96", "100", "192", "4294967296")
    ),
    *(("payload_pools", given, "payload_pools") for given in ("[]", pools(1, 1), pools(*range(1, 18)))),
]


@pytest.mark.parametrize(("name", "value", "key"), IN_A_PROFILE)
def test_what_a_profile_cannot_be_is_refused_with_its_own_line_key_and_value(tmp_path: Path, name: str, value: str, key: str) -> None:
    path = tmp_path / "stack.toml"
    lines = ["[profiles.p]", "# slots", "header_nslots = 8", "[[profiles.p.payload_pools]]", "pool_id = 1", "stride_bytes = 64"]
    lines += ["[[profiles.p.payload_pools]]", "pool_id = 2", "stride_bytes = 64"]
    if name == "payload_pools":
        lines = [*lines[:3], f"payload_pools = {value}"]
    else:
        # the last of that name
        at = max(number for number, line in enumerate(lines) if line.startswith(name))
        lines[at] = f"{name} = {value}"
    path.write_text("\n".join(lines))
    line = max(number for number, text in enumerate(lines, 1) if text.startswith(name))
    with pytest.raises(ConfigError) as caught:
        load(DriverSettings, path, {})
    error = caught.value
    assert (error.source, error.key) == (f"{path}:{line}", f"profiles.p.{key}")
    assert error.message.startswith(f"{path}:{line}: profiles.p.{key} ")
    assert str(error.value) == value or name == "payload_pools"
    assert error.hint


@pytest.mark.parametrize(
    ("section", "arguments", "key"),
    [
        (DriverSection, {"aeron_dir": "relative"}, "driver.aeron_dir"),
        (DriverSection, {"control_channel": "ipc"}, "driver.control_channel"),
        (DriverSection, {"control_channel": "aeron:ipc?term-length=3"}, "driver.control_channel"),
        (DriverSection, {"descriptor_channel": "aeron:udp?endpoint=nohost"}, "driver.descriptor_channel"),
        (DriverSection, {"qos_channel": "aeron:ipc?rejoin=false"}, "driver.qos_channel"),
        (ShmSection, {"namespace": "../up"}, "shm.namespace"),
        (ShmSection, {"namespace": ""}, "shm.namespace"),
        (ShmSection, {"permissions_mode": "world"}, "shm.permissions_mode"),
        (StreamSection, {"stream_id": 0, "profile": "p"}, "streams.stream_id"),
        (StreamSection, {"stream_id": 0xFFFFFFFF, "profile": "p"}, "streams.stream_id"),
        (PoolSection, {"pool_id": 0, "stride_bytes": 64}, "payload_pools.pool_id"),
        (PoolSection, {"pool_id": 0xFFFF, "stride_bytes": 64}, "payload_pools.pool_id"),
        (PolicySection, {"announce_period_ms": 0}, "policies.announce_period_ms"),
        (PolicySection, {"lease_expiry_grace_intervals": 1}, "policies.lease_expiry_grace_intervals"),
    ],
)
def test_values_out_of_range_are_refused(section: Any, arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        section(**arguments)
    assert caught.value.key == key


def place_of(**shm: Any) -> None:
    find_place(DriverSettings(shm=ShmSection(**shm)), process_id=1, host_name="host")


@pytest.mark.requirement("D-9-1")
def test_a_base_directory_that_clients_may_not_map_is_refused(tmp_path: Path) -> None:
    for name in ("inside", "insideout", "other"):
        (tmp_path / name).mkdir()
    place_of(base_dir=str(tmp_path / "inside"), allowed_base_dirs=(str(tmp_path / "other"), str(tmp_path)))
    for base in ("other", "insideout"):
        with pytest.raises(ConfigError, match="outside") as refused:
            place_of(base_dir=str(tmp_path / base), allowed_base_dirs=(str(tmp_path / "inside"),))
        assert refused.value.key == "shm.allowed_base_dirs"


@pytest.mark.requirement("D-9-2")
def test_a_linked_base_directory_is_resolved_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="outside"):
        place_of(base_dir=str(tmp_path / "link"), allowed_base_dirs=(str(tmp_path / "real"),))
    place = find_place(DriverSettings(shm=ShmSection(base_dir=str(tmp_path / "link"))), process_id=1, host_name="host")
    assert place.base_dir == str(tmp_path / "outside")


@pytest.mark.parametrize("path", ["relative", "/nowhere/at/all"])
def test_a_base_directory_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place_of(base_dir=path)
    assert caught.value.key == "shm.base_dir"


@pytest.mark.requirement("D-9-4")
def test_required_hugepages_refuse_another_file_system_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hugetlbfs") as refused:
        place_of(base_dir=str(tmp_path), require_hugepages=True)
    assert refused.value.key == "shm.require_hugepages"
