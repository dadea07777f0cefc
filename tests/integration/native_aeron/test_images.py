"""Images: who publishes on a stream, since when, and who is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tensor_pool import _native
from tests.integration.native_aeron.conftest import SETTINGS

PUBLICATION = "aeron:ipc?term-length=64k|sparse=false"
SUBSCRIPTION = "aeron:ipc?tether=false"

WaitUntil = Callable[[Callable[[], object]], None]


def test_an_image_says_when_it_came(client: _native.AeronClient, aeron_dir: str, start: Callable[..., Any], wait_until: WaitUntil) -> None:
    subscription = client.add_subscription(SUBSCRIPTION, 20)
    assert subscription.images() == []
    assert not subscription.is_connected
    before_ns = time.monotonic_ns()
    writer = start("publish", aeron_dir, PUBLICATION, 20)
    session_id = writer.wait_for_message()["session"]
    wait_until(subscription.images)
    after_ns = time.monotonic_ns()
    [(found, join_ns)] = subscription.images()
    assert found == session_id
    assert before_ns < join_ns < after_ns
    assert subscription.is_connected
    assert subscription.take_unavailable() == []


def test_an_image_that_goes_is_reported_once(
    client: _native.AeronClient, aeron_dir: str, start: Callable[..., Any], wait_until: WaitUntil
) -> None:
    subscription = client.add_subscription(SUBSCRIPTION, 21)
    writer = start("publish", aeron_dir, PUBLICATION, 21)
    session_id = writer.wait_for_message()["session"]
    stays = start("publish", aeron_dir, PUBLICATION, 21)
    stays_id = stays.wait_for_message()["session"]
    wait_until(lambda: len(subscription.images()) == 2)
    writer.end_of_input()
    writer.expect_exit(0)
    wait_until(lambda: len(subscription.images()) == 1)
    assert subscription.images()[0][0] == stays_id
    assert subscription.take_unavailable() == [session_id]
    assert subscription.take_unavailable() == []


def test_a_late_image_has_a_later_join_time(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    subscription = client.add_subscription(SUBSCRIPTION, 22)
    first = client.add_exclusive_publication(PUBLICATION, 22)
    wait_until(subscription.images)
    second = client.add_exclusive_publication(PUBLICATION, 22)
    wait_until(lambda: len(subscription.images()) == 2)
    assert [session_id for session_id, _ in subscription.images()] == [first.session_id, second.session_id]
    assert subscription.images()[0][1] < subscription.images()[1][1]


def test_a_subscription_that_is_left_behind_loses_its_image_while_others_go_on(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 23)
    sleeper = client.add_subscription(SUBSCRIPTION, 23)
    reader = client.add_subscription(SUBSCRIPTION, 23)
    wait_until(lambda: sleeper.images() and reader.images())
    received = 0

    def sleeper_is_evicted() -> bool:
        nonlocal received
        publication.offer(bytes(500))
        received += len(reader.poll())
        return bool(sleeper.take_unavailable())

    wait_until(sleeper_is_evicted)
    at_eviction = received
    for _ in range(200):
        publication.offer(bytes(500))
        received += len(reader.poll())
    assert received > at_eviction
    assert reader.take_unavailable() == []


def test_whoever_was_left_behind_joins_again_whatever_the_environment_says(
    aeron_dir: str, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    monkeypatch.setenv("AERON_REJOIN_STREAM", "false")
    driver = _native.MediaDriver(aeron_dir, SETTINGS)
    client = _native.AeronClient(aeron_dir)
    try:
        publication = client.add_exclusive_publication(PUBLICATION, 25)
        sleepers = [client.add_subscription(f"{SUBSCRIPTION}{rejoin}", 25) for rejoin in ("", "|rejoin=true")]
        reader = client.add_subscription(SUBSCRIPTION, 25)
        wait_until(lambda: reader.images() and all(sleeper.images() for sleeper in sleepers))
        waits_for = dict.fromkeys(sleepers, "eviction")

        def have_joined_again() -> bool:
            publication.offer(bytes(500))
            reader.poll()
            for sleeper in sleepers:
                if waits_for[sleeper] == "eviction" and not sleeper.images():
                    waits_for[sleeper] = "image"
                elif waits_for[sleeper] == "image" and sleeper.images():
                    waits_for[sleeper] = ""
            return not any(waits_for.values())

        wait_until(have_joined_again)
    finally:
        client.close()
        driver.close()


def test_adding_and_closing_many_leaves_nothing_behind(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    before = len(client.counters())
    for _ in range(30):
        publication = client.add_exclusive_publication(PUBLICATION, 24)
        subscription = client.add_subscription(SUBSCRIPTION, 24)
        wait_until(lambda publication=publication: publication.is_connected)
        subscription.close()
        publication.close()
    wait_until(lambda: len(client.counters()) <= before + 3)
    assert client.take_errors() == []
