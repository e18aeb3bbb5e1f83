"""The documents name only existing checks."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EQUATIONS = (ROOT / "docs/equations.md").read_text(encoding="utf-8")
ERRATA = (ROOT / "docs/errata.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(wayfare(?:\.\w+)+)`", EQUATIONS)))


@pytest.mark.parametrize("path", NAMED)
def test_every_function_of_the_equations_exists(path: str) -> None:
    parts = path.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found = import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            found = getattr(found, name)
        assert callable(found)
        return
    raise AssertionError(path)


def test_the_equations_name_every_bound() -> None:
    from wayfare.theory import bounds

    public = {name for name in vars(bounds) if re.match(r"(lemma|theorem|corollary|proposition)_", name)}
    assert public == {
        path.rpartition(".")[2] for path in NAMED if re.match(r".*\.(lemma|theorem|corollary|prop)", path)
    }


def test_every_check_that_the_errata_name_exists() -> None:
    named = set(re.findall(r"`(test_\w+|Test\w+)`", ERRATA))
    there: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                there.add(node.name)
    assert len(named) > 15
    assert named <= there, named - there


def test_every_finding_of_the_errata_has_its_section() -> None:
    anchors = re.findall(r"\]\(#([\w-]+)\)", ERRATA)
    headings = {
        re.sub(r"[^\w -]", "", line[3:]).strip().lower().replace(" ", "-")
        for line in ERRATA.splitlines()
        if line.startswith("## ")
    }
    assert anchors
    assert set(anchors) <= headings
