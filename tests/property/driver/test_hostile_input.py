"""Whatever bytes arrive on the control stream: counted once, never an exception. Whatever an administrator asks: an answer or words."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_pool.driver.config import DriverSettings
from tensor_pool.driver.operations import CHANGING, LOOKING
from tensor_pool.errors import TensorPoolError
from tensor_pool.testing.driver import InvokedDriver

HEADERS = st.builds(
    lambda block, template, schema, version: b"".join(number.to_bytes(2, "little") for number in (block, template, schema, version)),
    st.sampled_from([0, 24, 25, 39, 51, 65535]),
    st.sampled_from([1, 2, 3, 5, 7, 65535]),
    st.sampled_from([900, 901, 902, 0]),
    st.sampled_from([0, 1, 2]),
)
MESSAGES = st.one_of(st.binary(max_size=80), st.builds(lambda header, body: header + body, HEADERS, st.binary(max_size=80)))
# every message raises one of these, and only one
JUDGED = (
    "attach_requests_accepted",
    "attach_requests_repeated",
    "attach_requests_unsupported",
    "attach_requests_invalid",
    "attach_requests_rejected",
    "attach_requests_failed",
    "detach_requests_accepted",
    "detach_requests_rejected",
    "keepalives_accepted",
    "keepalives_unmatched",
    "hellos_accepted",
    "hellos_unknown_stream",
    "messages_malformed",
)


@pytest.fixture(scope="module")
def driver() -> Iterator[InvokedDriver]:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "shm").mkdir()
        with InvokedDriver(Path(directory) / "shm", Path(directory) / "state", DriverSettings()) as driver:
            yield driver


@settings(max_examples=1000, deadline=None)
@given(messages=st.lists(MESSAGES, max_size=5))
def test_each_message_is_counted_exactly_once(driver: InvokedDriver, messages: list[bytes]) -> None:
    before = driver.agent.counters.snapshot()
    driver.send(*messages)
    after = driver.agent.counters.snapshot()
    assert sum(after[name] - before[name] for name in JUDGED) == len(messages)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=300), st.lists(st.text(max_size=5))
)


@settings(max_examples=500, deadline=None)
@given(
    operation=st.sampled_from([name for name in (*LOOKING, *CHANGING) if name != "shutdown"]),
    arguments=st.dictionaries(st.sampled_from(["stream_id", "slots", "stride_bytes", "name", "tags", "lease_id"]), VALUES),
)
def test_administrators_get_an_answer_or_an_error_in_words(driver: InvokedDriver, operation: str, arguments: dict[str, Any]) -> None:
    with suppress(TensorPoolError):
        assert isinstance(driver.ask(operation, **arguments), dict)
