"""Writes everything that is made of `schemas/*.xml`. With `--check` it writes nothing and names the files that are out of date.

Python goes through the formatter of the project, so that what is generated is held to the same style and lints as what is not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from codegen.emit_python import emit_module
from codegen.emit_rust import emit_layout
from codegen.parse import SchemaError, parse_schema

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ("control-900.xml", "driver-901.xml", "bridge-902.xml", "discovery-910.xml")


def generate(schemas_directory: Path) -> dict[str, str]:
    """What each generated file has to hold, by its path in the project."""
    schemas = [parse_schema(schemas_directory / name) for name in SCHEMAS]
    files = {f"src/tensor_pool/sbe/{schema.name}.py": formatted(emit_module(schema)) for schema in schemas}
    return {**files, "native/core/src/layout.rs": emit_layout(schemas)}


def formatted(source: str) -> str:
    formatter = Path(sys.executable).with_name("ruff")
    command = [str(formatter), "format", "--config", str(ROOT / "pyproject.toml"), "--stdin-filename", "generated.py", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own tool and text


def stale_files(files: dict[str, str], root: Path) -> list[str]:
    return [path for path, text in files.items() if not (root / path).is_file() or (root / path).read_text() != text]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to read and write")
    arguments = parser.parse_args()
    try:
        files = generate(arguments.root / "schemas")
    except SchemaError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    stale = stale_files(files, arguments.root)
    for path in stale:
        if arguments.check:
            sys.stderr.write(f"{path} is not what the schemas say\n\nhint: run `make gen` and commit the result\n")
        else:
            (arguments.root / path).write_text(files[path])
            sys.stdout.write(f"wrote {path}\n")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
