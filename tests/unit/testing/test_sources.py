"""The digest that tells two trees apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tensor_pool.testing.sources import sources_digest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("src/a.py", "tests/unit/test_a.py", "docs/a.md", "src/__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "src/a.py").write_text("other"),
        lambda tree: (tree / "src/a.py").rename(tree / "src/b.py"),
        lambda tree: (tree / "tests/unit/test_a.py").unlink(),
        lambda tree: (tree / "tests/new").touch(),
    ],
)
def test_a_change_of_what_tests_are_about_is_another_digest(tree: Path, change: Callable[[Path], object]) -> None:
    before = sources_digest(tree)
    change(tree)
    assert sources_digest(tree) != before


def test_what_is_derived_or_only_read_by_people_does_not_count(tree: Path) -> None:
    before = sources_digest(tree)
    (tree / "docs/a.md").write_text("other")
    (tree / "src/__pycache__/a.pyc").unlink()
    assert sources_digest(tree) == before
