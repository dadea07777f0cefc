"""Defaults, file, environment and command line: which one wins, where it came from, and what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tensor_pool
from tensor_pool import environment
from tensor_pool.config import load, section, setting, show
from tensor_pool.errors import ConfigError


@section("payload_pools")
class Pool:
    pool_id: int = setting(minimum=1)
    stride_bytes: int = setting(64, minimum=64, unit="bytes")


@section("profiles")
class Profile:
    header_nslots: int = setting(64, minimum=2, help="Slots.")
    payload_pools: tuple[Pool, ...] = setting((Pool(pool_id=1),))


@section("driver")
class Driver:
    instance_id: str = setting("")
    period_ms: int = setting(1000, minimum=1, maximum=60_000, unit="ms", help="How often.")
    id_range: tuple[int, int] = setting((1, 9))
    directories: tuple[str, ...] = setting(())
    token: str | None = setting(None, is_secret=True)
    is_quiet: bool = setting(False)
    factor: float = setting(1.0)

    def __post_init__(self) -> None:
        if self.id_range[0] > self.id_range[1]:
            raise ConfigError("driver.id_range is empty", key="driver.id_range", value=self.id_range, hint="lower one first")


@dataclass(frozen=True)
class Root:
    driver: Driver = field(default_factory=lambda: Driver(instance_id="from the root"))
    profiles: dict[str, Profile] = field(default_factory=dict)
    extra: Profile | None = None


def write(directory: Path, text: str) -> Path:
    path = directory / "stack.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(directory: Path, text: str, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(Root, write(directory, text), environ or {})
    return caught.value


def test_without_anything_the_defaults_are_those_of_the_root() -> None:
    loaded = load(Root, None, {})
    assert loaded.settings == Root()
    assert set(loaded.origin.values()) == {"default"}
    assert loaded.settings.driver.instance_id == "from the root"


def test_later_sources_win_and_each_value_knows_its_origin(tmp_path: Path) -> None:
    path = write(tmp_path, '# a comment\n[driver]\ninstance_id = "a"\nperiod_ms = 5\n\nis_quiet = true\nid_range = [\n  2,\n  3,\n]\n')
    environ = {"TENSOR_POOL_DRIVER__PERIOD_MS": "6", "TENSOR_POOL_DRIVER__IS_QUIET": "no"}
    loaded = load(Root, path, environ, {"driver.is_quiet": True, "driver.token": None})
    driver = loaded.settings.driver
    assert (driver.instance_id, driver.period_ms, driver.is_quiet, driver.id_range) == ("a", 6, True, (2, 3))
    assert loaded.origin["driver.instance_id"] == f"{path}:3"
    assert loaded.origin["driver.period_ms"] == "environment TENSOR_POOL_DRIVER__PERIOD_MS"
    assert loaded.origin["driver.is_quiet"] == "command line"
    assert loaded.origin["driver.id_range"] == f"{path}:7"
    assert loaded.origin["driver.token"] == "default"


def test_tables_with_names_and_lists_of_tables(tmp_path: Path) -> None:
    text = """
