"""The SHM driver: who may use which stream, in which epoch, from which files (driver specification v1.0).

A stack composes one object, with a transport client of its own that outlives it:

    driver = DriverStack(
        DriverSettings(driver=DriverSection(...), shm=ShmSection(...), policies=PolicySection(...), profiles={...}, streams={...}),
        transport,                          # TransportClient, borrowed
        admin_socket=runtime_directory.admin_socket,
        state_directory=Path(...),          # epochs are remembered here; outside shared memory
    )
    driver.start(listen_first=is_external_media_driver)
    driver.describe(aeron_dir).write(runtime_directory.stack_file)
    driver.stop_requested.wait()            # an administrator's shutdown, or the end of the duty cycle (then driver.error)
    driver.close()                          # shutdown notice, files removed, lock released

Inside: `agent` is the duty cycle, `handlers` what arrives, `lifecycle` what becomes of streams, `state` the tables, `provisioning` the
slow work.
"""

from tensor_pool.driver.config import (
    AnnounceClock,
    DriverSection,
    DriverSettings,
    PolicySection,
    PoolSection,
    ProfileSection,
    ShmSection,
    StreamSection,
)
from tensor_pool.driver.counters import DriverCounters
from tensor_pool.driver.stack import DriverStack

__all__ = [
    "AnnounceClock",
    "DriverCounters",
    "DriverSection",
    "DriverSettings",
    "DriverStack",
    "PolicySection",
    "PoolSection",
    "ProfileSection",
    "ShmSection",
    "StreamSection",
]
