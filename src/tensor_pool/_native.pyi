"""The native core: shared memory, Aeron, the per-frame path, and the pump.

Rust holds what races or loops per frame and nothing that decides. Every handle belongs to the process that made it: in a child made by
`fork` each method raises `tensor_pool.errors.ClosedError`, and dropping it there does nothing. All handles may be used from several
threads; the calls that wait or copy release the GIL. Errors are the classes of `tensor_pool.errors`.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, final

import numpy as np
from typing_extensions import Buffer

from tensor_pool.sbe.control import Dtype

aeron_version: Final[str]
"""Version of the Aeron client and media driver inside, e.g. `aeron 1.54.0`."""
build_profile: Final[str]
"""`release` or `debug`."""

# --- shared memory -------------------------------------------------------------------------------------------------

@final
class Region:
    """One mapped shared-memory file. `bytes` go in and out by copy; nothing here trusts their content."""

    @staticmethod
    def create(
        base_dir: str, relative_path: str, length: int, *, mode: int = 0o660, reserve: bool = True, hugepages: bool = False
    ) -> Region:
        """Make a new file below `base_dir` (whose directories exist) and map it for writing.

        Never follows a link, never leaves `base_dir`, never reuses an existing file (`RegionError`). With `reserve` the space is taken now
        (`posix_fallocate`), so that a full file system is a `StorageSpaceError` here and not a signal later; the half-made file is removed
        again. On hugetlbfs the length is rounded up to whole pages.
        """

    @staticmethod
    def open(
        path: str, allowed_base_dirs: Sequence[str], *, writable: bool, minimum_length: int, require_hugepages: bool = False
    ) -> Region:
        """Map an existing file, after every check of wire 15.21a.5 and 15.22.

        `allowed_base_dirs` are canonical already (see `canonical_base_dirs`). Raises `PathNotAllowedError` for anything outside them,
        behind a link, or not a regular file; nothing blocks, nothing but a regular file is opened for writing. A file shorter than
        `minimum_length` is a `RegionError`.
        """

    @property
    def path(self) -> str: ...
    @property
    def length(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode) of the open file."""

    def read(self, offset: int, length: int) -> bytes:
        """A copy of `length` bytes. Out of bounds is a `ValueError`."""

    def write(self, offset: int, data: Buffer) -> None: ...
    def load_u64(self, offset: int) -> int:
        """Acquire load of an aligned word."""

    def store_u64(self, offset: int, value: int) -> None:
        """Release store of an aligned word (the activity timestamp)."""

    def reserve(self) -> None:
        """Take the file's space now; `StorageSpaceError` with need and have when there is not enough."""

    def prefault(self) -> None:
        """Touch every page so that the first lap of the ring does not pay for page faults."""

    def lock(self) -> None:
        """mlock; `RegionError` that names the limit when refused."""

    def close(self) -> None:
        """Give up this handle. The memory stays mapped while a view, claim, reader or writer uses it."""

def canonical_base_dirs(paths: Iterable[str]) -> list[str]:
    """Resolve base directories once, at start-up (wire 15.21a.5 step 3). A missing one is a `RegionError`."""

def newest_committed_seq(header: Region, nslots: int) -> int | None:
    """The highest sequence that is committed in the ring now, None for a ring nobody wrote."""

# --- the way of a frame --------------------------------------------------------------------------------------------

