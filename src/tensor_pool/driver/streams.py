"""The streams a driver manages: those of its configuration, and those that were asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tensor_pool.driver.config import DriverSettings
from tensor_pool.driver.state import StreamEffect, StreamEvent, StreamState, next_stream_state
from tensor_pool.sbe.driver import ShmAttachRequest
from tensor_pool.shm.epoch_files import EpochFiles, StreamSizes


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """What a stream is, apart from its files. A static one is as its configuration says."""

    stream_id: int
    sizes: StreamSizes
    name: str = ""
    tags: tuple[str, ...] = ()
    is_static: bool = False


@dataclass(slots=True)
class Stream:
    """A stream now: its state, the epoch that is current, and who waits for the next."""

    definition: StreamDefinition
    state: StreamState = StreamState.DEFINED
    files: EpochFiles | None = None
    candidate: ShmAttachRequest | None = None
    """The producer for whom files are being made."""
    waiting: deque[ShmAttachRequest] = field(default_factory=deque)
    """Requests that came while files are being made."""

    @property
    def stream_id(self) -> int:
        return self.definition.stream_id

    def advance(self, event: StreamEvent) -> tuple[StreamEffect, ...]:
        """Take one row of the stream table. The caller performs the effects."""
        self.state, effects = next_stream_state(self.state, event)
        return effects


class StreamTable:
    """Every stream by id."""

    def __init__(self, settings: DriverSettings) -> None:
        self._first_id, self._last_id = settings.driver.stream_id_range
        self._streams: dict[int, Stream] = {}
        for name, section in settings.streams.items():
            sizes = settings.profiles[section.profile].sizes
            self.define(StreamDefinition(section.stream_id, sizes, name, section.tags, is_static=True))

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def get(self, stream_id: int) -> Stream | None:
        return self._streams.get(stream_id)

    def define(self, definition: StreamDefinition) -> Stream:
        """Add a stream that does not exist yet."""
        assert definition.stream_id not in self._streams
        stream = self._streams[definition.stream_id] = Stream(definition)
        return stream

    def unused_id(self) -> int | None:
        """The lowest free id of the range for dynamic streams; None where all are taken."""
        return next((number for number in range(self._first_id, self._last_id + 1) if number not in self._streams), None)
