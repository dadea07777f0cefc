"""Recordings: frames on disk in a form that people, tools and Spark read without us."""

from tensor_pool.recorder.config import RecorderSettings
from tensor_pool.recorder.recording import RecordedFrame, RecordedStream, Recording, Verified
from tensor_pool.recorder.rows import GapRow
from tensor_pool.recorder.session import FrameSource, RecorderStats, RecordingSession

__all__ = [
    "FrameSource",
    "GapRow",
    "RecordedFrame",
    "RecordedStream",
    "RecorderSettings",
    "RecorderStats",
    "Recording",
    "RecordingSession",
    "Verified",
]
