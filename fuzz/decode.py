"""Coverage-guided fuzzing of one decoder: `python fuzz/decode.py --target control.ShmPoolAnnounce [--seconds 60] [--runs 1000]`.

The corpus starts with the known answers of that message. Whatever the bytes are, a decoder gives a message or raises `ProtocolError` with a
rule; a message it gives is written and read again as the same one. What breaks this is kept as `<target>-crash-*` in the directory of
`--evidence`; give that file with `--replay` to see it again.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["tensor_pool.sbe", "tensor_pool.uri"]):
    from tensor_pool.sbe import bridge, codec, control, discovery, driver
    from tensor_pool.uri import RegionUri

from tensor_pool.errors import ProtocolError  # noqa: E402 - after the import that has to come first
from tests.vectors.known_answers import decode_with, decoders, encode, load_known_answers  # noqa: E402

MODULES = {"control": control, "driver": driver, "bridge": bridge, "discovery": discovery}
TARGETS = {**decoders(), **{f"{name}.decode": module for name, module in MODULES.items()}, "codec.peek": codec, "uri.RegionUri": RegionUri}
"""Every message class, the decoder of each schema, the one of the bare header, and the one of the URIs that messages carry."""
_LONGEST_INPUT_BYTES = 4096


def check(name: str, data: bytes) -> None:
    target = TARGETS[name]
    try:
        message = _decode(target, data)
    except ProtocolError as refusal:
        if not (refusal.name and refusal.rule):
            raise RuntimeError("a refusal that names neither message nor rule") from refusal
        return
    if name == "codec.peek":
        assert message == struct.unpack_from("<HHHH", data)
        return
    if isinstance(message, RegionUri):
        assert RegionUri.parse(str(message)) == message
        return
    again = encode(message)
    assert decode_with(type(message), again) == message, message


def _decode(target: Any, data: bytes) -> Any:
    if target is codec:
        return codec.peek(data)
    if target is RegionUri:
        return RegionUri.parse(data.decode("utf-8", "surrogateescape"))
    return target.decode(data) if target in MODULES.values() else decode_with(target, data)


def seeds(name: str) -> list[bytes]:
    """The answers of this message; for the decoder of a schema those of all its messages."""
    target = TARGETS[name]
    answers = load_known_answers()
    if target is codec:
        return [answer.data for answer in answers]
    if target is RegionUri:
        return [b"shm:file?path=/dev/shm/a/1.pool", b"shm:file?path=/x|require_hugepages=true", b"shm:file?require_hugepages=false|path=/x"]
    return [answer.data for answer in answers if answer.message_class is target or answer.schema == getattr(target, "SCHEMA_ID", None)]


def fuzz(name: str, *, runs: int, seconds: int, seed: int, evidence: Path) -> bool:
    """Whether nothing broke. libFuzzer ends its process, so each target gets one; forking spares the imports."""
    evidence.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tensor-pool-fuzz-") as corpus:
        for number, data in enumerate(seeds(name)):
            Path(corpus, f"seed-{number}").write_bytes(data)
        options = [
            f"-runs={runs}",
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            f"-max_len={_LONGEST_INPUT_BYTES}",
            f"-artifact_prefix={evidence}/{name}-",
            "-timeout=10",
            "-rss_limit_mb=1024",
            "-print_final_stats=1",
            corpus,
        ]
        child = os.fork()
        if child == 0:
            atheris.Setup([sys.argv[0], *options], lambda data: check(name, data))
            atheris.Fuzz()
        return os.waitpid(child, 0)[1] == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="may be given several times; all of them when left out")
    parser.add_argument("--runs", type=int, default=-1, help="inputs a target; -1 for as many as fit the time")
    parser.add_argument("--seconds", type=int, default=60, help="longest time a target")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations; the same seed gives the same inputs")
    parser.add_argument("--evidence", type=Path, default=ROOT / "build/fuzz", help="where crashing inputs are kept")
    parser.add_argument("--replay", type=Path, help="check this one input instead of fuzzing")
    arguments = parser.parse_args()
    failed = []
    for name in arguments.target or TARGETS:
        if arguments.replay is not None:
            check(name, arguments.replay.read_bytes())
            continue
        if not fuzz(name, runs=arguments.runs, seconds=arguments.seconds, seed=arguments.seed, evidence=arguments.evidence):
            failed.append(name)
        sys.stdout.write(f"{name}: {'FAILED' if name in failed else 'ok'}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