@final
class RingWriter:
    """The producer's end of a ring: slots in shared memory, then the descriptor, then the wake-up of whoever waits."""

    def __init__(
        self,
        header: Region,
        pools: Sequence[tuple[int, int, Region]],
        *,
        nslots: int,
        stream_id: int,
        epoch: int,
        publication: Publication | None,
        waiters: Waiters | None = None,
    ) -> None:
        """`pools` are (pool_id, stride_bytes, region), all mapped for writing. Without a publication frames are written and no descriptor
        is sent.
        """

    @property
    def next_seq(self) -> int: ...
    @property
    def largest_stride_bytes(self) -> int: ...
    def set_waiters(self, expected: bool) -> None:
        """Whether anyone may wait on a slot; without waiters the wake-up (0.4 us) is left out. True at first. `Waiters` know more."""

    def publish(
        self,
        payload: Buffer | np.ndarray[Any, Any],
        dtype: int,
        major_order: int,
        shape: Sequence[int],
        *,
        timestamp_ns: int,
        meta_version: int,
        trace_id: int,
        publish_timestamp: bool,
    ) -> int:
        """Copy a contiguous buffer into the next slot, commit it, send its descriptor. Returns the frame's seq.

        The header carries zero strides (contiguous). `FrameTooLargeError` when no pool fits, before anything is written. A refused
        descriptor is counted, never waited for and never raised.
        """

    def declare(self, dtype: np.dtype[Any], code: int, shape: Sequence[int], *, publish_timestamp: bool) -> None:
        """What every frame is, once: `publish_declared` and `Claim.commit_declared` then need not be told."""

    def publish_declared(self, array: object, timestamp_ns: int | None = None, trace_id: int = 0) -> int | None:
        """`publish` of exactly what was declared, row-major and contiguous; the time is now where none is given.

        None for any other object: nothing was written, and the caller finds the words."""

    def claim(self, nbytes: int) -> Claim:
        """Open the next slot for filling in place. One claim at a time; `publish` and `claim` raise while one is open."""

    def counters(self) -> dict[str, int]:
        """`frames_published`, `frames_aborted`, `frames_dropped_too_large`, `descriptors_sent`, `descriptors_back_pressured`,
        `descriptors_not_connected`, `descriptors_closed`, `wakes_sent`."""

    def close(self) -> None:
        """Further calls raise `ClosedError`. An open claim is aborted."""

@final
class Claim:
    """A slot being filled: a writable buffer of exactly the claimed length (64-byte aligned). The memory outlives the claim.

    Once the claim is committed or aborted its buffer is read-only; what was exported before is not taken back.
    """

    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def seq(self) -> int: ...
    def check_here(self) -> None:
        """Raise in a child made by `fork`, and cost nothing elsewhere."""

    def commit(
        self,
        dtype: int,
        major_order: int,
        shape: Sequence[int],
        *,
        timestamp_ns: int,
        meta_version: int,
        trace_id: int,
        publish_timestamp: bool,
    ) -> int: ...
    def commit_declared(self, timestamp_ns: int | None = None, trace_id: int = 0) -> int:
        """`commit` of what was declared. `ValueError` where the claim has another size."""

    def abort(self) -> None:
        """Give the seq back; the slot stays in progress and readers skip it. A second abort, or one after commit, does nothing."""

