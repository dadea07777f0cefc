"""`stack.json`: where a running stack is, for those who want to join it."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from tensor_pool import environment
from tensor_pool.errors import ConfigError
from tensor_pool.runtime.directory import LONGEST_SOCKET_PATH_BYTES, STACK_FILE, RuntimeDirectory

FORMAT: Final = 1
_MAXIMUM_FILE_BYTES: Final = 65_536
_MAXIMUM_TEXT_CHARACTERS: Final = 4_096
_MAXIMUM_DIRECTORIES: Final = 64
# Aeron's ids are signed; the wire leaves 0 and less without a meaning
_MAXIMUM_ID: Final = 2**31 - 1
_MAXIMUM_PERIOD_MS: Final = 3_600_000
_START: Final = "start one: tensor-pool up"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDescription:
    """Everything a client needs to join a stack."""

    format: int = FORMAT
    pid: int
    instance_id: str
    aeron_dir: str
    control_channel: str
    control_stream_id: int
    announce_channel: str
    announce_stream_id: int
    descriptor_channel: str
    descriptor_stream_id: int
    qos_channel: str
    qos_stream_id: int
    metadata_channel: str
    metadata_stream_id: int
    allowed_base_dirs: tuple[str, ...]
    admin_socket: str
    announce_period_ms: int
    lease_keepalive_interval_ms: int

    def write(self, path: str | os.PathLike[str]) -> None:
        """Replace `path` in one step: whoever reads it sees the old file or the whole new one."""
        target = Path(path)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["allowed_base_dirs"] = list(self.allowed_base_dirs)
        _validated(values, str(target))
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError as error:
            raise ConfigError(
                f"cannot write {target}: {error.strerror}", source=str(target), hint="is the directory there, and is there space?"
            ) from error
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> StackDescription:
        """Read and check every field. `FileNotFoundError` where there is none, `ConfigError` where it is not one."""
        source = os.fspath(path)
        values = _validated(_parsed(_file_content(source), source), source)
        values["allowed_base_dirs"] = tuple(values["allowed_base_dirs"])
        return cls(**values)


def find_stack(
    argument: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None = None,
    *,
    is_alive: Callable[[int], bool] | None = None,
    directory: RuntimeDirectory | None = None,
) -> StackDescription:
    """The stack that is named by the argument, else by TENSOR_POOL_STACK, else the one that this user runs.

    A name is a `stack.json` or the directory that holds it. `ConfigError` where nothing runs there.
    """
    environ = os.environ if environ is None else environ
    named, source = (
        (argument, "argument") if argument is not None else (environ.get(environment.STACK) or None, f"environment {environment.STACK}")
    )
    if named is not None:
        path = Path(named) / STACK_FILE if os.path.isdir(named) else Path(named)
    else:
        directory = directory or RuntimeDirectory.locate(environ)
        path, source = directory.stack_file, directory.source
        try:
            directory.check()
        except FileNotFoundError:
            raise _not_running(f"there is no {path}", path, source) from None
    try:
        description = StackDescription.read(path)
    except FileNotFoundError:
        raise _not_running(f"there is no {path}", path, source) from None
    if not (is_alive or process_is_alive)(description.pid):
        raise _not_running(f"process {description.pid}, which wrote {path}, is gone", path, source)
    return description


def process_is_alive(pid: int) -> bool:
    """Whether there is a process of this number, of whatever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _not_running(why: str, path: Path, source: str) -> ConfigError:
    return ConfigError(f"no stack is running: {why}", source=source, key="stack", value=str(path), hint=_START)


def _file_content(source: str) -> bytes:
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(source) from error
    except (OSError, ValueError) as error:
        raise _broken(source, "", f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _broken(source, "", "is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(_MAXIMUM_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > _MAXIMUM_FILE_BYTES:
        raise _broken(source, "", f"is larger than {_MAXIMUM_FILE_BYTES} bytes")
    return data


def _parsed(data: bytes, source: str) -> dict[str, Any]:
    try:
        values = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise _broken(source, "", f"is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise _broken(source, "", "is not a JSON object")
    return values


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a field is there twice")
    return values


def _validated(values: dict[str, Any], source: str) -> dict[str, Any]:
    """The same values, or a `ConfigError` that names the first field that is wrong."""
    if values.get("format") != FORMAT or type(values["format"]) is not int:
        raise _broken(source, "format", f"is {values.get('format')!r}, this version reads {FORMAT}", values.get("format"))
    for name in values:
        if name not in _CHECKS:
            raise _broken(source, name, "is not a field of this format", values[name])
    for name, check in _CHECKS.items():
        if name not in values:
            raise _broken(source, name, "is missing")
        complaint = check(values[name])
        if complaint:
            raise _broken(source, name, complaint, values[name])
    return values


def _broken(source: str, field: str, complaint: str, value: object = None) -> ConfigError:
    what = f"field {field[:100]!r} " if field else ""
    return ConfigError(
        f"{source}: {what}{complaint}",
        source=source,
        key=field,
        value=value,
        hint="this file is written by `tensor-pool up`; stop that and start it again",
    )


def _whole(minimum: int, maximum: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        is_fine = type(value) is int and minimum <= value <= maximum
        return "" if is_fine else f"is not a whole number from {minimum} to {maximum}"

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > _MAXIMUM_TEXT_CHARACTERS:
        return f"is not a text of 1 to {_MAXIMUM_TEXT_CHARACTERS} characters"
    return "" if value.isprintable() else "holds characters that cannot be printed"


def _channel(value: Any) -> str:
    return _text(value) or ("" if value.startswith("aeron:") else "is not an Aeron channel")


def _absolute(value: Any) -> str:
    return _text(value) or ("" if os.path.isabs(value) else "is not an absolute path")


def _directories(value: Any) -> str:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAXIMUM_DIRECTORIES:
        return f"is not a list of 1 to {_MAXIMUM_DIRECTORIES} directories"
    return next(filter(None, map(_absolute, value)), "")


def _socket(value: Any) -> str:
    is_short = not isinstance(value, str) or len(value.encode("utf-8", "replace")) <= LONGEST_SOCKET_PATH_BYTES
    return _absolute(value) or ("" if is_short else f"is longer than the {LONGEST_SOCKET_PATH_BYTES} bytes of a socket's path")


_CHECKS: Final[Mapping[str, Callable[[Any], str]]] = {
    "format": _whole(FORMAT, FORMAT),
    "pid": _whole(1, _MAXIMUM_ID),
    "instance_id": _text,
    "aeron_dir": _absolute,
    **{
        f"{stream}_{part}": check
        for stream in ("control", "announce", "descriptor", "qos", "metadata")
        for part, check in (("channel", _channel), ("stream_id", _whole(1, _MAXIMUM_ID)))
    },
    "allowed_base_dirs": _directories,
    "admin_socket": _socket,
    "announce_period_ms": _whole(1, _MAXIMUM_PERIOD_MS),
    "lease_keepalive_interval_ms": _whole(1, _MAXIMUM_PERIOD_MS),
}
