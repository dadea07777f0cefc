"""Bytes that the reference SBE compiler made, and what they mean."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable

import pytest

from tensor_pool.errors import ProtocolError
from tests.vectors.known_answers import (
    MODULES,
    READ_AS_ABSENT,
    REFUSED,
    VECTORS_PATH,
    KnownAnswer,
    build,
    decode_with,
    decoders,
    encode,
    load_known_answers,
)

ANSWERS = load_known_answers()
READABLE = [answer for answer in ANSWERS if answer.key not in REFUSED]
BINDING = [answer for answer in READABLE if answer.key not in READ_AS_ABSENT]
WRITABLE = [answer for answer in BINDING if not answer.decode_only]

layouts = [
    pytest.mark.requirement("W-6-2"),
    pytest.mark.requirement("W-16-1"),
    pytest.mark.requirement("D-AppendixA-1"),
]


def all_layouts(test: Callable[..., None]) -> Callable[..., None]:
    """The layout rules of the schemas that have one: an answer of each is among the parameters."""
    for mark in layouts:
        test = mark(test)
    return test


def test_the_answers_are_the_ones_the_reference_compiler_gave() -> None:
    digest = hashlib.sha256(VECTORS_PATH.read_bytes()).hexdigest()
    assert digest == "fde0b778cbbd3bb966a25f372a91d7cc567e4d0c45387449589e81dac0fbf54a"


def test_every_message_of_every_schema_has_answers() -> None:
    answered = Counter(answer.message_class for answer in ANSWERS)
    assert set(answered) == set(decoders().values())
    assert min(answered.values()) >= 4
    assert len(ANSWERS) == 128
    assert len({answer.key for answer in ANSWERS}) == 128
    assert len(WRITABLE) == 128 - len(REFUSED) - len(READ_AS_ABSENT) - 4


@pytest.mark.parametrize("answer", BINDING, ids=str)
@all_layouts
def test_the_bytes_mean_these_values(answer: KnownAnswer) -> None:
    assert decode_with(answer.message_class, answer.data) == build(answer.message_class, answer.fields)


@pytest.mark.parametrize("answer", WRITABLE, ids=str)
@all_layouts
@pytest.mark.requirement("W-8.2-1")
@pytest.mark.requirement("W-10.1-6")
@pytest.mark.requirement("S-5.0-1")
@pytest.mark.requirement("S-5.0-5")
def test_the_values_are_written_as_these_bytes(answer: KnownAnswer) -> None:
    assert encode(build(answer.message_class, answer.fields)).hex() == answer.data.hex()


@pytest.mark.parametrize("answer", [answer for answer in READABLE if answer.has_message_header], ids=str)
def test_the_decoder_of_the_schema_finds_the_message(answer: KnownAnswer) -> None:
    if answer.message == "TensorHeader":
        with pytest.raises(ProtocolError):
            MODULES[answer.schema].decode(answer.data)
    else:
        assert type(MODULES[answer.schema].decode(answer.data)) is answer.message_class


@pytest.mark.parametrize("answer", [answer for answer in ANSWERS if answer.decode_only], ids=str)
def test_what_other_writers_leave_out_is_read_and_written_in_full(answer: KnownAnswer) -> None:
    message = decode_with(answer.message_class, answer.data)
    assert encode(message) != answer.data
    assert decode_with(answer.message_class, encode(message)) == message


@pytest.mark.parametrize("answer", [answer for answer in ANSWERS if answer.key in REFUSED], ids=str)
def test_what_is_above_the_maxima_of_the_schema_is_refused_both_ways(answer: KnownAnswer) -> None:
    with pytest.raises(ProtocolError) as reading:
        decode_with(answer.message_class, answer.data)
    with pytest.raises(ProtocolError) as writing:
        encode(build(answer.message_class, answer.fields))
    assert reading.value.rule == writing.value.rule == REFUSED[answer.key]


@pytest.mark.parametrize("answer", [answer for answer in ANSWERS if answer.key in READ_AS_ABSENT], ids=str)
def test_a_null_of_another_compiler_is_read_as_absent(answer: KnownAnswer) -> None:
    field = READ_AS_ABSENT[answer.key]
    message = decode_with(answer.message_class, answer.data)
    assert getattr(message, field) is None
    assert message == build(answer.message_class, {**answer.fields, field: None})
