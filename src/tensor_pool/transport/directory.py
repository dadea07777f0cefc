"""Which directories a media driver may be given: Aeron empties its directory when it starts, and removes it when it ends."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tensor_pool.errors import ConfigError

COMMAND_FILE: Final = "cnc.dat"
LOSS_REPORT: Final = "loss-report.dat"
LOG_DIRECTORIES: Final = ("publications", "images")
LOG_SUFFIX: Final = ".logbuffer"
_VERSION_BYTES: Final = 4
_HINT: Final = "name a directory that does not exist yet, an empty one, or that of a media driver that has ended"


def media_driver_directory(directory: str | os.PathLike[str]) -> str:
    """The absolute path of a directory that a media driver may have: a missing or empty one, or one that only a media driver wrote to.

    `ConfigError` names anything else that is there, since it would be gone afterwards. What a killed driver left, complete or not, is fine,
    and so is the directory of a live one: Aeron itself refuses that.
    """
    # what is looked at here is what Aeron gets: "link/" would be the directory behind the link
    path = os.path.abspath(directory)
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            raise _refused(path, f"is a link to {os.readlink(path)}")
        if not stat.S_ISDIR(status.st_mode):
            raise _refused(path, "is no directory")
        found = sorted(_foreign(Path(path)))
    except FileNotFoundError:
        return path
    except OSError as error:
        raise _refused(path, f"cannot be looked at: {error.strerror}") from error
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise _refused(path, f"holds {found[0]}{more}, which a media driver did not write and would remove")
    return path


def _foreign(directory: Path) -> Iterator[str]:
    """The names of what no media driver makes."""
    for entry in list(os.scandir(directory)):
        if entry.name == COMMAND_FILE and entry.is_file(follow_symlinks=False):
            is_ours = _is_command_file(entry.path)
        elif entry.name in LOG_DIRECTORIES and entry.is_dir(follow_symlinks=False):
            yield from (f"{entry.name}/{log.name}" for log in list(os.scandir(entry.path)) if not _is_log(log))
            is_ours = True
        else:
            is_ours = entry.name == LOSS_REPORT and entry.is_file(follow_symlinks=False)
        if not is_ours:
            yield entry.name


def _is_log(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(LOG_SUFFIX) and entry.is_file(follow_symlinks=False)


def _is_command_file(path: str) -> bool:
    """By its version, whose upper half is 0. All of it is 0, or the file is empty, where a driver was killed while it made the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        version = os.read(descriptor, _VERSION_BYTES)
    finally:
        os.close(descriptor)
    return not version or (len(version) == _VERSION_BYTES and int.from_bytes(version, "little") >> 16 == 0)


def _refused(path: str, why: str) -> ConfigError:
    return ConfigError(f"the directory of a media driver, {path}, {why}", key="aeron_dir", value=path, hint=_HINT)
