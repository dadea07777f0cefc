"""Region URIs (wire 15.22): `shm:file?path=<absolute path>[|require_hugepages=true]`.

A URI names a file; it does not make it safe to open. Whoever opens it checks the path against the allowed base directories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensor_pool.errors import ProtocolError

_PREFIX: Final = "shm:file?"
_LONGEST_ECHO: Final = 120  # an announce may carry a gigabyte of text; an error message does not

_FORM = "W-15.22-1"
_UNKNOWN_PARAMETER = "W-15.22-7"
_UNKNOWN_SCHEME = "W-15.22-8"


@dataclass(frozen=True, slots=True)
class RegionUri:
    """Where a region's file is, and whether it has to lie on hugepages."""

    path: str
    require_hugepages: bool = False

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise _refused("its path must be absolute", self.path, _FORM)
        if not all(_may_stand_in_path(character) for character in self.path):
            raise _refused("its path may hold only printable ASCII other than space, '?' and '|'", self.path, _FORM)

    @classmethod
    def parse(cls, text: str) -> RegionUri:
        """Read a URI that a peer announced, parameters in any order. Whatever is not exactly of this form is a `ProtocolError`."""
        if not text.startswith(_PREFIX):
            raise _refused(f"only {_PREFIX!r} is supported", text, _UNKNOWN_SCHEME)
        values: dict[str, str] = {}
        for parameter in text.removeprefix(_PREFIX).split("|"):
            name, equals, value = parameter.partition("=")
            if not equals or name not in ("path", "require_hugepages"):
                raise _refused(f"unknown parameter {_shortened(parameter)}", text, _UNKNOWN_PARAMETER)
            if name in values:
                raise _refused(f"{name} is given twice", text, _FORM)
            values[name] = value
        if "path" not in values:
            raise _refused("it has no path", text, _FORM)
        require_hugepages = values.get("require_hugepages", "false")
        if require_hugepages not in ("true", "false"):
            raise _refused(f"require_hugepages is true or false, not {_shortened(require_hugepages)}", text, _FORM)
        return cls(values["path"], require_hugepages == "true")

    def __str__(self) -> str:
        return f"{_PREFIX}path={self.path}{'|require_hugepages=true' if self.require_hugepages else ''}"


def _may_stand_in_path(character: str) -> bool:
    return "!" <= character <= "~" and character not in "?|"


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]!r}…"


def _refused(reason: str, text: str, rule: str) -> ProtocolError:
    return ProtocolError(f"region URI {_shortened(text)} is refused: {reason}", name="region_uri", field="region_uri", rule=rule)