@final
class FrameReader:
    """The consumer's end: descriptors of one stream in, validated frames out, every sequence accounted for.

    Identity, per mapped epoch: `delivered + skipped + gap + late + invalid == last_seq - first_seq + 1`.
    """

    def __init__(self, subscription: Subscription | None, *, stream_id: int) -> None:
        """Without a subscription frames come from `inject` alone (tests, other transports)."""

    def map(
        self,
        header: Region,
        pools: Sequence[tuple[int, int, Region]],
        *,
        nslots: int,
        epoch: int,
        first_seq: int | None,
        max_outstanding_gap: int,
        resume: bool = False,
    ) -> int:
        """Read from these regions from now on, with fresh counters. Returns the first seq that counts.

        `first_seq=None` means "after what the ring holds now" (a consumer that joins); 0 is for a consumer that was there before the epoch
        began. With `resume` the counts of the last mapping, which was of the same epoch (else `ValueError`), go on instead: what was
        announced and not read, and what came meanwhile, will be a gap.
        """

    def unmap(self) -> dict[str, int]:
        """Let the regions go, and give the mapping's last `counters()`, which stay until the next `map`; descriptors are dropped
        (`unmapped`) until then.
        """

    @property
    def epoch(self) -> int | None: ...
    def read(self, timeout_ns: int | None, *, newest: bool = False, spin: bool = False) -> Frame | None:
        """The next (or newest) frame as an owned copy. 0 polls, None waits for ever; None comes back on time-out. Ctrl-C interrupts."""

    def read_into(self, out: Buffer, timeout_ns: int | None, *, newest: bool = False, spin: bool = False) -> Frame | None:
        """Copy into the caller's writable contiguous buffer (at least as long as the frame, else `ValueError`, and the frame stays next).
        `buffer` is the whole of it, as bytes.
        """

    def borrow(self, timeout_ns: int | None, *, newest: bool = False, spin: bool = False) -> BorrowedFrame | None:
        """Lend the slot. `buffer` is a `View`."""

    def inject(self, epoch: int, seq: int, timestamp_ns: int | None = None, trace_id: int = 0) -> None:
        """Handle a descriptor as if it had been received."""

    def poll(self) -> int:
        """Take descriptors from the subscription into the queue (the newest `nslots` stay). Returns how many came."""

    def fileno(self) -> int:
        """An eventfd that is readable while frames may be waiting: a read that finds none clears it. From the first call on the pump
        polls for this reader.
        """

    def set_sleeping_counter(self, counter: Counter | None) -> None:
        """A counter (of `sleeping_counter`) that says from now on how many reads of this reader sleep."""

    def wake(self) -> None:
        """Make the fileno readable: whoever waits on it shall look."""
    def needs_remap(self) -> bool:
        """A seq went back within the epoch (wire 15.2): map again. Cleared by `map`."""

    def counters(self) -> dict[str, int]:
        """`delivered`, `skipped`, `gap`, `late`, `invalid`, `first_seq`, `last_seq` (first_seq - 1 before the first), `newest_committed`
        (what the ring holds, or held at the end, same convention), `epoch` of the mapping, or of the last one; and over the reader's life
        `wrong_epoch`, `unmapped`, `not_committed` (part of late), `malformed`, `descriptors_received`."""

    def close(self) -> None:
        """Ends waiting reads with `ClosedError`."""

class ReadFrame:
    """One accepted frame: where its bytes are and what its header says."""

    @property
    def stream_id(self) -> int: ...
    @property
    def seq(self) -> int:
        """The producer's sequence number; the first of an epoch is 0."""

    @property
    def epoch(self) -> int:
        """The life of the producer that published this frame."""

    @property
    def key(self) -> tuple[int, int, int]:
        """(stream id, epoch, seq): names this frame of this host for good."""

    @property
    def timestamp_ns(self) -> int:
        """When the payload was captured, on the producer's CLOCK_MONOTONIC unless the user gave another time."""

    @property
    def publish_timestamp_ns(self) -> int | None:
        """When the descriptor was sent, where the producer says so."""

    @property
    def meta_version(self) -> int: ...
    @property
    def trace_id(self) -> int:
        """0 when the frame is not traced."""

    @property
    def dtype(self) -> Dtype:
        """Element type as on the wire; `array.dtype` is numpy's."""

    @property
    def major_order(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...] | None:
        """Bytes between neighbours of each dimension, None where the payload is contiguous."""

    @property
    def nbytes(self) -> int: ...
    @property
    def buffer(self) -> Buffer:
        """Who keeps the bytes alive: a `FrameBuffer`, a `View`, or what they were read into."""

    @property
    def payload(self) -> memoryview:
        """The bytes as they lie in memory, read-only."""

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The payload as numpy, without a copy. BYTES and BIT frames have no numpy type: use `payload`."""

class Frame(ReadFrame):
    """A validated copy of one frame. It is yours: keep it, change it, pickle it, give it to torch. It is a value, with nothing to close:
    its memory is used again when the last reference to it or its array is gone.
    """

    def __init__(self, fields: tuple[Any, ...], stream_id: int) -> None:
        """From plain values, the `FrameFields` of `tensor_pool.consumer.frame`."""

    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...

@final
class BorrowedFrame(ReadFrame):
    """The slot itself, read-only, for the length of a `with` block. Leaving the block checks the slot a last time."""

    def still_valid(self) -> bool:
        """Whether the slot still holds this frame. A yes is about the past: only the check on leaving the block counts."""

    def close(self) -> None:
        """What leaving the block does: `FrameOverwrittenError` when the slot was reused. The loss counts once, however often one asks. In a
        child made by `fork`: nothing.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