[profiles.camera-1]
header_nslots = 8
[[profiles.camera-1.payload_pools]]
pool_id = 1
[[profiles.camera-1.payload_pools]]
pool_id = 2
stride_bytes = 128
[profiles.inline]
payload_pools = [{ pool_id = 7 }, { pool_id = 8, stride_bytes = 256 }]
[profiles.none]
payload_pools = []
"""
    environ = {"TENSOR_POOL_PROFILES__CAMERA_1__HEADER_NSLOTS": "16", "TENSOR_POOL_PROFILES__INLINE__PAYLOAD_POOLS__0__STRIDE_BYTES": "512"}
    path = write(tmp_path, text)
    loaded = load(Root, path, environ)
    assert loaded.settings.profiles == {
        "camera-1": Profile(header_nslots=16, payload_pools=(Pool(pool_id=1), Pool(pool_id=2, stride_bytes=128))),
        "inline": Profile(payload_pools=(Pool(pool_id=7, stride_bytes=512), Pool(pool_id=8, stride_bytes=256))),
        "none": Profile(payload_pools=()),
    }
    assert loaded.origin["profiles.camera-1.payload_pools.1.stride_bytes"] == f"{path}:8"
    assert loaded.origin["profiles.inline.payload_pools.1.pool_id"] == f"{path}:10"


def test_an_optional_section_is_absent_until_something_in_it_is_set() -> None:
    assert load(Root, None, {}).settings.extra is None
    assert load(Root, None, {"TENSOR_POOL_EXTRA__HEADER_NSLOTS": "4"}).settings.extra == Profile(header_nslots=4)


def test_a_section_by_itself_is_read_from_the_table_of_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, "[driver]\nperiod_ms = 7\n")
    loaded = load(Driver, path, {"TENSOR_POOL_DRIVER__FACTOR": "2.5"})
    assert loaded.settings == Driver(period_ms=7, factor=2.5)
    assert next(row.key for row in show(loaded)) == "driver.instance_id"


@pytest.mark.parametrize(
    ("text", "key", "line", "words"),
    [
        ("[driver]\nperiod_ms = true\n", "driver.period_ms", 2, "not a whole number"),
        ('[driver]\nperiod_ms = "5"\n', "driver.period_ms", 2, "not a whole number"),
        ("[driver]\nperiod_ms = 0\n", "driver.period_ms", 2, "below the minimum, 1"),
        ("[driver]\n\nperiod_ms = 60001\n", "driver.period_ms", 3, "above the maximum, 60000"),
        ("[driver]\nid_range = [5, 2]\n", "driver.id_range", 2, "empty"),
        ("[driver]\nid_range = [1, 2, 3]\n", "driver.id_range", 2, "2 elements"),
        ("driver = 3\n", "driver", 1, "not a table"),
        ("[[driver]]\nperiod_ms = 3\n", "driver.0", 2, "not a setting"),
        ("[driver.period_ms]\nx = 3\n", "driver.period_ms", 2, "not a whole number"),
        ("[profiles]\nheader_nslots = 3\n", "profiles.header_nslots", 2, "not a table"),
        ("[[profiles.a.payload_pools]]\nstride_bytes = 64\n", "profiles.a.payload_pools.0.pool_id", None, "has to be set"),
        ("[profiles.a]\npayload_pools = 3\n", "profiles.a.payload_pools", 2, "not a table"),
        ("[profiles.a]\npayload_pools = [3]\n", "profiles.a.payload_pools", 2, "not a table"),
        ("[profiles.a.payload_pools.x]\npool_id = 3\n", "profiles.a.payload_pools", 2, "list of tables"),
        ("['profiles'.'a b']\nheader_nslots = 4\n", "profiles", None, "has the name 'a b'"),
    ],
)
def test_what_is_wrong_is_refused_with_file_line_key_and_value(tmp_path: Path, text: str, key: str, line: int | None, words: str) -> None:
    error = refusal(tmp_path, text)
    place = f"{tmp_path}/stack.toml" + (f":{line}" if line else "")
    assert (error.source, error.key) == (place, key)
    assert error.message.startswith(f"{place}: ")
    assert key in error.message
    assert words in error.message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[driver]\nperiode_ms = 5\n", "did you mean driver.period_ms?"),
        ("[drivers]\nperiod_ms = 5\n", "did you mean driver?"),
        ("[driver]\nzzz = 5\n", "known here: directories, factor"),
        ("[profiles.a]\nheader_slots = 5\n", "did you mean profiles.a.header_nslots?"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_name_suggested(tmp_path: Path, text: str, hint: str) -> None:
    error = refusal(tmp_path, text)
    assert "is not a setting" in error.message
    assert error.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TENSOR_POOL_DRIVER__PERIOD_MS", "1.5", "not a whole number"),
        ("TENSOR_POOL_DRIVER__PERIOD_MS", "", "not a whole number"),
        ("TENSOR_POOL_DRIVER__FACTOR", "much", "not a number"),
        ("TENSOR_POOL_DRIVER__IS_QUIET", "perhaps", "not true or false"),
        ("TENSOR_POOL_DRIVER__DIRECTORIES", "[1", "not a list as TOML writes it"),
        ("TENSOR_POOL_DRIVER__PERIOD", "5", "not a setting"),
        ("TENSOR_POOL_DRIVR__PERIOD_MS", "5", "not a setting"),
        ("TENSOR_POOL_PROFILES__A__PAYLOAD_POOLS__1__POOL_ID", "5", "without gaps"),
    ],
)
def test_a_wrong_variable_is_refused_with_its_name(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(Root, None, {name: value})
    assert caught.value.source == f"environment {name}"
    assert caught.value.message.startswith(f"environment {name}: ")
    assert caught.value.hint or "list" in words or "gaps" in words


def test_lists_in_the_environment_are_written_with_commas_or_as_toml() -> None:
    environ = {"TENSOR_POOL_DRIVER__DIRECTORIES": "/a, /b", "TENSOR_POOL_DRIVER__ID_RANGE": "[2, 3]", "TENSOR_POOL_DRIVER__TOKEN": ""}
    driver = load(Root, None, environ).settings.driver
    assert (driver.directories, driver.id_range, driver.token) == (("/a", "/b"), (2, 3), None)
    assert load(Root, None, {"TENSOR_POOL_DRIVER__DIRECTORIES": ""}).settings.driver.directories == ()


def test_variables_that_belong_to_others_are_left_alone() -> None:
    ours = dict.fromkeys(environment.OURS, "/x")
    assert {"TENSOR_POOL_STACK", "TENSOR_POOL_RUNTIME_DIR"} <= ours.keys()
    assert load(Root, None, {**ours, "DRIVER__X": "1", "TENSOR_POOLS": "1"}).settings == Root()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TENSOR_POOL_FOO__BAR", "known are TENSOR_POOL_STACK, "),
        ("TENSOR_POOL_BRIDGE__MTU_BYTES", "known are TENSOR_POOL_STACK, "),
        ("TENSOR_POOL_DRIVR", "known are TENSOR_POOL_STACK, "),
        ("TENSOR_POOL_", "known are TENSOR_POOL_STACK, "),
        ("TENSOR_POOL_DRIVER", "known are TENSOR_POOL_STACK, "),
        ("TENSOR_POOL_STAKC", "did you mean TENSOR_POOL_STACK?"),
        ("TENSOR_POOL_RUNTIME_DIRECTORY", "did you mean TENSOR_POOL_RUNTIME_DIR?"),
        ("TENSOR_POOL_DRIVER_PERIOD_MS", "did you mean TENSOR_POOL_DRIVER__PERIOD_MS?"),
        ("TENSOR_POOL_DRIVR__PERIOD_MS", "did you mean TENSOR_POOL_DRIVER__PERIOD_MS?"),
        ("TENSOR_POOL_PROFILE__CAMERA_1__HEADER_NSLOTS", "did you mean TENSOR_POOL_PROFILES__CAMERA_1__HEADER_NSLOTS?"),
        ("TENSOR_POOL_DRIVER__PERIODE_MS", "did you mean driver.period_ms?"),
    ],
)
def test_a_variable_with_our_prefix_that_nobody_reads_is_refused_and_the_nearest_suggested(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="is not a setting") as caught:
        load(Root, None, {name: "1"})
    assert caught.value.source == f"environment {name}"
    assert caught.value.hint.startswith(hint)


def test_every_variable_that_the_source_names_is_known_or_sets_a_key() -> None:
    source = Path(tensor_pool.__file__).parent
    named = {name for file in source.rglob("*.py") for name in re.findall(r"TENSOR_POOL_[A-Z_]*[A-Z]", file.read_text())}
    assert {name for name in named if "__" not in name} <= set(environment.OURS)


def test_text_from_the_command_line_is_parsed_like_a_variable() -> None:
    assert load(Root, None, {}, {"driver.period_ms": "7"}).settings.driver.period_ms == 7
    with pytest.raises(ConfigError, match=r"^command line: driver\.period_ms = 0 is below"):
        load(Root, None, {}, {"driver.period_ms": 0})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[driver\n", "not valid TOML"),
        (b"[driver]\nperiod_ms = 1\nperiod_ms = 2\n", "not valid TOML"),
        (b"name = '\xff'\n", "not UTF-8"),
        (b"a = " + b"[" * 100_000, "not valid TOML"),
        (b"#" * (1 << 20) + b"\n", "larger than"),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_its_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "stack.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        load(Root, path, {})
    assert caught.value.source == str(path)
    assert caught.value.hint


def test_a_file_that_is_missing_is_refused_with_its_name_and_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read") as caught:
        load(Root, tmp_path / "none.toml", {})
    assert "config generate" in caught.value.hint


def test_what_is_judged_later_is_refused_with_the_origin_of_its_key(tmp_path: Path) -> None:
    path = write(tmp_path, "[driver]\n\ndirectories = ['/a']\n")
    loaded = load(Root, path, {"TENSOR_POOL_DRIVER__FACTOR": "2"})
    for key, origin in (("driver.directories", f"{path}:3"), ("driver.factor", "environment TENSOR_POOL_DRIVER__FACTOR")):
        with pytest.raises(ConfigError) as caught, loaded.naming_origins():
            raise ConfigError("no use", key=key, value=7, hint="another")
        error = caught.value
        assert (error.message, error.source, error.key, error.value, error.hint) == (f"{origin}: no use", origin, key, 7, "another")


@pytest.mark.parametrize(
    "error",
    [ConfigError("a default", key="driver.period_ms"), ConfigError("no key"), ConfigError("elsewhere", source="here", key="driver.factor")],
)
def test_an_error_about_nothing_that_was_given_stays_as_it_is(error: ConfigError) -> None:
    loaded = load(Root, None, {"TENSOR_POOL_DRIVER__FACTOR": "2"})
    with pytest.raises(ConfigError) as caught, loaded.naming_origins():
        raise error
    assert caught.value is error


def test_secrets_are_not_shown() -> None:
    loaded = load(Root, None, {"TENSOR_POOL_DRIVER__TOKEN": "hunter2"})
    assert loaded.settings.driver.token == "hunter2"
    shown = {row.key: row for row in show(loaded)}
    assert shown["driver.token"].value == "(secret)"
    assert shown["driver.token"].origin == "environment TENSOR_POOL_DRIVER__TOKEN"
    assert "hunter2" not in str(list(shown.values()))
