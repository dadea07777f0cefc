"""Clock and randomness of a driver are those that it is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tensor_pool.config import load
from tensor_pool.driver import DriverSettings, DriverStack
from tensor_pool.driver.config import DriverSection
from tensor_pool.driver.link import AeronDriverLink
from tensor_pool.sbe.driver import Role
from tensor_pool.testing.driver_process import attach_request
from tensor_pool.transport import TransportClient

HOUR_NS = 3600 * 1_000_000_000


class HastyClock:
    """An hour goes by whenever somebody looks."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        self.now_ns += HOUR_NS
        return self.now_ns

    def realtime_ns(self) -> int:
        return self.monotonic_ns()


def test_whoever_listens_for_another_driver_listens_by_the_clock_it_was_given(world: Any) -> None:
    with TransportClient(world.aeron_dir) as transport:
        link = AeronDriverLink(transport, DriverSection(), HastyClock())
        # by any other clock this takes the hour that it says
        assert not link.another_driver_answers(HOUR_NS)
        link.close()


def first_lease_id(world: Any, directory: Path, seed: int) -> int:
    settings = load(DriverSettings, world.configuration, {}).settings
    settings = replace(settings, shm=replace(settings.shm, base_dir=str(world.isolated.shm_base_dir)))
    with (
        TransportClient(world.aeron_dir) as transport,
        DriverStack(
            settings, transport, admin_socket=directory / "admin.sock", state_directory=directory / "state", random=Random(seed)
        ) as stack,
    ):
        stack.start()
        response = world.endpoint.attach(attach_request(10, 5, Role.CONSUMER))
        assert response.lease_id is not None
        return int(response.lease_id)


def test_lease_ids_come_from_the_randomness_that_was_given(world: Any, isolated: Any) -> None:
    ids = [first_lease_id(world, isolated.runtime_dir, seed) for seed in (7, 7, 8)]
    assert ids[0] == ids[1] != ids[2]
