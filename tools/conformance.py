"""Which rules of the specifications a test shows: conformance/requirements.toml and a complete test run of this tree that passed."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensor_pool.testing.sources import sources_digest

ROOT = Path(__file__).resolve().parent.parent
SPECIFICATIONS: Final = ("wire", "driver", "discovery", "bridge", "rate_limiter")
COVERED, DEVIATES, NOT_APPLICABLE, OPEN = "covered", "deviates", "not_applicable", "open"
STATES: Final = (COVERED, DEVIATES, NOT_APPLICABLE, OPEN)
# what the catalogue may say of a rule itself; a mark would contradict each
STATED: Final = (DEVIATES, NOT_APPLICABLE, OPEN)


class ConformanceError(Exception):
    """The catalogue or the marks are wrong, or the test run is none of this tree: no table can be trusted."""


@dataclass(frozen=True, slots=True)
class MarkedTest:
    """One test of a run and the rules it is marked with."""

    nodeid: str
    outcome: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One rule, and what is known about it."""

    rule: str
    specification: str
    section: str
    level: str
    binds: str
    words: str
    state: str
    tests: tuple[str, ...]
    """Tests that are marked with the rule, with their outcome when they did not pass."""
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def load_rules(path: Path) -> dict[str, dict[str, Any]]:
    """Every rule by id, with its specification."""
    catalogue = tomllib.loads(path.read_text())
    if tuple(sorted(catalogue)) != tuple(sorted(SPECIFICATIONS)):
        raise ConformanceError(f"{path}: sections {', '.join(sorted(catalogue))}, expected {', '.join(SPECIFICATIONS)}")
    rules: dict[str, dict[str, Any]] = {}
    for specification in SPECIFICATIONS:
        for rule, fields in catalogue[specification].items():
            if rule in rules:
                raise ConformanceError(f"{path}: {rule} stands in two sections")
            stated = [state for state in STATED if state in fields]
            if len(stated) > 1:
                raise ConformanceError(f"{path}: {rule} is said to be {' and '.join(stated)}")
            rules[rule] = {"specification": specification, **fields}
    return rules


def load_tests(path: Path, sources: str) -> list[MarkedTest]:
    """What a complete run that passed wrote (`tensor_pool.testing.plugin`), if it was about the tree whose digest is `sources`."""
    if not path.is_file():
        raise ConformanceError(f"{path} does not exist: no run of all tests has passed\n\nhint: `make conformance` makes one")
    run = json.loads(path.read_text())
    if not run.get("everything"):
        raise ConformanceError(f"{path} is not of a run of all tests\n\nhint: run `make unit`")
    exit_status = run["exit_status"]
    if exit_status != 0:
        how = "did not end" if exit_status is None else f"failed (exit status {exit_status})"
        raise ConformanceError(f"{path} is of a test run that {how}\n\nhint: run `make unit`")
    if run.get("sources") != sources:
        raise ConformanceError(f"{path} is of a test run of other sources than these\n\nhint: run `make unit`")
    return [MarkedTest(test["nodeid"], test["outcome"], tuple(test["requirements"])) for test in run["tests"]]


def judge(rules: Mapping[str, Mapping[str, Any]], tests: Sequence[MarkedTest]) -> list[Row]:
    """The state of every rule. Covered takes a marked test that passed and none that failed."""
    marked: dict[str, list[MarkedTest]] = {}
    for test in tests:
        for rule in test.rules:
            marked.setdefault(rule, []).append(test)
    unknown = sorted(set(marked) - set(rules))
    if unknown:
        raise ConformanceError(
            f"marks name rules that do not exist:\n{_places(unknown, marked)}\n\nhint: ids are in conformance/requirements.toml"
        )
    contradicted = [rule for rule, fields in rules.items() if rule in marked and any(state in fields for state in STATED)]
    if contradicted:
        raise ConformanceError(
            f"marks name rules that the catalogue says are not shown:\n{_places(contradicted, marked)}\n\n"
            f"hint: take the mark away, or one of {', '.join(STATED)} in conformance/requirements.toml"
        )
    return [_row(rule, fields, marked.get(rule, [])) for rule, fields in rules.items()]