@final
class FrameBuffer:
    """Memory of an owned frame: 64-byte aligned, writable, from a recycled pool; goes back when the last array over it is gone."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

@final
class View:
    """A lent slot, read-only. Keeps its mapping alive for as long as an array uses it."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def still_valid(self) -> bool:
        """Whether the slot still holds this frame."""

    def release(self) -> bool:
        """The last check. When the slot was reused the frame moves from `delivered` to `late` and False comes back. Only the first call
        counts.
        """

# --- Aeron ---------------------------------------------------------------------------------------------------------

@final
class MediaDriver:
    """Aeron's C media driver, inside this process. `settings` are the names of `tensor_pool.transport.config.MediaDriverSettings`."""

    def __init__(self, directory: str, settings: Mapping[str, int | str | bool]) -> None:
        """Starts the driver on a directory that no live driver uses. Raises `TransportError` (code 16 when one is active)."""

    @property
    def directory(self) -> str: ...
    def take_errors(self) -> list[tuple[int, str]]: ...
    def close(self) -> None:
        """Stop it and remove its directory."""

def media_driver_is_active(directory: str, timeout_ms: int) -> bool: ...
def media_driver_pid(directory: str) -> int | None:
    """Process id in the directory's cnc file, None where there is none."""

@final
class AeronClient:
    """One Aeron client with its conductor thread. Errors are kept until `take_errors`; the process never exits over them."""

    def __init__(self, directory: str, *, driver_timeout_ms: int = 10_000, idle_sleep: str = "4ms", name: str = "") -> None:
        """Raises `MediaDriverTimeoutError` when no driver answers within `driver_timeout_ms`."""

    @property
    def client_id(self) -> int: ...
    @property
    def is_closed(self) -> bool:
        """True after `close` and after the media driver was lost."""

    @property
    def directory(self) -> str: ...
    def add_exclusive_publication(self, channel: str, stream_id: int, *, timeout_ns: int = 10_000_000_000) -> Publication: ...
    def add_subscription(self, channel: str, stream_id: int, *, timeout_ns: int = 10_000_000_000) -> Subscription: ...
    def add_counter(self, type_id: int, key: bytes, label: str, *, timeout_ns: int = 10_000_000_000) -> Counter: ...
    def take_errors(self) -> list[tuple[int, str]]:
        """(code, text) of what Aeron's error handler heard, oldest first; at most the last 256, repeated ones folded."""

    def counters(self) -> list[tuple[int, int, int, str]]:
        """Every counter of the driver: (counter id, type id, value, label)."""

    def close(self) -> None:
        """Closes everything that was added, then the client. Does not hang when the driver is dead."""

BACK_PRESSURED: Final[int]
NOT_CONNECTED: Final[int]
ADMIN_ACTION: Final[int]
PUBLICATION_CLOSED: Final[int]
MAX_POSITION_EXCEEDED: Final[int]

@final
class Publication:
    """An exclusive publication."""

    @property
    def channel(self) -> str: ...
    @property
    def stream_id(self) -> int: ...
    @property
    def session_id(self) -> int: ...
    @property
    def max_message_length(self) -> int: ...
    @property
    def max_payload_length(self) -> int:
        """The most that `try_claim` takes."""

    @property
    def is_connected(self) -> bool: ...
    def offer(self, message: Buffer) -> int:
        """The new position, or one of the negative codes above (ADMIN_ACTION is retried inside). Longer than `max_message_length`:
        `ValueError`.
        """

    def try_claim(self, length: int) -> BufferClaim | int: ...
    def close(self) -> None: ...

