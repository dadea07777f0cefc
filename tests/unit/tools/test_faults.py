"""The runner of the fault experiments: its verdicts, its file, its exit code, and the judges that need no processes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faults
import pytest
from faultlib import f02_memory_model, report
from faultlib.experiment import Context, Outcome, percentile
from faultlib.f14_codec_fuzz import damaged
from faultlib.stacks import toml

from tensor_pool.config import load
from tensor_pool.stack import StackSettings


@dataclass
class Pretended:
    """An experiment that does as it is told."""

    name: str
    outcome: Callable[[], Outcome]
    what: str = "pretended"

    def run(self, context: Context) -> Outcome:
        context.progress(0.5, "half")
        return self.outcome()


def raises() -> Outcome:
    raise RuntimeError("it broke")


GOOD = Pretended("F1", lambda: Outcome({"frames": 3}))
FAILED = Pretended("F2", lambda: Outcome({}, ["two bad frames"]))
VOID = Pretended("F3", lambda: Outcome({}, void=["nothing happened"]))
BROKEN = Pretended("F4", raises)


def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *experiments: Pretended, arguments: tuple[str, ...] = (), written: str = "faults.json"
) -> tuple[int, dict[str, dict[str, object]]]:
    monkeypatch.setattr(faults, "EXPERIMENTS", experiments)
    monkeypatch.setattr(faults, "ROOT", tmp_path)
    output = tmp_path / "build" / "faults.json"
    code = faults.main([*arguments, "--output", str(output)])
    return code, json.loads(output.with_name(written).read_text())


def test_a_good_experiment_ends_with_0_and_its_row_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, rows = run(monkeypatch, tmp_path, GOOD, arguments=("--seed", "7"))
    assert code == 0
    row = rows["F1"]
    assert (row["passed"], row["void"], row["figures"], row["seed"], row["scale"]) == (True, False, {"frames": 3}, 7, 1.0)
    assert str(row["command"]).startswith("tools/faults.py --seed 7")
    assert "cores" in str(row["machine"])


@pytest.mark.parametrize(("bad", "void"), [(FAILED, False), (VOID, True), (BROKEN, False)])
def test_a_failed_void_or_broken_experiment_ends_with_1_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: Pretended, void: bool
) -> None:
    code, rows = run(monkeypatch, tmp_path, bad, GOOD)
    assert code == 1
    assert (rows[bad.name]["passed"], rows[bad.name]["void"]) == (False, void)
    assert rows["F1"]["passed"] is True


def test_the_traceback_of_a_broken_experiment_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, rows = run(monkeypatch, tmp_path, BROKEN)
    assert rows["F4"]["problems"] == ["RuntimeError: it broke"]
    assert "it broke" in (tmp_path / "build" / "evidence" / "F4.traceback").read_text()


@pytest.mark.parametrize("arguments", [("--only", "f3, F1"), ("--scale", "0.5")])
def test_a_part_of_a_run_does_not_pass_for_the_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    _, whole = run(monkeypatch, tmp_path, GOOD, FAILED, VOID)
    assert list(whole) == ["F1", "F2", "F3"]
    _, rows = run(monkeypatch, tmp_path, GOOD, FAILED, VOID, arguments=arguments, written="faults-part.json")
    assert list(rows) == (["F3", "F1"] if "--only" in arguments else list(whole))
    assert json.loads((tmp_path / "build" / "faults.json").read_text()) == whole


@pytest.mark.parametrize("arguments", [["--only", "F99"], ["--scale", "0"]])
def test_a_wrong_argument_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        faults.main(arguments)
    assert ended.value.code == 2


def test_json_goes_to_standard_output_and_the_table_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, tmp_path, GOOD, arguments=("--json",))
    assert json.loads(capsys.readouterr().out)["F1"]["passed"] is True


def test_the_table_names_verdict_figures_and_reasons() -> None:
    rows = {
        experiment.name: report.row(experiment.outcome(), what="w", command="c", elapsed_s=1.0, scale=1.0, seed=1)
        for experiment in (GOOD, FAILED, VOID)
    }
    shown = report.table(rows)
    for words in ("F1   passed", "frames 3", "F2   FAILED", "problem: two bad frames", "F3   VOID", "void: nothing happened"):
        assert words in shown


def test_no_experiment_is_left_out() -> None:
    promised = ["F1", "F2", "F4", "F7", "F8", "F9", "F10", "F12", "F14", "F16", "F23"]
    assert [experiment.name for experiment in faults.EXPERIMENTS] == promised


def variants(**torn: int) -> str:
    return "".join(f"variant {name} executions 10 accepted 5 torn {count}\n" for name, count in torn.items())


@pytest.mark.parametrize(
    ("output", "returncode", "passed", "void"),
    [
        (variants(BothFences=0, NoWriterFence=1, NoReaderFence=1, NoFences=1), 0, True, False),
        (variants(BothFences=1, NoWriterFence=1, NoReaderFence=1, NoFences=1), 101, False, False),
        (variants(BothFences=0, NoWriterFence=0, NoReaderFence=1, NoFences=1), 101, False, True),
        (variants(BothFences=0, NoWriterFence=1), 101, False, True),
        (variants(BothFences=0, NoWriterFence=1, NoReaderFence=1, NoFences=1), 101, False, False),
        ("", 101, False, True),
    ],
)
def test_the_model_is_void_when_a_control_was_not_caught(output: str, returncode: int, passed: bool, void: bool) -> None:
    outcome = f02_memory_model.judge(output, returncode)
    assert (outcome.passed, bool(outcome.void)) == (passed, void)


def test_damage_is_repeatable_and_keeps_what_it_should() -> None:
    seeds = [bytes(range(40)), bytes(range(100, 164))]
    first = list(damaged(seeds, random.Random(1), 500, keep=slice(2, 6)))
    assert first == list(damaged(seeds, random.Random(1), 500, keep=slice(2, 6)))
    assert {data[2:6] for data in first} == {seed[2:6] for seed in seeds}
    assert min(len(data) for data in first) >= 8
    assert sum(data not in seeds for data in first) > 250


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([], 99), percentile([7.0], 50)) == (51.0, 100.0, 0.0, 7.0)


def test_the_settings_of_an_experiment_are_settings_of_a_stack(tmp_path: Path) -> None:
    path = tmp_path / "stack.toml"
    path.write_text(
        toml({"shm": {"base_dir": str(tmp_path)}, "policies": {"announce_period_ms": 100}, "media_driver": {"driver_timeout_ms": 1000}})
    )
    settings = load(StackSettings, path, {}).settings
    assert (settings.shm.base_dir, settings.policies.announce_period_ms, settings.media_driver.driver_timeout_ms) == (
        str(tmp_path),
        100,
        1000,
    )
