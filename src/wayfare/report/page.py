"""The page of a run, a comparison or a study: one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from wayfare.errors import RunFolderError, ScenarioError, UnavailableError
from wayfare.files import writing
from wayfare.methods import scheme_label
from wayfare.records import RunRecord
from wayfare.report import sections
from wayfare.report.columns import ENERGY
from wayfare.report.digest import RunDigest, detail_of, digest_run, group_json
from wayfare.report.labels import axis_label, metric_words_and_unit, task_label
from wayfare.report.palette import look_of
from wayfare.report.repeat import made_with, recipe_of
from wayfare.report.replay import replay_json
from wayfare.report.study_figures import panels_of
from wayfare.report.theory_beside import theory_json
from wayfare.scenario import parse
from wayfare.studies.results import StudyResults, read_results
from wayfare.studies.store import PlannedRun, value_text
from wayfare.version import __version__

_STATIC = files("wayfare.report") / "static"
_STYLES = ("page.css", "replay.css")
_SCRIPTS = ("theme.js", "charts.js", "theory.js", "world.js", "draw.js", "replay.js")


@dataclass(kw_only=True)
class Material:
    """The data of a page: results, digests of all runs, and the full records of one world."""

    seed: int | None = None  # the seed whose world the map shows; None: the first
    results: StudyResults = field(init=False)
    digests: dict[tuple[int, str], list[RunDigest]] = field(default_factory=dict)
    world: list[RunRecord] = field(default_factory=list)
    walls_s: dict[Path, float] = field(default_factory=dict)  # by the folder of a run, which several points may share

    def take(self, run: PlannedRun, record: RunRecord) -> None:
        self.digests.setdefault((run.point, run.scheme), []).append(digest_run(record))
        self.walls_s[record.folder] = record.wall_s
        if run.point == 0 and self.seed in (None, record.seed):
            self.seed = record.seed
            self.world.append(record)


def read_material(folder: Path, *, seed: int | None = None, on_run: Callable[[str], None] | None = None) -> Material:
    """Read the runs of a folder once; the map shows the world of `seed`, by default the first one."""
    material = Material(seed=seed)

    def take(run: PlannedRun, record: RunRecord) -> None:
        material.take(run, record)
        if on_run:
            on_run(f"Reading {record.folder.name}")

    material.results = read_results(folder, take)
    if material.results.metric is None:
        raise RunFolderError(f"{folder}: contains no finished run to report")
    if not material.world:
        there = sorted({run.seed for run in material.results.manifest.runs if run.point == 0})
        if seed is not None:
            raise ScenarioError("seed", seed, f"no run has this seed; must be one of {', '.join(map(str, there))}")
        # The first point has no finished run yet: the page has no map.
    order = {name: index for index, name in enumerate(material.results.manifest.schemes)}
    material.world.sort(key=lambda record: order[record.scheme])
    return material


def write_page(material: Material, file: Path) -> None:
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page_html(material), encoding="utf-8")


def page_html(material: Material) -> str:
    results, manifest = material.results, material.results.manifest
    meta = material.world[0].meta if material.world else {}
    return (
        templates()
        .get_template("page.html")
        .render(
            name=manifest.name,
            styles=Markup("\n".join(_static(name) for name in _STYLES)),
            header=sections.header(results),
            results=sections.results_section(results),
            points=[manifest.point_name(point) for point in range(len(manifest.points))],
            varies=bool(manifest.axes),
            schemes=[scheme_label(record.scheme) for record in material.world],
            failures=sections.failures_section(results, material.digests),
            recipe=recipe_of(results, meta),
            made_with=made_with(meta, [*material.walls_s.values()]) | {"page written by": f"Wayfare {__version__}"},
            data=Markup(_for_script(page_json(material))),
            plotly=Markup(plotly_script().replace("</script", "<\\/script")),
            scripts=[Markup(_static(name)) for name in _SCRIPTS],
        )
    )


def templates() -> Environment:
    """The templates of a page; they escape the names of schemes, files and studies."""
    loader = FunctionLoader(_static)
    found = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    found.globals["ENERGY"] = ENERGY
    found.filters["in_line"] = sections.in_line
    return found


def page_json(material: Material) -> dict[str, Any]:
    results = material.results
    manifest, metric = results.manifest, results.results[0].metric
    words, unit = metric_words_and_unit(metric)
    return {
        "metric": {"words": words, "unit": unit, "percent": metric.percent},
        "looks": {
            scheme: {"label": scheme_label(scheme), **asdict(look_of(scheme, manifest.schemes))}
            for scheme in manifest.schemes
        },
        "reference": results.reference,
        "points": [
            {"name": manifest.point_name(point), "groups": point_groups(material, point)}
            for point in range(len(manifest.points))
        ],
        "study": _study_json(results) if manifest.axes else None,
        "theory": theory_json(results, material.digests),
        "holdings": _holdings(material.world),
        "replay": _replay(material),
    }


def point_groups(material: Material, point: int) -> dict[str, dict[str, Any]]:
    manifest = material.results.manifest
    scenario, detail = parse(manifest.scenarios[point]), detail_of(len(material.digests))
    return {
        scheme: group_json(material.digests[point, scheme], scenario.rounds, scenario.round_s, detail)
        for scheme in manifest.schemes
        if (point, scheme) in material.digests
    }


def plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UnavailableError("pages need plotly: pip install 'wayfare[report]'") from None
    return str(get_plotlyjs())


def _replay(material: Material) -> dict[str, Any]:
    if not material.world:
        return {"unavailable": "no run of the first point is finished"}
    # A large study needs the space for its charts.
    room = 1.0 if detail_of(len(material.digests)) == 1.0 else 0.25
    return replay_json(material.world, room) | {"point": material.results.manifest.point_name(0)}


def _study_json(results: StudyResults) -> dict[str, Any]:
    manifest, axis = results.manifest, results.manifest.varies[0]
    metrics = list(dict.fromkeys(name for row in results.rows for name in row.estimates))
    return {
        "axis": axis_label(axis),
        "metrics": metrics,
        "rows": [
            {
                "scheme": row.scheme,
                "x": _plain(manifest.place_of(row.point)[axis]),
                "panel": panel,
                "seeds": len(row.results),
                "estimates": {name: {"mean": one.mean, "ci95": one.ci95} for name, one in row.estimates.items()},
            }
            for panel, rows in panels_of(results).items()
            for row in rows
        ],
    }


def _plain(value: Any) -> float | str:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else value_text(value)


def _holdings(world: Sequence[RunRecord]) -> dict[str, Any] | None:
    if not world:
        return None
    counts, trace = world[0].class_counts, world[0].trace
    return {
        "seed": world[0].seed,
        "task": task_label(world[0].scenario.learning.task),
        "names": list(trace.device_names) if trace and trace.device_names else None,
        "counts": counts.astype(int).tolist(),
    }


def _for_script(content: dict[str, Any]) -> str:
    """JSON without `<`, so that it cannot close the script element around it."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
