"""The table of rules says covered only where a marked test passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import conformance
from tensor_pool.testing.sources import sources_digest

RULES = """
[wire]
"W-1-1" = { section = "1", level = "MUST", binds = "all", words = "One." }
"W-1-2" = { section = "1", level = "MAY", binds = "producer", words = "Two.", deviates = "E14" }
"W-1-3" = { section = "1", level = "MUST", binds = "all", words = "Three.", not_applicable = "No such platform." }
[driver]
"D-1-1" = { section = "1", level = "MUST", binds = "driver", words = "Four." }
[discovery]
"S-1-1" = { section = "1", level = "MUST", binds = "client", words = "Five." }
[bridge]
"B-1-1" = { section = "1", level = "MUST", binds = "bridge", words = "Six." }
[rate_limiter]
"R-1-1" = { section = "1", level = "MUST", binds = "rate limiter", words = "Seven." }
"""


def run(tmp_path: Path, tests: list[tuple[str, str, list[str]]], *arguments: str, rules: str = RULES, **changed: object) -> int:
    """`changed` are fields of the results file other than those of a good run."""
    (tmp_path / "rules.toml").write_text(rules)
    written = [{"nodeid": nodeid, "outcome": outcome, "requirements": marks} for nodeid, outcome, marks in tests]
    good = {"everything": True, "exit_status": 0, "sources": sources_digest(conformance.ROOT), "tests": written}
    (tmp_path / "results.json").write_text(json.dumps({**good, **changed}))
    paths = ["--rules", tmp_path / "rules.toml", "--results", tmp_path / "results.json", "--output", tmp_path / "build" / "out.json"]
    return conformance.main([*map(str, paths), *arguments])


def states(tmp_path: Path) -> dict[str, str]:
    return {row["rule"]: row["state"] for row in json.loads((tmp_path / "build" / "out.json").read_text())["rules"]}


def test_only_a_rule_with_a_passed_test_is_covered(tmp_path: Path) -> None:
    tests = [
        ("t::passed", "passed", ["W-1-1"]),
        ("t::skipped", "skipped", ["S-1-1"]),
        ("t::not_run", "not run", ["B-1-1"]),
    ]
    assert run(tmp_path, tests) == 0
    assert states(tmp_path) == {
        "W-1-1": "covered",
        "W-1-2": "deviates",
        "W-1-3": "not_applicable",
        "D-1-1": "open",
        "S-1-1": "open",
        "B-1-1": "open",
        "R-1-1": "open",
    }


def test_a_skipped_test_leaves_a_rule_covered_that_another_one_shows(tmp_path: Path) -> None:
    run(tmp_path, [("t::a", "passed", ["W-1-1"]), ("t::b", "skipped", ["W-1-1"])])
    assert states(tmp_path)["W-1-1"] == "covered"


def test_the_counts_of_each_specification_are_written(tmp_path: Path) -> None:
    run(tmp_path, [("t::a", "passed", ["W-1-1"])])
    written = json.loads((tmp_path / "build" / "out.json").read_text())
    assert written["wire"] == {"rows": 3, "covered": 1, "deviates": 1, "not_applicable": 1, "open": 0}
    assert written["driver"] == {"rows": 1, "covered": 0, "deviates": 0, "not_applicable": 0, "open": 1}
    first = written["rules"][0]
    assert (first["specification"], first["tests"], first["reason"]) == ("wire", ["t::a"], "")
    assert written["rules"][1]["reason"] == "decision E14"


def test_a_mark_with_an_unknown_rule_is_an_error_that_names_the_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, [("t::typo", "passed", ["W-9-9"])]) == 2
    assert "W-9-9: t::typo" in capsys.readouterr().err
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize("rule", ["W-1-2", "W-1-3", "R-1-1"])
def test_a_mark_upon_a_rule_that_is_said_not_to_be_shown_is_an_error_that_names_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    stated = RULES.replace('words = "Seven."', 'words = "Seven.", open = "Nothing limits rates yet."')
    assert run(tmp_path, [("t::shown", "passed", [rule])], rules=stated) == 2
    assert f"{rule}: t::shown" in capsys.readouterr().err
    assert not (tmp_path / "build").exists()


def test_the_catalogue_may_say_why_a_rule_is_open(tmp_path: Path) -> None:
    assert run(tmp_path, [], rules=RULES.replace('words = "Seven."', 'words = "Seven.", open = "Nothing limits rates yet."')) == 0
    row = json.loads((tmp_path / "build" / "out.json").read_text())["rules"][-1]
    assert (row["rule"], row["state"], row["reason"]) == ("R-1-1", "open", "Nothing limits rates yet.")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"everything": False}, "all tests"),
        ({"exit_status": None}, "did not end"),
        ({"exit_status": 1}, "failed"),
        ({"exit_status": 2}, "failed"),
        ({"sources": "0"}, "other sources"),
    ],
)
def test_a_run_that_shows_nothing_about_this_tree_is_refused_and_the_old_table_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, object], words: str
) -> None:
    tests = [("t::a", "passed", ["W-1-1"])]
    assert run(tmp_path, tests) == 0
    assert (tmp_path / "build" / "out.json").exists()
    assert run(tmp_path, tests, **changed) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "make unit" in said
    assert not (tmp_path / "build" / "out.json").exists()


def test_without_a_test_run_the_way_to_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main(["--results", str(tmp_path / "none.json"), "--output", str(tmp_path / "out.json")]) == 2
    assert "make conformance" in capsys.readouterr().err


def test_a_rule_in_two_states_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = RULES.replace('deviates = "E14"', 'deviates = "E14", open = "Not yet."')
    assert run(tmp_path, [], rules=twice) == 2
    assert "deviates and open" in capsys.readouterr().err


def test_a_rule_in_two_sections_is_an_error(tmp_path: Path) -> None:
    twice = RULES + '"W-1-1" = { section = "1", level = "MUST", binds = "all", words = "Again." }\n'
    assert run(tmp_path, [], "--quiet", rules=twice) == 2


def test_the_table_has_a_line_for_every_rule_and_the_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, [("t::a", "passed", ["W-1-1"])])
    shown = capsys.readouterr().out
    assert all(f"{rule} " in shown for rule in states(tmp_path))
    assert shown.splitlines()[-1].split() == ["all", "7", "1", "1", "1", "4"]


def test_the_catalogue_of_this_project_has_684_rules() -> None:
    rules = conformance.load_rules(conformance.ROOT / "conformance" / "requirements.toml")
    assert len(rules) == 684
    rows = conformance.summary(conformance.judge(rules, []))
    assert {name: count["rows"] for name, count in rows.items()} == {
        "wire": 305,
        "driver": 113,
        "discovery": 111,
        "bridge": 110,
        "rate_limiter": 45,
    }


def test_every_deviation_points_to_a_decision() -> None:
    decisions = (conformance.ROOT / "docs" / "decisions.md").read_text()
    for rule, fields in conformance.load_rules(conformance.ROOT / "conformance" / "requirements.toml").items():
        if "deviates" in fields:
            assert f"| {fields['deviates']} |" in decisions, rule
