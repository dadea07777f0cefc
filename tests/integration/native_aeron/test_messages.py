"""Publications and subscriptions: what arrives in another process, and what a producer is told when nothing can."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from tensor_pool import _native
from tensor_pool.errors import ClosedError, TransportError

PUBLICATION = "aeron:ipc?term-length=64k|sparse=false"
SUBSCRIPTION = "aeron:ipc?tether=false"

WaitUntil = Callable[[Callable[[], object]], None]


def test_offered_and_claimed_messages_arrive_in_another_process(
    client: _native.AeronClient, aeron_dir: str, start: Callable[..., Any], wait_until: WaitUntil
) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 10)
    reader = start("subscribe", aeron_dir, SUBSCRIPTION, 10, 3)
    reader.wait_for_message(ready=True)
    wait_until(lambda: publication.is_connected)

    assert publication.offer(b"offered") > 0
    claim = publication.try_claim(7)
    assert isinstance(claim, _native.BufferClaim)
    memoryview(claim)[:] = b"claimed"
    claim.commit()
    assert publication.offer(bytearray(b"")) > 0

    result = reader.wait_for_message(sessions=[publication.session_id])
    assert [bytes.fromhex(text) for text in result["messages"]] == [b"offered", b"claimed", b""]
    assert result["images"] == [publication.session_id]


def test_messages_of_another_process_arrive_here_with_their_session(
    client: _native.AeronClient, aeron_dir: str, start: Callable[..., Any], wait_until: WaitUntil
) -> None:
    subscription = client.add_subscription(SUBSCRIPTION, 11)
    writer = start("publish", aeron_dir, PUBLICATION, 11, b"one".hex(), b"two".hex())
    received: list[tuple[bytes, int]] = []
    wait_until(lambda: received.extend(subscription.poll()) or len(received) == 2)
    session_id = writer.messages()[0]["session"]
    assert received == [(b"one", session_id), (b"two", session_id)]


def test_a_message_of_many_fragments_arrives_whole(
    client: _native.AeronClient, aeron_dir: str, start: Callable[..., Any], wait_until: WaitUntil
) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 12)
    assert publication.max_message_length == 8192
    reader = start("subscribe", aeron_dir, SUBSCRIPTION, 12, 2)
    reader.wait_for_message(ready=True)
    wait_until(lambda: publication.is_connected)
    long = bytes(index * 7 % 256 for index in range(publication.max_message_length))
    just_over = long[: publication.max_payload_length + 1]
    assert publication.offer(memoryview(long)) > 0
    assert publication.offer(just_over) > 0
    result = reader.wait_for_message(sessions=[publication.session_id])
    assert [bytes.fromhex(text) for text in result["messages"]] == [long, just_over]


def test_messages_longer_than_the_channel_takes_are_refused_before_they_are_sent(client: _native.AeronClient) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 13)
    with pytest.raises(ValueError, match="8193 bytes is longer than the 8192"):
        publication.offer(bytes(8193))
    with pytest.raises(ValueError, match="1377 bytes is longer than the 1376"):
        publication.try_claim(publication.max_payload_length + 1)
    with pytest.raises(BufferError, match="contiguous"):
        publication.offer(memoryview(bytes(100))[::2])


def test_without_a_subscriber_the_code_says_so(client: _native.AeronClient) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 14)
    assert not publication.is_connected
    assert publication.offer(b"nobody") == _native.NOT_CONNECTED
    assert publication.try_claim(6) == _native.NOT_CONNECTED


@pytest.mark.parametrize("send", ["offer", "try_claim"])
def test_a_subscriber_that_does_not_poll_is_back_pressure_and_polling_ends_it(
    client: _native.AeronClient, wait_until: WaitUntil, send: str
) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 15)
    subscription = client.add_subscription("aeron:ipc", 15)
    wait_until(lambda: publication.is_connected)

    def send_one() -> int:
        if send == "offer":
            return publication.offer(bytes(1000))
        claim = publication.try_claim(1000)
        if isinstance(claim, int):
            return claim
        claim.commit()
        return 1

    accepted = 0
    while (code := send_one()) > 0:
        accepted += 1
        assert accepted < 100
    assert code == _native.BACK_PRESSURED
    received: list[tuple[bytes, int]] = []
    wait_until(lambda: received.extend(subscription.poll()) or len(received) == accepted)
    wait_until(lambda: send_one() > 0)


def test_terms_turn_over_without_losing_order(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 16)
    subscription = client.add_subscription("aeron:ipc", 16)
    wait_until(lambda: publication.is_connected)
    received: list[int] = []
    sent = 0
    while sent < 1000:  # a term of 64 KiB holds about sixty of these
        code = publication.offer(sent.to_bytes(4, "little") + bytes(996))
        assert code > 0 or code == _native.BACK_PRESSURED
        sent += code > 0
        received += [int.from_bytes(message[:4], "little") for message, _ in subscription.poll(10)]
    wait_until(
        lambda: received.extend(int.from_bytes(message[:4], "little") for message, _ in subscription.poll()) or len(received) == sent
    )
    assert received == list(range(1000))


def test_a_claim_that_is_aborted_or_dropped_leaves_no_message_and_no_hole(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 17)
    subscription = client.add_subscription(SUBSCRIPTION, 17)
    wait_until(lambda: publication.is_connected)
    aborted = publication.try_claim(10)
    assert isinstance(aborted, _native.BufferClaim)
    aborted.abort()
    aborted.abort()
    with pytest.raises(ClosedError, match="before"):
        aborted.commit()
    dropped = publication.try_claim(10)
    del dropped
    gc.collect()
    kept = publication.try_claim(4)
    assert isinstance(kept, _native.BufferClaim)
    view = memoryview(kept)
    view[:] = b"kept"
    kept.commit()
    with pytest.raises(ClosedError):
        kept.commit()
    received: list[tuple[bytes, int]] = []
    wait_until(lambda: received.extend(subscription.poll()) or received)
    assert [message for message, _ in received] == [b"kept"]
    view[:] = b"late"  # memory of the claim, no longer of the log
    assert subscription.poll() == []


def test_a_claim_outlives_its_publication_and_client_without_harm(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    publication = client.add_exclusive_publication(PUBLICATION, 18)
    client.add_subscription(SUBSCRIPTION, 18)
    claim: _native.BufferClaim | int = _native.NOT_CONNECTED

    def claimed() -> bool:
        nonlocal claim
        claim = publication.try_claim(8)
        return isinstance(claim, _native.BufferClaim)

    wait_until(claimed)
    assert isinstance(claim, _native.BufferClaim)
    view = memoryview(claim)
    publication.close()
    client.close()
    view[:] = b"anything"
    with pytest.raises(ClosedError):
        claim.commit()
    claim.abort()


@pytest.mark.parametrize("channel", ["not a channel", "aeron:nothing?x=1", "aeron:udp?endpoint=no-such-host.invalid:1"])
def test_a_bad_channel_is_a_transport_error_with_a_code_and_words(client: _native.AeronClient, channel: str) -> None:
    with pytest.raises(TransportError, match="could not add a publication") as refused:
        client.add_exclusive_publication(channel, 1)
    assert refused.value.code != 0
    with pytest.raises(TransportError, match="could not add a subscription"):
        client.add_subscription(channel, 1)


def test_a_channel_with_a_nul_is_a_value_error(client: _native.AeronClient) -> None:
    with pytest.raises(ValueError, match="NUL"):
        client.add_subscription("aeron:ipc\0", 1)


def test_polling_from_two_threads_delivers_each_message_once(client: _native.AeronClient, wait_until: WaitUntil) -> None:
    import threading

    publication = client.add_exclusive_publication(PUBLICATION, 19)
    subscription = client.add_subscription("aeron:ipc", 19)
    wait_until(lambda: publication.is_connected)
    received: list[int] = []
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            received.extend(int.from_bytes(message, "little") for message, _ in subscription.poll())

    threads = [threading.Thread(target=poll) for _ in range(2)]
    for thread in threads:
        thread.start()
    sent = 0
    try:
        while sent < 5000:
            sent += publication.offer(sent.to_bytes(4, "little")) > 0
        wait_until(lambda: len(received) == sent)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert sorted(received) == list(range(5000))
