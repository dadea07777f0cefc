"""The exceptions of tensor_pool.

    TensorPoolError
    ├── ConfigError(ValueError)            file, key, value, what is allowed
    ├── ProtocolError                      a peer broke the rules: message, field, rule id
    ├── AttachError                        code, the driver's words, correlation id
    │   ├── AttachRejectedError
    │   ├── AttachTimeoutError(TimeoutError)
    │   └── UnsupportedError
    ├── LeaseLostError                     revoked, expired, or driver shutdown
    ├── FrameTooLargeError(ValueError)     need, largest stride
    ├── RegionError(OSError)
    │   ├── PathNotAllowedError
    │   ├── SuperblockMismatchError
    │   └── StorageSpaceError              need, have
    ├── RecordingError                     file, row
    ├── TransportError
    │   ├── MediaDriverTimeoutError(TimeoutError)
    │   └── BackPressuredError
    ├── FrameOverwrittenError              a borrowed view changed
    └── ClosedError                        used after close

Lost frames are counters, not exceptions. Whatever is raised is something the caller can act on: it names the file, key, field or rule, and
carries a hint where there is a next step.
"""

from __future__ import annotations


class TensorPoolError(Exception):
    """Base of everything tensor_pool raises. `hint` is the next step for a person, or empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class ConfigError(TensorPoolError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""

    def __init__(self, message: str, *, source: str = "", key: str = "", value: object = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.source = source
        self.key = key
        self.value = value


class ProtocolError(TensorPoolError):
    """A peer sent bytes that break the protocol. `rule` is the id in conformance/requirements.toml."""

    def __init__(self, message: str, *, name: str = "", field: str = "", rule: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.field = field
        self.rule = rule


class AttachError(TensorPoolError):
    """The driver did not let us in. `code` is the wire's response code, None where there was no answer."""

    def __init__(self, message: str, *, code: int | None = None, correlation_id: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.correlation_id = correlation_id


class AttachRejectedError(AttachError):
    """Refused by policy or state: another producer, another layout version, no such stream."""


class AttachTimeoutError(AttachError, TimeoutError):
    """No driver answered in time."""


class UnsupportedError(AttachError):
    """The driver, or this package, does not implement what was asked for."""


class LeaseLostError(TensorPoolError):
    """The lease was revoked, expired, or went with its driver. `reason` is one of these three."""

    def __init__(self, message: str, *, reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class FrameTooLargeError(TensorPoolError, ValueError):
    """No pool of the stream has a stride that fits. Nothing was written."""

    def __init__(self, message: str, *, need_bytes: int = 0, largest_stride_bytes: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.need_bytes = need_bytes
        self.largest_stride_bytes = largest_stride_bytes


class RegionError(TensorPoolError, OSError):
    """A shared-memory file could not be made, opened or trusted."""

    def __init__(self, message: str, *, path: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class PathNotAllowedError(RegionError):
    """The path is outside the allowed directories, passes a link, or is not a regular file."""


class SuperblockMismatchError(RegionError):
    """The first 64 bytes of the file are not what was announced."""


class StorageSpaceError(RegionError):
    """The file system has less room than the region needs."""

    def __init__(self, message: str, *, path: str = "", need_bytes: int = 0, have_bytes: int = 0, hint: str = "") -> None:
        super().__init__(message, path=path, hint=hint)
        self.need_bytes = need_bytes
        self.have_bytes = have_bytes


class RecordingError(TensorPoolError):
    """A recording is damaged, incomplete or of a newer format. Names the file and, where there is one, the row."""

    def __init__(self, message: str, *, path: str = "", row: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.row = row


class TransportError(TensorPoolError):
    """Aeron reported an error. `code` is Aeron's own (negative) or the operating system's."""

    def __init__(self, message: str, *, code: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class MediaDriverTimeoutError(TransportError, TimeoutError):
    """The media driver is gone, or did not answer in time."""


class BackPressuredError(TransportError):
    """A control message could not be sent within its deadline because a subscriber is behind."""


class FrameOverwrittenError(TensorPoolError):
    """The producer came round to a slot that was lent out: the pixels of the view are not one frame."""

    def __init__(self, message: str, *, seq: int = -1, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.seq = seq


class ClosedError(TensorPoolError):
    """The object was closed, or belongs to the parent of this forked process."""
