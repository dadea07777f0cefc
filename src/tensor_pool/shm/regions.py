"""What the owner of regions needs of one, and of whoever makes them. The real thing is native; tests bring their own."""

from __future__ import annotations

from typing import Protocol


class OwnedRegion(Protocol):
    """A mapped file that this process made."""

    @property
    def path(self) -> str: ...

    @property
    def length(self) -> int: ...

    def write(self, offset: int, data: bytes) -> None: ...

    def store_u64(self, offset: int, value: int) -> None: ...

    def prefault(self) -> None: ...

    def lock(self) -> None: ...

    def close(self) -> None: ...


class RegionFactory(Protocol):
    """Makes new files below a base directory. Never reuses one (`RegionError`)."""

    def create(self, base_dir: str, relative_path: str, length: int, *, mode: int, reserve: bool, hugepages: bool) -> OwnedRegion:
        """With `reserve` the space is taken now (`StorageSpaceError`), else only that of the first page."""
