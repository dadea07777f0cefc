"""The generated codecs against a slow one that was written apart from them: same bytes, same values, same refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_pool.errors import ProtocolError
from tests.property.sbe.plain_values import messages
from tests.property.sbe.reference import RefusedError, load_schemas
from tests.vectors.known_answers import build, decode_with, decoders, encode, load_known_answers, plain

SCHEMAS = load_schemas()
DECODERS = decoders()
ANSWERS = load_known_answers()
every_message = pytest.mark.parametrize("name", DECODERS)


def reference_bytes(message_class: type, values: dict[str, object]) -> bytes:
    schema = SCHEMAS[message_class.SCHEMA_ID]  # type: ignore[attr-defined]
    header = values.get("tensor_header")
    if message_class.__name__ == "SlotHeader":
        inner = b"" if header is None else schema.encode("TensorHeader", header)  # type: ignore[arg-type]
        values = {**values, "header_bytes": inner}
    return schema.encode(message_class.__name__, values)


def reference_values(message_class: type, data: bytes) -> dict[str, object] | None:
    """None where the reference refuses."""
    try:
        return SCHEMAS[message_class.SCHEMA_ID].decode(message_class.__name__, data)  # type: ignore[attr-defined]
    except RefusedError:
        return None


@every_message
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_both_write_the_same_bytes_and_read_them_the_same(name: str, data: st.DataObject) -> None:
    message_class = DECODERS[name]
    values = data.draw(messages(SCHEMAS[message_class.SCHEMA_ID], message_class.__name__))
    message = build(message_class, values)
    encoded = encode(message)
    assert encoded == reference_bytes(message_class, values)
    assert decode_with(message_class, encoded) == message
    assert reference_values(message_class, encoded) == plain(message) == values


@every_message
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_both_accept_and_refuse_the_same_damaged_bytes(name: str, data: st.DataObject) -> None:
    message_class = DECODERS[name]
    known = [answer.data for answer in ANSWERS if answer.message_class is message_class]
    damaged = data.draw(st.sampled_from(known).flatmap(damage))
    expected = reference_values(message_class, damaged)
    if expected is None:
        with pytest.raises(ProtocolError) as refusal:
            decode_with(message_class, damaged)
        assert refusal.value.rule
        assert refusal.value.name
    else:
        assert plain(decode_with(message_class, damaged)) == expected


def damage(message: bytes) -> st.SearchStrategy[bytes]:
    """One or two of what goes wrong with bytes: another value, a piece lost, a piece too much."""

    def overwrite(place: int, piece: bytes) -> bytes:
        return message[:place] + piece + message[place + len(piece) :]

    places = st.integers(0, len(message))
    pieces = st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([0, 1, 2, 3, 4, 5, 255, 256, 65534, 65535, 2**30, 2**30 + 1, 2**32 - 1]).map(
            lambda number: number.to_bytes(4, "little")
        ),
    )
    return st.one_of(
        st.just(message),
        st.builds(overwrite, places, pieces),
        places.map(lambda place: message[:place]),
        st.binary(min_size=1, max_size=8).map(lambda piece: message + piece),
        st.builds(lambda place, piece: message[:place] + piece + message[place:], places, pieces),
    )


@every_message
@given(data=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_arbitrary_bytes_are_read_or_refused_and_never_anything_else(name: str, data: bytes) -> None:
    message_class = DECODERS[name]
    headed = message_class.__name__ not in ("ShmRegionSuperblock", "SlotHeader")
    header = (message_class.BLOCK_LENGTH, message_class.TEMPLATE_ID, message_class.SCHEMA_ID, message_class.SCHEMA_VERSION)
    for candidate in (data, b"".join(part.to_bytes(2, "little") for part in header) + data if headed else data.ljust(256, b"\1")[:256]):
        expected = reference_values(message_class, candidate)
        if expected is None:
            with pytest.raises(ProtocolError):
                decode_with(message_class, candidate)
        else:
            assert plain(decode_with(message_class, candidate)) == expected
