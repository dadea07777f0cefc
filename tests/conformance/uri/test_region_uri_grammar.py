"""The grammar of wire 15.22, row by row."""

from __future__ import annotations

import pytest

from tensor_pool.errors import ProtocolError
from tensor_pool.uri import RegionUri


@pytest.mark.requirement("W-15.22-1")
@pytest.mark.parametrize(
    ("text", "path", "require_hugepages"),
    [
        ("shm:file?path=/dev/shm/a", "/dev/shm/a", False),
        ("shm:file?path=/dev/hugepages/a|require_hugepages=true", "/dev/hugepages/a", True),
        ("shm:file?path=/dev/shm/a|require_hugepages=false", "/dev/shm/a", False),
        ("shm:file?require_hugepages=true|path=/dev/shm/a", "/dev/shm/a", True),
        ("shm:file?path=/", "/", False),
        ("shm:file?path=/a=b/c", "/a=b/c", False),
        ("shm:file?path=/~!\"#$%&'()*+,-.:;<=>@[\\]^_`{}", "/~!\"#$%&'()*+,-.:;<=>@[\\]^_`{}", False),
    ],
)
def test_well_formed_uris_are_understood(text: str, path: str, require_hugepages: bool) -> None:
    assert RegionUri.parse(text) == RegionUri(path, require_hugepages)


@pytest.mark.requirement("W-15.22-1")
@pytest.mark.parametrize(
    "text",
    [
        "shm:file?path=",
        "shm:file?path=|require_hugepages=true",
        "shm:file?require_hugepages=true",
        "shm:file?path=relative/a",
        "shm:file?path=C:\\aeron\\a",
        "shm:file?path=/a b",
        "shm:file?path= /a",
        "shm:file?path=/a ",
        "shm:file?path=/a?b",
        "shm:file?path=/a\n",
        "shm:file?path=/a\x00b",
        "shm:file?path=/a\x7f",
        "shm:file?path=/größe",
        "shm:file?path=/a|path=/a",
        "shm:file?path=/a|require_hugepages=true|require_hugepages=true",
        "shm:file?path=/a|require_hugepages=",
        "shm:file?path=/a|require_hugepages=1",
        "shm:file?path=/a|require_hugepages=True",
        "shm:file?path=/a|require_hugepages=true ",
    ],
)
def test_malformed_uris_are_refused_as_malformed(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        RegionUri.parse(text)
    assert caught.value.rule == "W-15.22-1"


@pytest.mark.requirement("W-15.22-6")
@pytest.mark.requirement("W-15.22-7")
@pytest.mark.requirement("W-15.22-14")
@pytest.mark.parametrize(
    "text",
    [
        "shm:file?path=/x|foo=1",
        "shm:file?path=/x|mode=rw",
        "shm:file?path=/x|require_hugepages=true|x=1",
        "shm:file?path=/x|",
        "shm:file?|path=/x",
        "shm:file?",
        "shm:file?path",
        "shm:file?path=/x|require_hugepages",
        "shm:file?path=/x| require_hugepages=true",
        "shm:file?PATH=/x",
    ],
)
def test_unknown_parameters_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        RegionUri.parse(text)
    assert caught.value.rule == "W-15.22-7"


@pytest.mark.requirement("W-15.22-6")
@pytest.mark.requirement("W-15.22-8")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "file:///x",
        "shm:posix?name=a",
        "shm:memfd?path=/x",
        "shm:file",
        "shm:file:path=/x",
        " shm:file?path=/x",
        "SHM:FILE?path=/x",
        "/x",
        "shm:",
    ],
)
def test_unknown_schemes_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        RegionUri.parse(text)
    assert caught.value.rule == "W-15.22-8"


@pytest.mark.requirement("W-15.22-14")
def test_an_ampersand_belongs_to_the_path_and_never_asks_for_hugepages() -> None:
    uri = RegionUri.parse("shm:file?path=/x&require_hugepages=true")
    assert uri == RegionUri("/x&require_hugepages=true", require_hugepages=False)
