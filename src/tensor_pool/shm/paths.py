"""Where regions live: `<base>/tensorpool-<user>/<namespace>/<stream id>/<epoch>/` (wire 15.21a.3), and nowhere else."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from typing import Final

HEADER_FILE: Final = "header.ring"
LOCK_FILE: Final = "driver.lock"
USER_PREFIX: Final = "tensorpool-"
_POOL_FILE = re.compile(r"([0-9]{1,5})\.pool")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class NamespacePaths:
    """The directory tree of one driver. `base_dir` is canonical already: announced paths must be (decision E40)."""

    base_dir: str
    user: str
    namespace: str

    def __post_init__(self) -> None:
        for name in (self.user, self.namespace):
            if not is_safe_component(name):
                raise ValueError(f"{name!r} cannot be the name of a directory here")

    @property
    def components(self) -> tuple[str, str]:
        """The directories below the base that belong to this driver."""
        return (f"{USER_PREFIX}{self.user}", self.namespace)

    @property
    def root(self) -> str:
        return os.path.join(self.base_dir, *self.components)

    def epoch_components(self, stream_id: int, epoch: int) -> tuple[str, ...]:
        return (*self.components, str(stream_id), str(epoch))


def pool_file(pool_id: int) -> str:
    return f"{pool_id}.pool"


def is_region_file(name: str) -> bool:
    """Whether a file of this name in an epoch directory is one that a driver makes."""
    return name == HEADER_FILE or _POOL_FILE.fullmatch(name) is not None


def directory_number(name: str) -> int | None:
    """The stream id or epoch that a directory's name says, None for any other name."""
    return int(name) if _NUMBER.fullmatch(name) else None


def is_safe_component(name: str) -> bool:
    """Whether `name` is one plain directory name: it can neither climb out of its parent nor break a region URI."""
    return _COMPONENT.fullmatch(name) is not None


def effective_user() -> str:
    """The name of the user this process acts as, from the user database and never from the environment (decision E39)."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
    return sanitize_component(name) or str(uid)


def sanitize_component(text: str) -> str:
    """`text` as a safe directory name; empty where nothing safe is left of it."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", text).lstrip(".-")[:64]
    return safe if is_safe_component(safe) else ""
