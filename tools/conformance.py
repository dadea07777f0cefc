"""Which rules of the specifications a test shows: conformance/requirements.toml and the outcomes of the last complete test run."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
SPECIFICATIONS: Final = ("wire", "driver", "discovery", "bridge", "rate_limiter")
COVERED, DEVIATES, NOT_APPLICABLE, OPEN = "covered", "deviates", "not_applicable", "open"
STATES: Final = (COVERED, DEVIATES, NOT_APPLICABLE, OPEN)


class ConformanceError(Exception):
    """The catalogue or the marks are wrong: no table can be trusted."""


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
            if DEVIATES in fields and NOT_APPLICABLE in fields:
                raise ConformanceError(f"{path}: {rule} both deviates and does not apply")
            rules[rule] = {"specification": specification, **fields}
    return rules


def load_tests(path: Path) -> list[MarkedTest]:
    """What a test run wrote (`tensor_pool.testing.plugin`)."""
    written = json.loads(path.read_text())
    return [MarkedTest(test["nodeid"], test["outcome"], tuple(test["requirements"])) for test in written["tests"]]


def merged(collected: Sequence[MarkedTest], results: Sequence[MarkedTest]) -> list[MarkedTest]:
    """The tests that exist now, with the outcomes of the run where they were part of it."""
    outcomes = {test.nodeid: test.outcome for test in results}
    return [MarkedTest(test.nodeid, outcomes.get(test.nodeid, "not run"), test.rules) for test in collected]


def judge(rules: Mapping[str, Mapping[str, Any]], tests: Sequence[MarkedTest]) -> list[Row]:
    """The state of every rule. Covered takes a marked test that passed and none that failed."""
    marked: dict[str, list[MarkedTest]] = {}
    for test in tests:
        for rule in test.rules:
            marked.setdefault(rule, []).append(test)
    unknown = sorted(set(marked) - set(rules))
    if unknown:
        where = "\n".join(f"  {rule}: {marked[rule][0].nodeid}" for rule in unknown)
        raise ConformanceError(f"marks name rules that do not exist:\n{where}\n\nhint: ids are in conformance/requirements.toml")
    return [_row(rule, fields, marked.get(rule, [])) for rule, fields in rules.items()]


def _row(rule: str, fields: Mapping[str, Any], tests: Sequence[MarkedTest]) -> Row:
    outcomes = {test.outcome for test in tests}
    names = tuple(test.nodeid if test.outcome == "passed" else f"{test.nodeid} ({test.outcome})" for test in tests)
    if DEVIATES in fields:
        state, reason = DEVIATES, f"decision {fields[DEVIATES]}"
    elif NOT_APPLICABLE in fields:
        state, reason = NOT_APPLICABLE, fields[NOT_APPLICABLE]
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


def document(rows: Sequence[Row], command: str) -> dict[str, Any]:
    """What build/conformance.json holds: the counts of each specification under its name, and every row under `rules`."""
    return {
        **summary(rows),
        "rules": [row.as_json() for row in rows],
        "command": command,
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


def collect(root: Path) -> list[MarkedTest]:
    """The marks of every test there is now, without running any."""
    path = root / "build" / f".collected-{platform.node()}.json"
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--test-results", str(path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603 - our own pytest
    try:
        if done.returncode != 0:
            raise ConformanceError(f"pytest cannot collect the tests:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return load_tests(path)
    finally:
        path.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=Path, default=ROOT / "conformance" / "requirements.toml")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "test-results.json", help="outcomes of a test run")
    parser.add_argument("--collect", action="store_true", help="take the marks from the tests as they are now, the outcomes from the run")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "conformance.json")
    parser.add_argument("--quiet", action="store_true", help="only the counts")
    options = parser.parse_args(arguments)
    try:
        tests = load_tests(options.results) if options.results.is_file() else []
        if not tests and not options.collect:
            raise ConformanceError(f"{options.results} does not exist\n\nhint: run `make test` first; it is written by a run of all tests")
        if options.collect:
            tests = merged(collect(ROOT), tests)
        rows = judge(load_rules(options.rules), tests)
    except ConformanceError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document(rows, " ".join(["tools/conformance.py", *(arguments or sys.argv[1:])])), indent=1) + "\n")
    sys.stdout.write(f"{table(rows, quiet=options.quiet)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
