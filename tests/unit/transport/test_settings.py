"""Settings of the media driver: defaults, ranges, and what has to fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensor_pool.config import load
from tensor_pool.errors import ConfigError
from tensor_pool.transport import MediaDriverSettings


def test_the_defaults_keep_a_stopped_consumer_from_stalling_others() -> None:
    native = MediaDriverSettings().as_native()
    assert native["timer_interval_ms"] == 10
    assert native["untethered_window_limit_timeout_ms"] == 20
    assert native["untethered_linger_timeout_ms"] == 11
    assert native["untethered_resting_timeout_ms"] == 500
    assert native["threading_mode"] == "shared"
    assert native["sparse_term_buffers"] is False


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threading_mode": "SHARED"}, "threading_mode"),
        ({"idle_strategy": "nap"}, "idle_strategy"),
        ({"idle_strategy_arguments": " "}, "neither spins-yields"),
        ({"idle_strategy_arguments": "garbage"}, "neither spins-yields"),
        ({"idle_strategy_arguments": "1-1-100us"}, "neither spins-yields"),
        ({"idle_strategy_arguments": "1-1-100us-2h"}, "neither spins-yields"),
        ({"idle_strategy_arguments": "1-1-100us-1100ms"}, "more than 1s"),
        ({"idle_strategy_arguments": "2ms"}, "is not spins-yields-shortest-longest"),
        ({"idle_strategy": "sleep-ns"}, "is not one sleep"),
        ({"idle_strategy": "sleep-ns", "idle_strategy_arguments": "3s"}, "more than 1s"),
        ({"idle_strategy": "spin", "idle_strategy_arguments": "x"}, "neither spins-yields"),
        ({"timer_interval_ms": 0}, "timer_interval_ms"),
        ({"ipc_term_length_bytes": 3 << 20}, "power of two"),
        ({"term_length_bytes": 1 << 31}, "term_length_bytes"),
        ({"mtu_bytes": 1400}, "multiple of 32"),
        ({"timer_interval_ms": 20}, "not longer than media_driver.timer_interval_ms"),
        ({"untethered_linger_timeout_ms": 10}, "untethered_linger_timeout_ms: 10 ms is not longer"),
        ({"client_liveness_timeout_ms": 15_000}, "publication_unblock_timeout_ms"),
        ({"receiver_window_bytes": 1 << 20}, "receive buffer"),
    ],
)
def test_what_the_driver_would_refuse_is_refused_before(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MediaDriverSettings(**settings)


def test_settings_are_read_from_their_table(tmp_path: Path) -> None:
    file = tmp_path / "stack.toml"
    file.write_text('[media_driver]\nthreading_mode = "dedicated"\ndriver_timeout_ms = 1000\n')
    loaded = load(MediaDriverSettings, file, environ={})
    assert (loaded.settings.threading_mode, loaded.settings.driver_timeout_ms) == ("dedicated", 1000)
    assert loaded.origin["media_driver.driver_timeout_ms"] == f"{file}:3"
