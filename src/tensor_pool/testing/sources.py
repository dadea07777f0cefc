"""Which tree a test run was about."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

SOURCES: Final = ("schemas", "src", "tests", "tools")
"""What decides the outcome of a test. The native module lies in `src` when it is built, so `native` need not be here."""


def sources_digest(root: Path) -> str:
    """A digest over every file below the directories of `SOURCES` that exist: another one after any change of name or content."""
    digest = hashlib.sha256()
    for path in sorted(path for directory in SOURCES for path in (root / directory).rglob("*") if path.is_file()):
        if "__pycache__" not in path.parts:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()
