"""A whole stack inside a test's own process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from tensor_pool.session import Session, embedded
from tensor_pool.stack import StackSettings
from tensor_pool.testing.directories import IsolatedDirectories


@contextmanager
def embedded_stack(directories: IsolatedDirectories, *, settings: StackSettings | None = None, expose: bool = False) -> Iterator[Session]:
    """A session with its own media driver and SHM driver, whose regions lie in `directories`."""
    chosen = settings or StackSettings()
    chosen = replace(chosen, shm=replace(chosen.shm, base_dir=str(directories.shm_base_dir)))
    with _environment(directories.environment()), embedded(expose=expose, settings=chosen) as session:
        yield session


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in changes:
            os.environ.pop(name)
        os.environ.update({name: value for name, value in before.items() if name in changes})
