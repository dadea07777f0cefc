"""Regions of the native core, for whoever owns them."""

from __future__ import annotations

from tensor_pool._native import Region
from tensor_pool.shm.regions import OwnedRegion


class NativeRegionFactory:
    """A `RegionFactory` over `_native.Region.create`."""

    def create(self, base_dir: str, relative_path: str, length: int, *, mode: int, reserve: bool, hugepages: bool) -> OwnedRegion:
        return Region.create(base_dir, relative_path, length, mode=mode, reserve=reserve, hugepages=hugepages)