@final
class BufferClaim:
    """A claimed part of the log: fill the buffer, then commit or abort (dropping aborts)."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...

@final
class Subscription:
    """A subscription with a fragment assembler."""

    @property
    def channel(self) -> str: ...
    @property
    def stream_id(self) -> int: ...
    def poll(self, limit: int = 64) -> list[tuple[bytes, int]]:
        """(message, session id), oldest first. Raises `MediaDriverTimeoutError` when the client was closed by Aeron."""

    def images(self) -> list[tuple[int, int]]:
        """(session id, CLOCK_MONOTONIC ns when the image became available)."""

    def take_unavailable(self) -> list[int]:
        """Session ids of images that went away since the last call."""

    @property
    def is_connected(self) -> bool: ...
    def close(self) -> None: ...

@final
class Counter:
    """An Aeron counter that this client owns."""

    @property
    def counter_id(self) -> int: ...
    def get(self) -> int: ...
    def set(self, value: int) -> None: ...
    def add(self, delta: int) -> int: ...
    def close(self) -> None: ...

def sleeping_counter(client: AeronClient, stream_id: int, consumer_id: int, *, timeout_ns: int = 10_000_000_000) -> Counter:
    """A counter by which the stream's producer sees whether this consumer sleeps. Goes with the client."""

@final
class Waiters:
    """A producer's look at the counters of its stream's consumers, for the price of a load each publish."""

    def __init__(self, client: AeronClient, stream_id: int) -> None:
        """Until the first `watch` somebody may always be asleep."""

    def watch(self, consumer_ids: Sequence[int]) -> bool:
        """Look for these consumers' counters. False when one has none, or they are more than 8: then every publish wakes."""

    def close(self) -> None: ...

# --- the pump ------------------------------------------------------------------------------------------------------

@final
class Pump:
    """The one native thread of a session: keeps every subscription drained, sends the keepalives it was told to send, signals an
    eventfd.
    """

    def __init__(self, *, interval_ns: int = 2_000_000) -> None: ...
    def add_inbox(self, subscription: Subscription, accept: Sequence[tuple[int, int]], *, capacity: int = 8192) -> Inbox:
        """Keep messages whose (schema id, template id) is listed; count the others. When full the oldest goes, and is counted."""

    def add_reader(self, reader: FrameReader) -> None:
        """Poll for a reader that has not polled for 20 ms (always, once it has a fileno)."""

    def remove_reader(self, reader: FrameReader) -> None: ...
    def add_keepalive(self, publication: Publication, message: Buffer, *, timestamp_offset: int, interval_ns: int) -> Keepalive:
        """Send `message` every `interval_ns`, with CLOCK_MONOTONIC written at `timestamp_offset`; a refused send is tried again each
        round.
        """

    def fileno(self) -> int:
        """An eventfd, readable while an inbox has messages."""

    def wait(self, timeout_ns: int) -> bool:
        """Wait (without the GIL) for the eventfd and clear it."""

    def wake(self) -> None:
        """Make `wait` return."""

    def close(self) -> None: ...

@final
class Inbox:
    """Messages that the pump kept."""

    def drain(self, limit: int = 1024) -> list[tuple[bytes, int]]:
        """(message, join time of its image in CLOCK_MONOTONIC ns), oldest first."""

    def accept(self, schema_id: int, template_id: int) -> None:
        """From now on messages of this kind are kept too."""

    def counters(self) -> dict[str, int]:
        """`messages_received`, `messages_refused` (not in `accept`, or too short), `messages_dropped` (inbox full)."""

    def close(self) -> None: ...

@final
class Keepalive:
    """A message that the pump sends again and again."""

    @property
    def last_sent_ns(self) -> int:
        """CLOCK_MONOTONIC of the last accepted send, 0 before the first."""

    @property
    def refused(self) -> int: ...
    def close(self) -> None: ...

# --- failpoints (tests) --------------------------------------------------------------------------------------------

def failpoint_arm(name: str, action: str, *, skip: int = 0, delay_ns: int = 0) -> None:
    """At the (`skip` + 1)th passing of `name`: `kill` (SIGKILL to itself), `pause` (SIGSTOP to itself), `error` or `delay`. Unknown names
    raise `ValueError`.
    """

def failpoint_disarm(name: str | None = None) -> None: ...
def failpoint_names() -> list[str]: ...
