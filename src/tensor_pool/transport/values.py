"""What Aeron takes for a size, a duration, an address, …: asked before Aeron is, whose own answer names neither key nor file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

_SIZE: Final = re.compile(r"([0-9]{1,15})([kmg]?)", re.IGNORECASE)
_SIZE_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATION: Final = re.compile(r"([0-9]{1,12})(ns|us|ms|s|)", re.IGNORECASE)
_DURATION_FACTORS: Final = {"": 1, "ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,10}")
_SESSION: Final = re.compile(r"-?[0-9]{1,10}|tag:[0-9]{1,18}")
_ADDRESS: Final = re.compile(r"(?:\[[^\s\[\]]+\]|[^\s:\[\]]+):([0-9]{1,5})")
_BACKOFF: Final = re.compile(r"[0-9]{1,9}-[0-9]{1,9}-([0-9]{1,9}(?:us|ms|s)?)-([0-9]{1,9}(?:us|ms|s)?)")
# the lengths between which Aeron's terms and messages have to be
TERM_BYTES: Final = (64 << 10, 1 << 30)
MTU_BYTES: Final = (64, 65_504)
MTU_MULTIPLE: Final = 32
# a driver that sleeps longer than its clients wait for it is as good as dead
LONGEST_IDLE_NS: Final = 1_000_000_000


def size_bytes(text: str) -> int | None:
    """A number of bytes with k, m or g behind it; None where it is none."""
    match = _SIZE.fullmatch(text)
    return int(match[1]) * _SIZE_FACTORS[match[2].lower()] if match else None


def duration_ns(text: str) -> int | None:
    """A number with ns (which may be left out), us, ms or s behind it; None where it is none."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _DURATION_FACTORS[match[2].lower()] if match else None


def idle_arguments_complaint(text: str, strategy: str = "") -> str:
    """Why an idle strategy cannot have these arguments; of any strategy that has some where none is named."""
    backoff = _BACKOFF.fullmatch(text)
    sleeps = list(backoff.groups()) if backoff else [text]
    if strategy == "backoff" and not backoff:
        return "is not spins-yields-shortest-longest sleep, as in 1-1-100us-2ms"
    if strategy == "sleep-ns" and backoff:
        return "is not one sleep, as in 2ms"
    sleeps_ns = [duration_ns(sleep) for sleep in sleeps]
    if None in sleeps_ns:
        return "is neither spins-yields-shortest-longest sleep, as in 1-1-100us-2ms, nor one sleep, as in 2ms"
    if any(sleep_ns is not None and sleep_ns > LONGEST_IDLE_NS for sleep_ns in sleeps_ns):
        return "has a sleep of more than 1s"
    return ""


def parameter_complaint(name: str, value: str) -> str:
    """What is wrong with the value of a channel's parameter; empty where nothing is, or nothing is known of it."""
    check = _PARAMETER_CHECKS.get(name)
    return check(value) if check is not None else ""


def _size(value: str) -> str:
    return "" if size_bytes(value) is not None else "is no size, as in 65504, 128k or 4m"


def _duration(value: str) -> str:
    return "" if duration_ns(value) is not None else "is no duration, as in 20ms or 5s"


def _truth(value: str) -> str:
    return "" if value in ("true", "false") else "is not true or false"


def _whole_number(value: str) -> str:
    return "" if _WHOLE_NUMBER.fullmatch(value) else "is not a whole number"


def _session(value: str) -> str:
    return "" if _SESSION.fullmatch(value) else "is neither a whole number nor a tag, as in tag:7"


def _term_length(value: str) -> str:
    length, (shortest, longest) = size_bytes(value), TERM_BYTES
    is_term = length is not None and shortest <= length <= longest and length.bit_count() == 1
    return "" if is_term else "is not a power of two from 64k to 1g"


def _mtu(value: str) -> str:
    length, (shortest, longest) = size_bytes(value), MTU_BYTES
    is_mtu = length is not None and shortest <= length <= longest and length % MTU_MULTIPLE == 0
    return "" if is_mtu else f"is not a multiple of {MTU_MULTIPLE} from {shortest} to {longest}"


def _address(lowest_port: int) -> Callable[[str], str]:
    def check(value: str) -> str:
        match = _ADDRESS.fullmatch(value)
        return "" if match and lowest_port <= int(match[1]) <= 65_535 else "is no host:port"

    return check


_PARAMETER_CHECKS: Final[Mapping[str, Callable[[str], str]]] = {
    "control": _address(0),
    "endpoint": _address(1),
    "mtu": _mtu,
    "session-id": _session,
    "term-length": _term_length,
    **dict.fromkeys(("init-term-id", "max-resend", "so-tos", "stream-id", "term-id", "term-offset", "ttl"), _whole_number),
    **dict.fromkeys(("pub-wnd", "rcv-wnd", "so-rcvbuf", "so-sndbuf"), _size),
    **dict.fromkeys(("eos", "rejoin", "reliable", "sparse", "ssc", "tether"), _truth),
    **dict.fromkeys(
        ("linger", "nak-delay", "untethered-linger-timeout", "untethered-resting-timeout", "untethered-window-limit-timeout"), _duration
    ),
}
