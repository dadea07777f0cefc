"""Camera frames and tensors between processes, through shared memory, with every lost frame accounted for.

    import tensor_pool as tp

    with tp.connect() as session:
        producer = session.producer(10_000, shape=(512, 640), dtype="uint16", name="camera-1")

The names are imported when they are first used, so that what needs few of them starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensor_pool.client.admin import StreamInfo
    from tensor_pool.client.consumer import Consumer
    from tensor_pool.client.producer import Producer
    from tensor_pool.consumer.frame import BorrowedFrame, Frame
    from tensor_pool.consumer.stats import ConsumerStats
    from tensor_pool.errors import (
        AttachError,
        AttachRejectedError,
        AttachTimeoutError,
        BackPressuredError,
        ClosedError,
        ConfigError,
        FrameOverwrittenError,
        FrameTooLargeError,
        LeaseLostError,
        MediaDriverTimeoutError,
        PathNotAllowedError,
        ProtocolError,
        RecordingError,
        RegionError,
        StorageSpaceError,
        SuperblockMismatchError,
        TensorPoolError,
        TransportError,
        UnsupportedError,
    )
    from tensor_pool.producer.stats import ProducerStats
    from tensor_pool.recorder import RecordedFrame, RecorderSettings, RecorderStats, Recording, RecordingSession
    from tensor_pool.session import Session, connect, embedded
    from tensor_pool.stack import Stack, StackSettings

__version__ = "0.1.0"

__all__ = [
    "AttachError",
    "AttachRejectedError",
    "AttachTimeoutError",
    "BackPressuredError",
    "BorrowedFrame",
    "ClosedError",
    "ConfigError",
    "Consumer",
    "ConsumerStats",
    "Frame",
    "FrameOverwrittenError",
    "FrameTooLargeError",
    "LeaseLostError",
    "MediaDriverTimeoutError",
    "PathNotAllowedError",
    "Producer",
    "ProducerStats",
    "ProtocolError",
    "RecordedFrame",
    "RecorderSettings",
    "RecorderStats",
    "Recording",
    "RecordingError",
    "RecordingSession",
    "RegionError",
    "Session",
    "Stack",
    "StackSettings",
    "StorageSpaceError",
    "StreamInfo",
    "SuperblockMismatchError",
    "TensorPoolError",
    "TransportError",
    "UnsupportedError",
    "connect",
    "embedded",
]

_ROOMS = {
    "tensor_pool.client.admin": ("StreamInfo",),
    "tensor_pool.client.consumer": ("Consumer",),
    "tensor_pool.client.producer": ("Producer",),
    "tensor_pool.consumer.frame": ("BorrowedFrame", "Frame"),
    "tensor_pool.consumer.stats": ("ConsumerStats",),
    "tensor_pool.producer.stats": ("ProducerStats",),
    "tensor_pool.recorder": ("RecordedFrame", "RecorderSettings", "RecorderStats", "Recording", "RecordingSession"),
    "tensor_pool.session": ("Session", "connect", "embedded"),
    "tensor_pool.stack": ("Stack", "StackSettings"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tensor_pool' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ROOM_OF.get(name, "tensor_pool.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
