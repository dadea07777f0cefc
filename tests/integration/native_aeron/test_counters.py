"""Counters: owned by one client, visible to all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tensor_pool import _native
from tensor_pool.errors import ClosedError

WaitUntil = Callable[[Callable[[], object]], None]


def test_a_counter_is_seen_by_another_client_until_it_is_closed(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    counter = client.add_counter(2000, b"\x01\x02", "frames published")
    counter.set(41)
    assert counter.add(1) == 42
    assert counter.add(-2) == 40
    other = _native.AeronClient(client.directory)
    assert (counter.counter_id, 2000, 40, "frames published") in other.counters()
    counter.close()
    counter.close()
    with pytest.raises(ClosedError):
        counter.add(1)
    wait_until(lambda: all(type_id != 2000 for _, type_id, _, _ in other.counters()))
    other.close()


def test_the_whole_range_of_a_counter_is_kept(client: _native.AeronClient) -> None:
    counter = client.add_counter(2000, b"", "range")
    for value in (-(2**63), 2**63 - 1):
        counter.set(value)
        assert counter.get() == value


def test_too_long_a_key_or_label_is_refused_instead_of_cut(client: _native.AeronClient) -> None:
    with pytest.raises(ValueError, match="this has 113"):
        client.add_counter(2000, bytes(113), "label")
    with pytest.raises(ValueError, match="this has 381"):
        client.add_counter(2000, b"", "x" * 381)
    client.add_counter(2000, bytes(112), "x" * 380)


def test_counters_go_with_their_client(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    other = _native.AeronClient(client.directory)
    counter = other.add_counter(2002, b"", "short-lived")
    other.close()
    with pytest.raises(ClosedError):
        counter.get()
    wait_until(lambda: all(type_id != 2002 for _, type_id, _, _ in client.counters()))
