from __future__ import annotations

import pytest

from tensor_pool.errors import ProtocolError
from tensor_pool.uri import RegionUri


def test_the_path_is_written_first_and_the_default_is_left_out() -> None:
    assert str(RegionUri("/dev/shm/a", require_hugepages=True)) == "shm:file?path=/dev/shm/a|require_hugepages=true"
    assert str(RegionUri("/dev/shm/a")) == "shm:file?path=/dev/shm/a"


@pytest.mark.parametrize("path", ["", "a", "/a|b", "/a b", "/ä"])
def test_a_uri_that_could_not_be_read_back_cannot_be_made(path: str) -> None:
    with pytest.raises(ProtocolError):
        RegionUri(path)


def test_an_error_does_not_repeat_a_huge_uri() -> None:
    with pytest.raises(ProtocolError) as caught:
        RegionUri.parse("shm:file?path=/a|" + "x" * 1_000_000)
    assert len(str(caught.value)) < 1_000
