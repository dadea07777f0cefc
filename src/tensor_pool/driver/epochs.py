"""Which epoch comes next. Epochs of a stream only ever rise: over restarts, reboots and wiped files (decision E58)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tensor_pool.errors import RegionError

HIGHEST_EPOCH: Final = (1 << 63) - 1
"""Far below the wire's null; a directory that claims more was not made by a driver."""
_FORMAT: Final = 1


class EpochLedger:
    """The highest epoch ever given to each stream, kept in a file outside shared memory and written before an epoch is used.

    The first epoch of a stream in a driver's life is above all of: the file, the directories found on disk, CLOCK_REALTIME in milliseconds.
    Each later one is the one before plus one. Reads and writes files: not for a duty cycle.
    """

    def __init__(self, path: Path, realtime_ns: Callable[[], int]) -> None:
        self._path = path
        self._realtime_ns = realtime_ns
        self._highest: dict[int, int] = {}
        self._begun: set[int] = set()

    def load(self, on_disk: Mapping[int, Sequence[int]]) -> None:
        """Read the file, and raise what it says to what the directories say. A file that is not ours or damaged is a `RegionError`."""
        self._highest = self._read()
        changed = False
        for stream_id, epochs in on_disk.items():
            highest = max((epoch for epoch in epochs if epoch < HIGHEST_EPOCH), default=0)
            if highest > self._highest.get(stream_id, 0):
                self._highest[stream_id] = highest
                changed = True
        if changed:
            self._write(self._highest)

    def next(self, stream_id: int) -> int:
        """The stream's next epoch, saved already."""
        previous = self._highest.get(stream_id, 0)
        if stream_id not in self._begun:
            previous = max(previous, self._realtime_ns() // 1_000_000)
        epoch = previous + 1
        if epoch > HIGHEST_EPOCH:
            raise RegionError(f"stream {stream_id} has used up its epochs", path=str(self._path))
        highest = {**self._highest, stream_id: epoch}
        self._write(highest)
        self._highest = highest
        self._begun.add(stream_id)
        return epoch

    def _read(self) -> dict[int, int]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise self._refused(str(error)) from error
        try:
            document: Any = json.loads(text)
            if document["format"] != _FORMAT:
                raise self._refused(f"it has format {document['format']!r}, known is {_FORMAT}")
            return {int(stream_id): _checked(epoch) for stream_id, epoch in document["epochs"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._refused(f"it is damaged ({error})") from error

    def _refused(self, reason: str) -> RegionError:
        return RegionError(
            f"the file of epochs {self._path} cannot be used: {reason}",
            path=str(self._path),
            hint="remove it where no recording depends on its streams: epochs then go on from the clock and the directories",
        )

    def _write(self, highest: Mapping[int, int]) -> None:
        document = {"format": _FORMAT, "epochs": {str(stream_id): epoch for stream_id, epoch in sorted(highest.items())}}
        temporary = self._path.with_name(self._path.name + ".new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
            self._sync_directory()
        except OSError as error:
            raise RegionError(f"cannot write the file of epochs {self._path}: {error.strerror}", path=str(self._path)) from error

    def _sync_directory(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _checked(epoch: Any) -> int:
    if type(epoch) is not int or not 0 <= epoch <= HIGHEST_EPOCH:
        raise ValueError(f"{epoch!r} is no epoch")
    return epoch
