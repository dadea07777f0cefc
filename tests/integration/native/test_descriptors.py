"""Descriptors over a real media driver: what the producer sends, what a reader makes of hostile ones."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator

import pytest

from tensor_pool import _native
from tensor_pool.errors import RegionError
from tensor_pool.sbe.control import FrameDescriptor
from tensor_pool.testing.directories import IsolatedDirectories
from tensor_pool.testing.failpoints import failpoint
from tests.unit.native.rings import EPOCH, STREAM_ID, Ring, balances, commit, numbered_header, publish, publish_numbered, ring

DEADLINE_S = 20.0
CHANNEL = "aeron:ipc?term-length=64k"
SETTINGS: dict[str, int | str | bool] = {"threading_mode": "shared", "sparse_term_buffers": False}


@pytest.fixture
def client(isolated: IsolatedDirectories) -> Iterator[_native.AeronClient]:
    driver = _native.MediaDriver(str(isolated.aeron_dir), SETTINGS)
    client = _native.AeronClient(driver.directory, name="test")
    yield client
    client.close()
    driver.close()


@pytest.fixture
def made() -> Iterator[Ring]:
    with ring() as made:
        yield made


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.001)


def descriptor(seq: int, **changes: int) -> bytes:
    fields = {"stream_id": STREAM_ID, "epoch": EPOCH, "seq": seq, "timestamp_ns": None, "meta_version": 0, "trace_id": 0, **changes}
    return FrameDescriptor(**fields).encode()


@pytest.mark.requirement("W-10.2.1-1")
@pytest.mark.requirement("W-10.2.1-2")
@pytest.mark.requirement("W-10.2.1-3")
@pytest.mark.requirement("W-10.2.1-5")
@pytest.mark.requirement("W-10.2.1-16")
@pytest.mark.requirement("W-8.2-9")
def test_every_committed_frame_is_announced_once_in_the_bytes_of_the_specification(client: _native.AeronClient, made: Ring) -> None:
    subscription = client.add_subscription("aeron:ipc", 1100)
    publication = client.add_exclusive_publication(CHANNEL, 1100)
    wait_until(lambda: publication.is_connected)
    writer = made.writer(publication=publication)
    earliest_ns = time.monotonic_ns()
    publish(writer, b"plain", timestamp_ns=5, meta_version=3)
    writer.claim(4).abort()
    publish(writer, b"stamped", timestamp_ns=5, trace_id=2**64 - 2, publish_timestamp=True)
    claim = writer.claim(4)
    assert commit(claim) == 2
    messages: list[bytes] = []
    wait_until(lambda: messages.extend(message for message, _ in subscription.poll()) or len(messages) >= 3)

    header = struct.pack("<4H", 40, 4, 900, 1)
    assert messages[0] == header + struct.pack("<IQQQIQ", STREAM_ID, EPOCH, 0, 2**64 - 1, 3, 0)
    stamp_ns = struct.unpack_from("<Q", messages[1], 28)[0]
    assert earliest_ns <= stamp_ns <= time.monotonic_ns()
    assert messages[1] == header + struct.pack("<IQQQIQ", STREAM_ID, EPOCH, 1, stamp_ns, 0, 2**64 - 2)
    assert [FrameDescriptor.decode(message).seq for message in messages] == [0, 1, 2]
    for message in messages:
        seq = FrameDescriptor.decode(message).seq
        assert made.header.load_u64(made.slot_offset(seq)) == seq << 1 | 1
    assert not subscription.poll()
    assert writer.counters()["descriptors_sent"] == writer.counters()["frames_published"] == 3


# a step, and how far frame 8 has come then, over frame 0: commit word, bytes of payload, header, descriptors
STEPS = (
    ("write.before_in_progress", 1, 0, False, 0),
    ("write.after_in_progress", 16, 0, False, 0),
    ("write.mid_payload", 16, 2048, False, 0),
    ("write.after_payload", 16, 4096, False, 0),
    ("write.after_header", 16, 4096, True, 0),
    ("write.before_committed", 16, 4096, True, 0),
    ("write.after_committed", 17, 4096, True, 0),
    ("write.after_descriptor", 17, 4096, True, 1),
)
# a claim is filled by its holder
STEPS_OF_A_CLAIM = STEPS[4:]


def sent_until_now(publication: _native.Publication, subscription: _native.Subscription) -> list[bytes]:
    """Every message before this call, and none that may still come: one of our own, sent after them, ends them."""
    end, messages = b"end", list[bytes]()
    wait_until(lambda: publication.offer(end) > 0)
    wait_until(lambda: messages.extend(message for message, _ in subscription.poll()) or end in messages)
    return messages[: messages.index(end)]


@pytest.mark.requirement("W-15.18-1")
@pytest.mark.requirement("W-10.2.1-8")
@pytest.mark.parametrize(
    ("in_place", "point", "word", "payload_is_new", "header_is_new", "descriptors"),
    [*((False, *step) for step in STEPS), *((True, *step) for step in STEPS_OF_A_CLAIM)],
)
def test_a_frame_is_opened_filled_described_and_committed_before_its_descriptor_is_sent(
    client: _native.AeronClient,
    made: Ring,
    in_place: bool,
    point: str,
    word: int,
    payload_is_new: int,
    header_is_new: bool,
    descriptors: int,
) -> None:
    subscription = client.add_subscription("aeron:ipc", 1100)
    publication = client.add_exclusive_publication(CHANNEL, 1100)
    wait_until(lambda: publication.is_connected)
    writer = made.writer(publication=publication)
    for number in range(8):
        publish_numbered(writer, number)
    assert len(sent_until_now(publication, subscription)) == 8
    with failpoint(point, "error"), pytest.raises(RegionError):
        publish_numbered(writer, 8, in_place=in_place)
    assert [FrameDescriptor.decode(message).seq for message in sent_until_now(publication, subscription)] == [8] * descriptors
    assert made.header.load_u64(made.slot_offset(8)) == word
    assert made.payload(8, 0, 4096) == bytes([8]) * payload_is_new + bytes(4096 - payload_is_new)
    assert made.slot(8)[8:] == numbered_header(8 if header_is_new else 0)


@pytest.mark.requirement("W-10.2.1-9")
@pytest.mark.requirement("W-8.2-10")
@pytest.mark.requirement("W-15.21-6")
def test_hostile_descriptors_are_counted_by_kind_and_the_good_ones_come_through(client: _native.AeronClient, made: Ring) -> None:
    reader = made.reader(subscription=client.add_subscription("aeron:ipc", 1100))
    publication = client.add_exclusive_publication(CHANNEL, 1100)
    wait_until(lambda: publication.is_connected)
    writer = made.writer()
    for _ in range(3):
        publish(writer, b"x")
    good = descriptor(0)
    hostile = [
        good[:7],
        b"",
        good[:-1],
        struct.pack("<4H", 36, 4, 900, 1) + good[8:],
        struct.pack("<4H", 40, 4, 900, 2) + good[8:],
        struct.pack("<4H", 40, 4, 900, 0) + good[8:],
        descriptor(2**63),
    ]
    elsewhere = [
        struct.pack("<4H", 40, 4, 901, 1) + good[8:],
        struct.pack("<4H", 29, 11, 900, 1) + bytes(29),
        descriptor(0, stream_id=STREAM_ID + 1),
        descriptor(2**63, stream_id=STREAM_ID + 1),
    ]
    messages = [
        *hostile,
        *elsewhere,
        descriptor(0, epoch=EPOCH - 1),
        descriptor(0, epoch=EPOCH + 1),
        descriptor(1),
        descriptor(2) + b"longer",
    ]
    for message in messages:
        wait_until(lambda message=message: publication.offer(message) > 0)
    frames = [reader.read(int(DEADLINE_S * 1e9)) for _ in range(2)]
    assert [frame.seq for frame in frames if frame is not None] == [1, 2]
    assert reader.read(0) is None
    counters = reader.counters()
    assert counters["malformed"] == len(hostile)
    assert counters["wrong_epoch"] == 2
    # of this stream and whole: two good ones, two of other epochs, one with a seq that cannot be
    assert counters["descriptors_received"] == 5
    assert (counters["delivered"], counters["gap"]) == (2, 1)
    assert balances(counters)


@pytest.mark.requirement("W-10.2.1-16")
def test_both_ways_of_saying_no_trace_are_read_as_none(client: _native.AeronClient, made: Ring) -> None:
    reader = made.reader(subscription=client.add_subscription("aeron:ipc", 1100))
    publication = client.add_exclusive_publication(CHANNEL, 1100)
    wait_until(lambda: publication.is_connected)
    writer = made.writer()
    for seq, trace_id in enumerate((0, 2**64 - 1, 7)):
        publish(writer, b"x")
        message = bytearray(descriptor(seq))
        struct.pack_into("<Q", message, 40, trace_id)
        wait_until(lambda message=message: publication.offer(message) > 0)
    frames = [reader.read(int(DEADLINE_S * 1e9)) for _ in range(3)]
    assert [frame.trace_id for frame in frames if frame is not None] == [0, 0, 7]


@pytest.mark.requirement("W-15.4-1")
def test_a_refused_descriptor_is_counted_and_never_waited_for(client: _native.AeronClient, made: Ring) -> None:
    publication = client.add_exclusive_publication(CHANNEL, 1100)
    writer = made.writer(publication=publication)
    publish(writer, b"nobody listens")
    assert writer.counters()["descriptors_not_connected"] == 1
    client.add_subscription("aeron:ipc", 1100)
    wait_until(lambda: publication.is_connected)
    sent = 0
    # nobody polls: the window fills, and the frames go on
    while writer.counters()["descriptors_back_pressured"] < 10:
        publish(writer, b"x")
        sent += 1
        assert sent < 100_000
    publication.close()
    publish(writer, b"closed")
    counters = writer.counters()
    assert counters["descriptors_closed"] == 1
    assert counters["frames_published"] == sent + 2 == writer.next_seq
    assert sum(value for name, value in counters.items() if name.startswith("descriptors_")) == sent + 2


def test_poll_keeps_the_newest_of_a_flood_and_newest_skips_the_rest(client: _native.AeronClient, made: Ring) -> None:
    reader = made.reader(subscription=client.add_subscription("aeron:ipc", 1100))
    publication = client.add_exclusive_publication(CHANNEL, 1100)
    wait_until(lambda: publication.is_connected)
    writer = made.writer(publication=publication)
    for _ in range(100):
        publish(writer, b"x")
    kept = []
    wait_until(lambda: kept.append(reader.poll()) or sum(kept) == 100)
    frame = reader.read(0, newest=True)
    assert frame is not None
    assert frame.seq == 99
    counters = reader.counters()
    assert (counters["skipped"], counters["gap"], counters["delivered"]) == (99, 0, 1)
    assert balances(counters)
