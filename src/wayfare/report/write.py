"""Writes the report of a folder: page, Markdown and figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wayfare.files import writing
from wayfare.report.figures import Format, write_figures
from wayfare.report.markdown import write_markdown
from wayfare.report.page import point_groups, read_material, write_page


def write_report(
    folder: Path,
    out: Path | None = None,
    *,
    figures: Format | None = None,
    seed: int | None = None,
    on_run: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write the report of a run, a comparison or a study; return the files, the page first.

    If ``out`` ends with .html, it is the page, and there is no Markdown file; otherwise it is a folder.
    """
    alone = out is not None and out.suffix.lower() in (".html", ".htm")
    target = (out.parent if alone else out) if out is not None else folder / "report"
    page = out if out is not None and alone else target / "index.html"
    material = read_material(folder, seed=seed, on_run=on_run)
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    write_page(material, page)
    drawn: list[Path] = []
    # The Markdown page of a study needs its figures.
    kind = figures or ("png" if material.results.manifest.axes and not alone else None)
    if kind is not None:
        drawn = write_figures(material.results, point_groups(material, 0), target, kind)
    if alone:
        return [page, *drawn]
    write_markdown(material.results, target / "report.md", drawn)
    return [page, target / "report.md", *drawn]
