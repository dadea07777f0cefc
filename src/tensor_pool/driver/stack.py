"""A whole SHM driver: lock, files, duty cycle on a thread, admin socket. What a process has to hold to be one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random, SystemRandom
from threading import Event
from types import TracebackType
from typing import Final

from tensor_pool.clock import Clock, SystemClock
from tensor_pool.driver.admin import AdminServer
from tensor_pool.driver.agent import DriverAgent
from tensor_pool.driver.config import DriverSettings
from tensor_pool.driver.counters import DriverCounters
from tensor_pool.driver.link import AeronDriverLink
from tensor_pool.driver.provisioning import Provisioner, RetentionPolicy
from tensor_pool.driver.storage import DriverPlace, epoch_collector, epoch_ledger, epoch_storage, find_place
from tensor_pool.errors import ClosedError, RegionError, TransportError
from tensor_pool.runtime import AgentRunner, StackDescription
from tensor_pool.sbe.driver import ShutdownReason
from tensor_pool.shm.lock import DriverLock
from tensor_pool.shm.native_regions import NativeRegionFactory
from tensor_pool.shm.regions import RegionFactory
from tensor_pool.transport import TransportClient

LONGEST_IDLE_NS: Final = 50_000_000
"""Messages, requests and finished files wake the duty cycle; what is left are announces and leases that run out."""
LINGER_S: Final = 0.02
"""So that clients read the shutdown notice before its publication goes."""


class DriverStack:
    """The SHM driver of one stack. `start` it, watch `stop_requested`, `close` it."""

    def __init__(
        self,
        settings: DriverSettings,
        transport: TransportClient,
        *,
        admin_socket: Path,
        state_directory: Path,
        clock: Clock | None = None,
        random: Random | None = None,
        region_factory: RegionFactory | None = None,
    ) -> None:
        """`transport` is borrowed and has to outlive this. Epochs are remembered in `state_directory`, which is made where it is missing.
        `random` keys the lease ids, which nobody is to guess.

        Raises `ConfigError` for directories that do not fit.
        """
        self._settings = settings
        self._transport = transport
        self._admin_socket = admin_socket
        self._state_directory = state_directory
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._region_factory = region_factory or NativeRegionFactory()
        self._place = find_place(settings, process_id=os.getpid(), host_name=socket.gethostname())
        self._open = ExitStack()
        self._agent: DriverAgent | None = None
        self._runner: AgentRunner | None = None
        self._has_ended = Event()

    @property
    def place(self) -> DriverPlace:
        """Where its files are."""
        return self._place

    @property
    def stop_requested(self) -> Event:
        """Set when an administrator asked for the end, or when the driver ended by itself: then `error` says why."""
        return self._agent.stop_requested if self._agent is not None else self._has_ended

    @property
    def error(self) -> BaseException | None:
        """What ended the duty cycle, if it did not end by `close`."""
        return self._runner.error if self._runner is not None else None

    @property
    def counters(self) -> DriverCounters:
        if self._agent is None:
            raise ClosedError("the driver was not started")
        return self._agent.counters

    def describe(self, aeron_dir: str) -> StackDescription:
        """What clients need to know, for `stack.json`."""
        section, policies = self._settings.driver, self._settings.policies
        return StackDescription(
            pid=self._place.process_id,
            instance_id=self._place.instance_id,
            aeron_dir=aeron_dir,
            control_channel=section.control_channel,
            control_stream_id=section.control_stream_id,
            announce_channel=section.announce_channel,
            announce_stream_id=section.announce_stream_id,
            descriptor_channel=section.descriptor_channel,
            descriptor_stream_id=section.descriptor_stream_id,
            qos_channel=section.qos_channel,
            qos_stream_id=section.qos_stream_id,
            metadata_channel=section.metadata_channel,
            metadata_stream_id=section.metadata_stream_id,
            allowed_base_dirs=self._place.allowed_base_dirs,
            admin_socket=str(self._admin_socket),
            announce_period_ms=policies.announce_period_ms,
            lease_keepalive_interval_ms=policies.lease_keepalive_interval_ms,
        )

    def start(self, *, listen_first: bool = False) -> None:
        """Take the namespace, begin the duty cycle, serve the admin socket. Nothing is left where any of it fails.

        `listen_first` waits one announce period for another driver on the same endpoints (decision E97): needed where the media driver is
        shared with others.
        """
        with ExitStack() as opened:
            lock = DriverLock(self._place.paths, self._settings.shm.permissions_mode.directory_mode)
            lock.acquire(self._place.process_id)
            opened.callback(lock.release, remove=True)
            link = AeronDriverLink(self._transport, self._settings.driver, self._clock)
            opened.callback(link.close)
            if listen_first and link.another_driver_answers(self._settings.policies.announce_period_ms * 1_000_000):
                raise RegionError(
                    f"another SHM driver answers on {self._settings.driver.control_channel}",
                    hint="use that one, stop it, or give this one other channels or stream ids",
                )
            provisioner = self._provisioner(link.wake)
            provisioner.start(collect=self._settings.policies.epoch_gc_enabled and self._settings.policies.epoch_gc_on_startup)
            agent = DriverAgent(self._settings, self._place, link, provisioner, self._clock, self._random.randbytes(32))
            opened.callback(Event().wait, LINGER_S)
            idle_ns = min(LONGEST_IDLE_NS, self._settings.policies.announce_period_ms * 1_000_000 // 20)
            runner = AgentRunner(agent, idle_ns=idle_ns, rest=link.wait, clock=self._clock, told=(TransportError,))
            opened.callback(runner.close)
            opened.callback(link.wake)
            policies, permissions = self._settings.policies, self._settings.shm.permissions_mode
            admin = AdminServer(self._admin_socket, agent.submit, permissions=permissions, token=policies.shutdown_token, clock=self._clock)
            runner.start()
            opened.callback(admin.close)
            admin.start()
            self._agent, self._runner = agent, runner
            self._open = opened.pop_all()

    def _provisioner(self, wake: Callable[[], None]) -> Provisioner:
        policies = self._settings.policies
        return Provisioner(
            epoch_storage(self._settings, self._place, self._region_factory, self._clock),
            epoch_ledger(self._place, self._state_directory, self._clock),
            epoch_collector(self._settings, self._place, self._clock),
            ThreadPoolExecutor(max_workers=1, thread_name_prefix="tensor-pool-files"),
            self._clock,
            RetentionPolicy(policies.epoch_gc_enabled, policies.epoch_gc_keep, policies.epoch_gc_min_age_ns),
            wake,
        )

    def close(self, reason: ShutdownReason | None = None, words: str = "") -> None:
        """Tell clients, remove what was made, let the namespace go. An administrator's reason stands unless another is given."""
        if self._agent is not None and reason is not None:
            self._agent.stop(reason, words)
        self._open.close()
        self._has_ended.set()

    def __enter__(self) -> DriverStack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
