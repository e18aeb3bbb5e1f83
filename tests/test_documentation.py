"""The documentation names only existing files, headings, commands and options."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from wayfare.cli.app import app
from wayfare.codec.indices import IndexKind
from wayfare.codec.steps import ValueBits

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FORMATS = ("index format", "bits per value")
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors_of(page: Path) -> set[str]:
    """The names by which headings are linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors_of(there), f"{target}: no such heading"


@pages
def test_no_merge_was_left_unfinished(page: Path) -> None:
    assert not re.search(r"^(<<<<<<<|=======|>>>>>>>)", page.read_text(encoding="utf-8"), re.MULTILINE)


@pages
def test_commands_stand_outside_of_lists(page: Path) -> None:
    # The site takes an indented block in a list for a paragraph.
    assert not re.search(r"^\n {5,7}\S", page.read_text(encoding="utf-8"), re.MULTILINE)


def commands_on(page: Path) -> list[str]:
    """Every command that is shown, up to a comment."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    return [line.partition(" # ")[0] for line in re.findall(r"^ {4}wayfare ([a-z].*)$", text, re.MULTILINE)]


@cache
def all_commands() -> Any:
    return typer.main.get_command(app)


def found(words: list[str]) -> list[Any]:
    """The commands at the start of a command line; ``list|fetch`` are two, and other words are arguments."""
    commands: list[Any] = [all_commands()]
    for word in words:
        below = [command.commands for command in commands if hasattr(command, "commands")]
        if not below:
            break
        names = [name.strip("[],") for name in word.split("|")]
        unknown = [name for name in names if name not in below[0] and name != "..."]
        if unknown and "inspect" in below[0]:  # of `wayfare contacts SOURCE`
            return [below[0]["inspect"]]
        assert not unknown, f"no command {unknown}"
        commands = [below[0][name] for name in names if name in below[0]]
    return commands


@pages
def test_commands_and_their_options_are_known(page: Path) -> None:
    for line in commands_on(page):
        commands = found(line.split())
        known = {name for command in commands for entry in command.params for name in entry.opts + entry.secondary_opts}
        given = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", line))
        assert given <= known | {"--help"}, f"wayfare {line}: no option {given - known}"


def test_the_page_of_the_message_lists_every_format() -> None:
    page = (ROOT / "docs/reference/bits.md").read_text(encoding="utf-8")
    index_formats, value_bits = (re.findall(rf"^\| 1 \| {name}: (.*) \|$", page, re.MULTILINE) for name in FORMATS)
    assert [int(number) for number in re.findall(r"\d+", index_formats[0])] == [*IndexKind]
    assert [int(number) for number in re.findall(r"\d+", value_bits[0])] == [*get_args(ValueBits)]
