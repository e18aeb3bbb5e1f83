"""What a figure of the paper is: a study, how it is drawn, and what the paper says about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, TypeAlias

from wayfare.errors import ScenarioError
from wayfare.methods import scheme_label
from wayfare.scenario.load import merge, table_of
from wayfare.studies.results import StudyResults

Drawing: TypeAlias = Literal["curves", "metric", "rounds to target", "contact times"]
"""Score against rounds; a number against what varies; rounds to a target against it; or no training at all."""

SCHEMES = [
    "mads",
    "optimal",
    "afl-spar:paced",
    "afl-spar",
    "fedmobile",
    "fedmobile:billed",
    "afl:fitting",
    "afl",
    "fedasync:fitting",
    "fedasync",
    "sfl-spar",
]
"""All schemes of the paper with greedy energy, AFL-Spar with both rules, and both readings of what sends whole models.

The paper does not say who pays for relays, nor whether an upload is started that cannot finish."""

BILLED_SCHEMES = [name for name in SCHEMES if name != "fedmobile" and not name.endswith(":fitting")]
"""One reading of each: relays are billed, and uploads are started that cannot finish."""

QUICK = {"scenario": "fashion-small", "seeds": 1}
"""The embedded default stands in for CIFAR-10; one seed, to see the shape and nothing more."""

SPEEDS = {"mobility": {"speed_mps": [1.0, 5.0, 10.0, 20.0, 40.0]}}

MILD = {"learning": {"partition": {"concentration": 1.0, "dealing": "once"}}}
"""The paper gives rho for Fig. 8 alone. Its Fig. 9 has MADS at 71.15 % where Fig. 8 has 65.66 % for rho = 0.1, so data
there are more alike; rho = 1 lies between the two others of Fig. 8, and its runs serve both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A number of the paper, and where ours is found."""

    paper: float
    scheme: str
    below: str | None = None  # the number is how far the scheme is below this one
    at: float | None = None  # the value of what varies
    metric: str = "score"

    @property
    def what(self) -> str:
        place = "" if self.at is None else f" at {self.at:g}"
        below = "" if self.below is None else f", below {scheme_label(self.below)}"
        return f"{scheme_label(self.scheme)}{place}{below}"

    def ours(self, results: StudyResults) -> float | None:
        """The same number in a study, a mean over its seeds, of a difference over those that both have; or None."""
        mine = self._by_seed(results, self.scheme)
        others = dict.fromkeys(mine, 0.0) if self.below is None else self._by_seed(results, self.below)
        seeds = mine.keys() & others.keys()
        if not seeds:
            return None
        sign = 1.0 if self.below is None else -1.0
        return sign * fmean(mine[seed] - others[seed] for seed in sorted(seeds))

    def _by_seed(self, results: StudyResults, scheme: str) -> dict[int, float]:
        metric = results.metric
        scale = 100.0 if self.metric == "score" and metric is not None and metric.percent else 1.0
        there = [self.at is None or self.at in point.values() for point in results.manifest.points]
        rows = [row for row in results.rows if row.scheme == scheme and there[row.point]]
        if len(rows) != 1:
            return {}
        return {one.run.seed: scale * one.measures[self.metric] for one in rows[0].results}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedGain:
    """How many percent the error of one scheme is below that of the best of others; nothing while one is missing."""

    paper: float
    scheme: str
    others: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"{scheme_label(self.scheme)}, % below the best of {', '.join(map(scheme_label, self.others))}"

    def ours(self, results: StudyResults) -> float | None:
        """The same number in a study, of means over its seeds; or None."""
        mean = {row.scheme: row.estimates["score"].mean for row in results.rows if row.results}
        if len(results.manifest.points) > 1 or not {self.scheme, *self.others} <= mean.keys():
            return None
        return 100.0 * (1.0 - mean[self.scheme] / min(mean[name] for name in self.others))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """One figure: the study at full size, what is different in the quick one, and what to set beside it."""

    name: str
    title: str
    claim: str  # what the paper reads from it
    drawing: Drawing
    full: Mapping[str, Any]
    quick: Mapping[str, Any]
    metric: str = "score"
    numbers: tuple[Quoted | QuotedGain, ...] = ()
    overrides: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # schemes beside those of the paper
    seeds: int | Sequence[int] | None = None  # another number of seeds, or other seeds
    fixed: tuple[str, ...] = ()  # fields that are the figure's own, beside those that vary

    @property
    def stand_in(self) -> str:
        return f"quick: {self.quick['scenario']}, not what the paper has"

    @property
    def seeds_text(self) -> str:
        """Its number of seeds, or its seeds with commas between them; one seed has a comma behind it."""
        if self.seeds is None or isinstance(self.seeds, int):
            return str(self.seeds)
        return ",".join(map(str, self.seeds)) + ("," if len(self.seeds) == 1 else "")

    def changed(
        self, overrides: Sequence[str], also: Sequence[str], seeds: int | Sequence[int] | None = None
    ) -> PaperFigure:
        return replace(self, overrides=tuple(overrides), also=tuple(also), seeds=seeds)

    def study(self, *, quick: bool) -> dict[str, Any]:
        """The study as a table; figures of one study share its name, and one that was changed has a name of its own."""
        chosen = {"metrics": ["score", "energy_joules", "kept_fraction", "uploads_per_device"], **self.full}
        chosen |= self.quick if quick else {}
        name = f"{'quick-' if quick else ''}{chosen['name']}"
        varied = [f"{section}.{name}" for section, names in chosen.get("grid", {}).items() for name in names]
        for override in self.overrides:
            field, _, value = override.partition("=")
            if field.strip() in (*varied, *self.fixed):
                raise ScenarioError(field.strip(), value, f"cannot be set: {self.name} has its own")
        if self.overrides:
            chosen["set"] = merge(dict(chosen.get("set", {})), table_of(self.overrides))
        if self.also:
            chosen["schemes"] = [*chosen.get("schemes", ()), *self.also]
        if self.overrides or self.also:
            name += "-" + hashlib.sha256(repr((self.overrides, self.also)).encode()).hexdigest()[:6]
        if self.seeds is not None:
            chosen["seeds"] = self.seeds if isinstance(self.seeds, int) else list(self.seeds)
            name += f"-seeds{self.seeds_text.replace(',', '.')}"
        return {**chosen, "name": name}
