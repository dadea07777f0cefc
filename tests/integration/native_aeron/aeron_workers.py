"""What the tests of this directory run in other processes. Arguments: the Aeron directory, a channel, a stream id, then what each names."""

from __future__ import annotations

import json
import os
import struct
import sys
import time

from tensor_pool import _native
from tensor_pool.errors import TensorPoolError

CHANNEL = "aeron:ipc?term-length=64k|sparse=false"


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def drive() -> None:
    """A media driver until the input ends."""
    directory, driver_timeout_ms = sys.argv[1], int(sys.argv[2])
    settings: dict[str, int | str | bool] = {"threading_mode": "shared", "timer_interval_ms": 10, "driver_timeout_ms": driver_timeout_ms}
    for name, value in (("window_limit", 20), ("linger", 11), ("resting", 500)):
        settings[f"untethered_{name}_timeout_ms"] = value
    driver = _native.MediaDriver(directory, settings)
    say(ready=os.getpid())
    sys.stdin.read()
    driver.close()


def subscribe() -> None:
    """Poll until `count` messages came, then say which."""
    client = _native.AeronClient(sys.argv[1])
    subscription = client.add_subscription(sys.argv[2], int(sys.argv[3]))
    say(ready=True)
    count, received = int(sys.argv[4]), []
    while len(received) < count:
        messages = subscription.poll()
        received += messages
        if not messages:
            time.sleep(0.001)
    images = dict(subscription.images())
    say(messages=[message.hex() for message, _ in received], sessions=sorted({session for _, session in received}), images=list(images))
    sys.stdin.read()


def publish() -> None:
    """Offer each message (hex) given, then stay until the input ends."""
    client = _native.AeronClient(sys.argv[1])
    publication = client.add_exclusive_publication(sys.argv[2], int(sys.argv[3]))
    say(session=publication.session_id)
    for text in sys.argv[4:]:
        while publication.offer(bytes.fromhex(text)) < 0:
            time.sleep(0.001)
    say(published=time.monotonic_ns())
    sys.stdin.read()
    client.close()


def hold_open() -> None:
    """Use everything while a driver dies, and say how each thing ended and how long it took."""
    directory, timeout_ms = sys.argv[1], int(sys.argv[2])
    client = _native.AeronClient(directory, driver_timeout_ms=timeout_ms)
    publication = client.add_exclusive_publication(CHANNEL, 1)
    subscription = client.add_subscription("aeron:ipc?tether=false", 1)
    counter = client.add_counter(2001, b"", "held")
    pump = _native.Pump()
    inbox = pump.add_inbox(client.add_subscription("aeron:ipc?tether=false", 2), [(1, 1)])
    while not publication.is_connected:
        time.sleep(0.001)
    say(ready=True)
    uses = {
        "offer": lambda: publication.offer(b"x"),
        "claim": lambda: publication.try_claim(1),
        "poll": subscription.poll,
        "drain": inbox.drain,
        "counter": lambda: counter.add(1),
        "add": lambda: client.add_subscription("aeron:ipc", 3),
        "counters": client.counters,
    }
    ended: dict[str, str] = {}
    while len(ended) < len(uses):
        for name, use in uses.items():
            if name not in ended and (name != "add" or client.is_closed):
                try:
                    use()
                except TensorPoolError as error:
                    ended[name] = type(error).__name__
                    say(ended=name, at_ns=time.monotonic_ns())
        time.sleep(0.002)
    say(all_ended=ended, errors=[code for code, _ in client.take_errors()])
    started = time.monotonic()
    pump.close()
    client.close()
    say(closed_within_s=time.monotonic() - started)
    sys.stdin.read()


def keep_alive() -> None:
    """Send a keepalive until the input ends; say what was sent last."""
    client = _native.AeronClient(sys.argv[1])
    publication = client.add_exclusive_publication(sys.argv[2], int(sys.argv[3]))
    pump = _native.Pump()
    message = struct.pack("<HHHH", 16, 4, 901, 1) + struct.pack("<QQ", 77, 0)
    keepalive = pump.add_keepalive(publication, message, timestamp_offset=16, interval_ns=int(sys.argv[4]))
    say(ready=True)
    sys.stdin.read()
    keepalive.close()
    say(last_sent_ns=keepalive.last_sent_ns, refused=keepalive.refused)
    client.close()
