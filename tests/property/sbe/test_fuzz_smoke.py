"""A short run of the fuzz targets, and the proof that they would notice. Longer ones: `python fuzz/decode.py --seconds 600`."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vectors.known_answers import decoders

ROOT = Path(__file__).resolve().parents[3]
RUNS = 10000

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="atheris has wheels for x86-64 only")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_no_decoder_breaks_on_mutated_messages(tmp_path: Path) -> None:
    result = run("fuzz/decode.py", "--runs", str(RUNS), "--seconds", "5", "--evidence", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert list(tmp_path.iterdir()) == []
    names = [line.split(":")[0] for line in result.stdout.splitlines()]
    assert set(decoders()) < set(names)
    assert {"control.decode", "driver.decode", "bridge.decode", "discovery.decode", "codec.peek", "uri.RegionUri"} < set(names)
    executed = [int(count) for count in re.findall(r"stat::number_of_executed_units: (\d+)", result.stderr)]
    assert len(executed) == len(names)
    assert min(executed) > 100
    # a target whose module is not instrumented sees no more than the harness itself
    covered = [int(count) for count in re.findall(r"^#\d+\s+DONE\s+cov: (\d+)", result.stderr, re.MULTILINE)]
    assert len(covered) == len(names)
    assert min(covered) >= 2


BROKEN = """
import sys
import fuzz.decode as harness
from pathlib import Path

class Broken:
    SCHEMA_ID = 900

    @staticmethod
    def decode(data):
        {body}

harness.TARGETS["broken"] = Broken
sys.exit(0 if harness.fuzz("broken", runs=3000, seconds=20, seed=1, evidence=Path(sys.argv[1])) else 1)
"""


@pytest.mark.parametrize(
    "body",
    [
        "return data[20]",
        "raise harness.ProtocolError('no rule', name='x')",
        "return harness.bridge.BridgeFrameChunk(0, 0, 0, 99999, 0, 0, 0, 0, 0, b'', b'')",
    ],
    ids=["IndexError", "refusal_without_rule", "message_that_cannot_be_written"],
)
def test_a_broken_decoder_is_found_and_its_input_kept(tmp_path: Path, body: str) -> None:
    result = run("-c", BROKEN.format(body=body), str(tmp_path))
    assert result.returncode == 1, result.stderr[-2000:]
    assert [path.name.split("-")[:2] for path in tmp_path.iterdir()] == [["broken", "crash"]]
