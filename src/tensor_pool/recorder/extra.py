"""The packages that only recordings need: `import tensor_pool` works without them, and using a recording says which one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensor_pool.errors import RecordingError


@contextmanager
def record_extra() -> Iterator[None]:
    """Around the imports of modules that need the extra `record`."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise RecordingError(f"recordings need the package {error.name}", hint="pip install 'shm-tensor-pool[record]'") from error
