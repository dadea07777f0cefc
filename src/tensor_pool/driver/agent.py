"""The driver's duty cycle: requests in, answers out, time watched. Nothing in it blocks or waits for a file."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

from tensor_pool.clock import Clock
from tensor_pool.driver.announces import Announcer
from tensor_pool.driver.config import DriverSettings
from tensor_pool.driver.counters import DriverCounters
from tensor_pool.driver.handlers import DriverHandlers
from tensor_pool.driver.leases import LeaseIds, LeaseTable
from tensor_pool.driver.lifecycle import DriverRooms, StreamLifecycle
from tensor_pool.driver.link import DriverLink
from tensor_pool.driver.operations import AdminRequest, DriverOperations
from tensor_pool.driver.outbox import Outbox
from tensor_pool.driver.provisioning import Provisioner
from tensor_pool.driver.state import LeaseEvent
from tensor_pool.driver.storage import DriverPlace
from tensor_pool.driver.streams import StreamTable
from tensor_pool.errors import ClosedError, TensorPoolError
from tensor_pool.runtime import PeriodicTimer
from tensor_pool.sbe.driver import ShmDriverShutdown, ShutdownReason

MESSAGES_PER_CYCLE: Final = 512
COLLECTIONS_EVERY_PERIODS: Final = 10
# a flood that never lets the inbox run empty is longer than what the inbox can hold; whatever is older was handled or dropped
MESSAGES_BEHIND_A_MARK: Final = 32_768


class DriverAgent:
    """One SHM driver, as an agent: `do_work` is one pass of its duty cycle, `close` says goodbye and removes its files."""

    name = "shm-driver"

    def __init__(
        self, settings: DriverSettings, place: DriverPlace, link: DriverLink, provisioner: Provisioner, clock: Clock, random_bytes: bytes
    ) -> None:
        """`random_bytes` (32 of them) key the lease ids."""
        policies = settings.policies
        self._settings = settings
        self._link = link
        self._clock = clock
        self._provisioner = provisioner
        self.counters = DriverCounters()
        streams = StreamTable(settings)
        self._leases = LeaseTable(LeaseIds(random_bytes), duration_ns=policies.lease_duration_ns)
        self._announcer = Announcer(
            link.send_announce,
            streams,
            self._leases,
            clock,
            self.counters,
            period_ns=policies.announce_period_ms * 1_000_000,
            clock_domain=settings.driver.announce_clock_domain.domain,
        )
        self._outbox = Outbox(link.send_control, self.counters)
        rooms = DriverRooms(streams, self._leases, provisioner, self._announcer, self._outbox, self.counters)
        self._lifecycle = StreamLifecycle(rooms)
        self._handlers = DriverHandlers(settings, rooms, self._lifecycle, offers_hugepages=place.is_hugetlbfs)
        self._operations = DriverOperations(settings, place, rooms, self._lifecycle, stop=self.stop, inbox_counters=link.counters)
        self._submitted: deque[AdminRequest] = deque()
        self._goodbye: tuple[ShutdownReason, str] = (ShutdownReason.NORMAL, "")
        now_ns = clock.monotonic_ns()
        self._collection = PeriodicTimer(COLLECTIONS_EVERY_PERIODS * policies.announce_period_ms * 1_000_000, now_ns)
        self._last_cycle_ns = now_ns
        self._mark_ns = now_ns
        self._handled_since_mark = 0
        self.stop_requested = threading.Event()
        """Set when somebody with the right to it asked this driver to end, and when it has ended."""
        self._is_closed = False

    # --- called from other threads -------------------------------------------------------------------------------------

    def submit(self, request: AdminRequest) -> Future[dict[str, Any]]:
        """Hand in an administrative request; the duty cycle answers it."""
        if self._is_closed:
            raise ClosedError("this driver has stopped")
        self._submitted.append(request)
        self._link.wake()
        return request.answer

    def stop(self, reason: ShutdownReason = ShutdownReason.NORMAL, words: str = "") -> None:
        """Ask for the end; `reason` and `words` are what clients will read."""
        self._goodbye = (reason, words)
        self.stop_requested.set()

    # --- the duty cycle ------------------------------------------------------------------------------------------------

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        self._credit_stall(now_ns)
        work = self._handle_messages(now_ns)
        work += self._lifecycle.do_work(now_ns)
        work += self._handle_requests(now_ns)
        work += self._announcer.do_work(now_ns)
        work += self._outbox.do_work(now_ns)
        if self._settings.policies.epoch_gc_enabled and self._collection.due(now_ns):
            self._provisioner.collect()
        self._last_cycle_ns = self._clock.monotonic_ns()
        self.counters.longest_cycle_ns = max(self.counters.longest_cycle_ns, self._last_cycle_ns - now_ns)
        return work

    def _credit_stall(self, now_ns: int) -> None:
        """Keepalives that came while this process was stopped may be lost: nobody's lease runs out over that (decision E59)."""
        away_ns = now_ns - self._last_cycle_ns
        if away_ns > self._settings.policies.lease_keepalive_interval_ms * 1_000_000 // 2:
            self._leases.credit_stall(away_ns)
            self.counters.stalls_credited += 1

    def _handle_messages(self, now_ns: int) -> int:
        messages = self._link.drain(MESSAGES_PER_CYCLE)
        for message in messages:
            self._handlers.on_message(message, now_ns)
        self._handled_since_mark += len(messages)
        if len(messages) < MESSAGES_PER_CYCLE:
            self._expire(now_ns, now_ns)
        elif self._handled_since_mark >= MESSAGES_BEHIND_A_MARK:
            self._expire(self._mark_ns, now_ns)
        else:
            return len(messages)
        self._mark_ns, self._handled_since_mark = now_ns, 0
        return len(messages)

    def _expire(self, drained_ns: int, now_ns: int) -> None:
        """End what ran out before the moment up to which every message is known to have been handled."""
        for lease_id in self._leases.overdue(drained_ns):
            intervals = self._settings.policies.lease_expiry_grace_intervals
            self._lifecycle.end_lease(lease_id, LeaseEvent.TIMEOUT, f"no keepalive for {intervals} intervals", now_ns)

    def _handle_requests(self, now_ns: int) -> int:
        done = 0
        for _ in range(len(self._submitted)):
            request = self._submitted.popleft()
            if not request.begin():
                continue
            try:
                answer = self._operations.perform(request, now_ns)
            except TensorPoolError as error:
                request.answer.set_exception(error)
            else:
                if answer is None:
                    self._submitted.append(request)
                    continue
                request.answer.set_result(answer)
            done += 1
        return done

    # --- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye (driver 4.12), let requests fail, unmap and remove every file. Called after the last pass."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._say_goodbye()
        finally:
            while self._submitted:
                request = self._submitted.popleft()
                if request.begin():
                    request.answer.set_exception(ClosedError("this driver has stopped"))
            self._provisioner.close()
            self.stop_requested.set()

    def _say_goodbye(self) -> None:
        now_ns = self._clock.monotonic_ns()
        reason, words = self._goodbye
        self._outbox.send(ShmDriverShutdown(timestamp_ns=now_ns, reason=reason, error_message=words).encode(), now_ns)
        deadline_ns = now_ns + self._settings.policies.shutdown_timeout_ms * 1_000_000
        while len(self._outbox) and self._clock.monotonic_ns() < deadline_ns:
            self._link.wait(1_000_000)
            self._outbox.do_work(self._clock.monotonic_ns())
