"""The documentation site builds without a warning and covers the whole program."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import typer
from scripts.site_reference import command_line, python_api, scenario_fields

import wayfare
from wayfare.cli.app import app

ROOT = Path(__file__).parent.parent


@pytest.mark.long
def test_the_site_builds_with_executed_notebooks_and_without_dead_links(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):  # the build executes them
        page = tmp_path / "notebooks" / notebook.stem / "index.html"
        assert "<caption>fashion-small: " in page.read_text(encoding="utf-8")
    # Tables keep a number and its interval on one line, and show a pipe in code without the backslash GitHub needs.
    assert "75.6\u00a0±\u00a06.7" in (tmp_path / "results/fashion-small/index.html").read_text(encoding="utf-8")
    assert "<code>time CONN a b up|down</code>" in (tmp_path / "how-to/contacts/index.html").read_text(encoding="utf-8")
    for page in tmp_path.rglob("*.html"):
        if page.name == "404.html":  # its links start at the root of the host
            continue
        for target in re.findall(r'(?:href|src)="?([^"\s>]+)', page.read_text(encoding="utf-8")):
            path = unescape(target).partition("#")[0]
            if path and not re.match(r"[a-z]+:", path):
                file = page.parent / path
                there = file / "index.html" if file.is_dir() else file
                assert there.exists(), f"{page.relative_to(tmp_path)}: {target}"


def command_names(command: Any, name: str) -> Iterator[str]:
    yield name
    for inner in getattr(command, "commands", {}).values():
        yield from command_names(inner, f"{name} {inner.name}")


def test_the_command_line_page_has_every_command() -> None:
    page = command_line()
    for name in command_names(typer.main.get_command(app), "wayfare"):
        assert f"# `{name}`\n" in page or name == "wayfare"


def test_the_api_page_has_every_public_name() -> None:
    page = python_api()
    for name in set(wayfare.__all__) - {"__version__"}:
        assert f"::: {getattr(wayfare, name).__module__}.{name}\n" in page


def test_every_scenario_field_has_its_meaning_unit_default_and_rule() -> None:
    lines = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in scenario_fields().splitlines() if "| `" in line]
    fields = {cells[0].strip("`"): cells[1:] for cells in lines}
    assert fields["bandwidth_hz"][1:] == ["Hz", "`1000000.0`", "number, > 0, ≤ 1e15"]
    assert fields["speed_mps"][1:] == ["m/s", "`20.0`", "number, > 0, ≤ 10,000"]
    assert fields["optimizer"][1:] == ["", '`"sgd"`', '`"sgd"`, `"momentum"`, `"adam"`']
    assert fields["waypoints_m"][1:] == ["m", "required", "list of [number, number], at least 2 entries"]
    assert not [name for name, cells in fields.items() if not cells[0].strip()]
