"""How a recorder writes."""

from __future__ import annotations

from tensor_pool.config import section, setting


@section("recorder")
class RecorderSettings:
    """The defaults hold more than a second of a 512x640 uint16 camera at 500 Hz while the disk is away."""

    segment_bytes: int = setting(1 << 30, help="A segment of this size is sealed and the next one begun.", unit="bytes", minimum=1)
    segment_seconds: float = setting(
        60.0, help="A segment this old is sealed, so that readers need not walk through it.", unit="s", minimum=0.001
    )
    chunk_bytes: int = setting(
        64 << 10, help="Frames that are small together share a chunk when they are there at the same time.", unit="bytes", minimum=1
    )
    queue_frames: int = setting(4096, help="Frames that wait for the disk at most; the next one is dropped and counted.", minimum=1)
    queue_bytes: int = setting(512 << 20, help="Bytes that wait for the disk at most.", unit="bytes", minimum=1)
    fsync_on_seal: bool = setting(
        False, help="Wait for the disk when a segment is sealed: it then outlives a power cut, and a slow disk costs frames."
    )