def _places(rules: Sequence[str], marked: Mapping[str, Sequence[MarkedTest]]) -> str:
    return "\n".join(f"  {rule}: {marked[rule][0].nodeid}" for rule in rules)


def _row(rule: str, fields: Mapping[str, Any], tests: Sequence[MarkedTest]) -> Row:
    outcomes = {test.outcome for test in tests}
    names = tuple(test.nodeid if test.outcome == "passed" else f"{test.nodeid} ({test.outcome})" for test in tests)
    if DEVIATES in fields:
        state, reason = DEVIATES, f"decision {fields[DEVIATES]}"
    elif NOT_APPLICABLE in fields:
        state, reason = NOT_APPLICABLE, fields[NOT_APPLICABLE]
    elif OPEN in fields:
        state, reason = OPEN, fields[OPEN]
    elif "failed" in outcomes:
        state, reason = OPEN, "a test that is marked with it failed"
    elif "passed" in outcomes:
        state, reason = COVERED, ""
    else:
        state, reason = OPEN, "no test that is marked with it was run" if tests else ""
    described = {name: str(fields[name]) for name in ("specification", "section", "level", "binds", "words")}
    return Row(rule=rule, state=state, tests=names, reason=reason, **described)


def summary(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Per specification: how many rows, and how many of each state."""
    counts = {specification: {"rows": 0, **dict.fromkeys(STATES, 0)} for specification in SPECIFICATIONS}
    for row in rows:
        counts[row.specification]["rows"] += 1
        counts[row.specification][row.state] += 1
    return counts


def document(rows: Sequence[Row], command: str, sources: str) -> dict[str, Any]:
    """What build/conformance.json holds: the counts of each specification under its name, and every row under `rules`."""
    return {
        **summary(rows),
        "rules": [row.as_json() for row in rows],
        "command": command,
        "sources": sources,
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
    }


def table(rows: Sequence[Row], *, quiet: bool) -> str:
    """The rules one a line, then the counts."""
    lines = [] if quiet else [_line(row) for row in rows] + [""]
    widths = (14, *(len(state) + 2 for state in STATES))
    lines.append("specification   rows  " + "  ".join(f"{state:>{width}}" for state, width in zip(STATES, widths[1:], strict=True)))
    counts = summary(rows)
    total = {name: sum(count[name] for count in counts.values()) for name in ("rows", *STATES)}
    for name, count in {**counts, "all": total}.items():
        numbers = "  ".join(f"{count[state]:>{width}}" for state, width in zip(STATES, widths[1:], strict=True))
        lines.append(f"{name:<14}  {count['rows']:>4}  {numbers}")
    return "\n".join(lines)


def _line(row: Row) -> str:
    shown = row.reason or (f"{len(row.tests)} tests, first {row.tests[0]}" if row.tests else "")
    return f"{row.rule:<14}{row.state:<15}{row.level:<8}{row.binds:<24}{row.words}" + (f"\n{'':<14}{shown}" if shown else "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=Path, default=ROOT / "conformance" / "requirements.toml")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "test-results.json", help="outcomes of a test run")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "conformance.json")
    parser.add_argument("--quiet", action="store_true", help="only the counts")
    options = parser.parse_args(arguments)
    sources = sources_digest(ROOT)
    try:
        rows = judge(load_rules(options.rules), load_tests(options.results, sources))
    except ConformanceError as error:
        # a table of another tree or of a run before is worse than none
        options.output.unlink(missing_ok=True)
        sys.stderr.write(f"{error}\n")
        return 2
    options.output.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["tools/conformance.py", *(arguments or sys.argv[1:])])
    options.output.write_text(json.dumps(document(rows, command, sources), indent=1) + "\n")
    sys.stdout.write(f"{table(rows, quiet=options.quiet)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
