"""Whatever stands in a `stack.json`, reading it gives a description that can be written again, or a `ConfigError`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensor_pool.errors import ConfigError
from tensor_pool.runtime import StackDescription

GOOD: dict[str, Any] = {
    "format": 1,
    "pid": 1,
    "instance_id": "lab",
    "aeron_dir": "/a",
    "allowed_base_dirs": ["/b"],
    "admin_socket": "/c",
    "announce_period_ms": 1000,
    "lease_keepalive_interval_ms": 1000,
}
for _name in ("control", "announce", "descriptor", "qos", "metadata"):
    GOOD |= {f"{_name}_channel": "aeron:ipc", f"{_name}_stream_id": 1}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


def read(content: bytes) -> StackDescription | None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stack.json"
        path.write_bytes(content)
        try:
            description = StackDescription.read(path)
        except ConfigError:
            return None
        description.write(path)
        assert StackDescription.read(path) == description
        return description


@given(st.dictionaries(st.sampled_from(sorted(GOOD)) | st.text(max_size=5), JSON, max_size=3))
def test_changed_fields_are_read_exactly_or_refused(changes: dict[str, Any]) -> None:
    values = GOOD | changes
    description = read(json.dumps(values).encode())
    if description is not None:
        assert all(getattr(description, name) == (tuple(value) if isinstance(value, list) else value) for name, value in values.items())


@given(st.binary(max_size=200), st.integers(0, len(json.dumps(GOOD))))
def test_garbage_is_refused(garbage: bytes, cut: int) -> None:
    whole = json.dumps(GOOD).encode()
    assert read(whole) is not None
    assert read(garbage) is None
    assert read(whole[:cut]) is None or cut == len(whole)
