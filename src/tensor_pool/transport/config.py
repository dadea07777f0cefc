"""What the media driver can be told. The defaults keep a consumer that stops from stalling the others, at 1.3 % of a core when idle."""

from __future__ import annotations

import dataclasses
from typing import Any

from tensor_pool.config import power_of_two_complaint, section, setting
from tensor_pool.errors import ConfigError
from tensor_pool.transport.values import MTU_BYTES, MTU_MULTIPLE, TERM_BYTES, idle_arguments_complaint

KIB = 1 << 10
MIB = 1 << 20
MIN_TERM_BYTES, MAX_TERM_BYTES = TERM_BYTES


def _mtu_complaint(value: Any) -> str:
    return "" if value % MTU_MULTIPLE == 0 else f"is not a multiple of {MTU_MULTIPLE}"


@section("media_driver")
class MediaDriverSettings:
    """The media driver of a stack."""

    threading_mode: str = setting(
        "shared", choices=["shared", "shared_network", "dedicated"], help="threads of the driver: shared is best on few cores"
    )
    idle_strategy: str = setting(
        "backoff", choices=["backoff", "sleep-ns", "yield", "spin", "noop"], help="what the driver does when there is nothing to do"
    )
    idle_strategy_arguments: str = setting(
        "1-1-100us-2ms", help="of backoff: spins-yields-shortest-longest sleep; of sleep-ns: the sleep", check=idle_arguments_complaint
    )
    timer_interval_ms: int = setting(10, minimum=1, maximum=10_000, unit="ms", help="how often the driver looks at its time-outs")
    untethered_window_limit_timeout_ms: int = setting(
        20, minimum=2, maximum=60_000, unit="ms", help="a consumer this long more than 3/4 of a window behind is evicted"
    )
    untethered_linger_timeout_ms: int = setting(11, minimum=2, maximum=60_000, unit="ms", help="how long an evicted consumer still counts")
    untethered_resting_timeout_ms: int = setting(
        500, minimum=2, maximum=600_000, unit="ms", help="after this an evicted consumer may join again"
    )
    client_liveness_timeout_ms: int = setting(10_000, minimum=100, maximum=600_000, unit="ms", help="a client silent for this long is dead")
    publication_unblock_timeout_ms: int = setting(
        15_000, minimum=101, maximum=900_000, unit="ms", help="a message claimed and never committed is skipped after this"
    )
    image_liveness_timeout_ms: int = setting(10_000, minimum=100, maximum=600_000, unit="ms", help="a UDP sender silent this long is gone")
    driver_timeout_ms: int = setting(
        10_000, minimum=100, maximum=600_000, unit="ms", help="a driver silent for this long is dead, for clients and for the next driver"
    )
    sparse_term_buffers: bool = setting(
        False, help="take the space of logs as they fill; a full file system then kills publishers instead of refusing them"
    )
    storage_checks: bool = setting(True, help="refuse a log that the file system has no room for")
    ipc_term_length_bytes: int = setting(
        1 * MIB,
        minimum=MIN_TERM_BYTES,
        maximum=MAX_TERM_BYTES,
        unit="bytes",
        check=power_of_two_complaint,
        help="of IPC channels that say nothing",
    )
    term_length_bytes: int = setting(
        16 * MIB,
        minimum=MIN_TERM_BYTES,
        maximum=MAX_TERM_BYTES,
        unit="bytes",
        check=power_of_two_complaint,
        help="of UDP channels that say nothing",
    )
    mtu_bytes: int = setting(
        1408, minimum=MTU_BYTES[0], maximum=MTU_BYTES[1], unit="bytes", check=_mtu_complaint, help="of UDP channels that say nothing"
    )
    socket_send_buffer_bytes: int = setting(0, minimum=0, maximum=MAX_TERM_BYTES, unit="bytes", help="0: as the system has it")
    socket_receive_buffer_bytes: int = setting(128 * KIB, minimum=0, maximum=MAX_TERM_BYTES, unit="bytes", help="0: as the system has it")
    receiver_window_bytes: int = setting(
        128 * KIB, minimum=256, maximum=MAX_TERM_BYTES, unit="bytes", help="at most the receive buffer; limits what a sender has under way"
    )
    counters_buffer_bytes: int = setting(
        8 * MIB, minimum=1 * MIB, maximum=500 * MIB, unit="bytes", check=power_of_two_complaint, help="a counter takes 128 bytes of it"
    )

    def __post_init__(self) -> None:
        if complaint := idle_arguments_complaint(self.idle_strategy_arguments, self.idle_strategy):
            key = "media_driver.idle_strategy_arguments"
            raise ConfigError(
                f"{key} = {self.idle_strategy_arguments!r} {complaint}",
                key=key,
                value=self.idle_strategy_arguments,
                hint=f"media_driver.idle_strategy is {self.idle_strategy}: change both together",
            )
        for name in ("untethered_window_limit_timeout_ms", "untethered_linger_timeout_ms", "untethered_resting_timeout_ms"):
            self._check_longer(name, "timer_interval_ms")
        self._check_longer("publication_unblock_timeout_ms", "client_liveness_timeout_ms")
        buffer_bytes = self.socket_receive_buffer_bytes
        if buffer_bytes and self.receiver_window_bytes > buffer_bytes:
            raise ConfigError(
                f"media_driver.receiver_window_bytes: {self.receiver_window_bytes} is more than the receive buffer holds, {buffer_bytes}",
                key="media_driver.receiver_window_bytes",
                value=self.receiver_window_bytes,
                hint="raise media_driver.socket_receive_buffer_bytes too",
            )

    def _check_longer(self, name: str, than: str) -> None:
        value, limit = getattr(self, name), getattr(self, than)
        if value <= limit:
            raise ConfigError(
                f"media_driver.{name}: {value} ms is not longer than media_driver.{than}, {limit} ms",
                key=f"media_driver.{name}",
                value=value,
                hint="the driver looks at its time-outs only so often" if than == "timer_interval_ms" else "",
            )

    def as_native(self) -> dict[str, int | str | bool]:
        """The settings as the native driver takes them."""
        return dataclasses.asdict(self)
