"""A figure of the paper: its study, its drawing, and the paper's claim and numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from wayfare.errors import ScenarioError
from wayfare.methods import scheme_label
from wayfare.scenario.load import merge, table_of

if TYPE_CHECKING:
    from wayfare.studies.results import StudyResults

Drawing: TypeAlias = Literal["curves", "metric", "rounds to target", "contact times"]
"""Score against rounds; a metric or the rounds to a target against the varied setting; or contacts without training."""

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
"""All schemes of the paper with greedy energy, AFL-Spar with both energy rules, and two readings of dense schemes.

The paper does not say who pays for relays, nor whether a device starts an upload that cannot finish."""

BILLED_SCHEMES = [name for name in SCHEMES if name != "fedmobile" and not name.endswith(":fitting")]
"""One reading of each: relays cost energy, and devices start uploads that cannot finish."""

QUICK = {"scenario": "fashion-small", "seeds": 1}
"""The default preset instead of CIFAR-10, and one seed: enough to see how the figure is made."""

SPEEDS = {"mobility": {"speed_mps": [1.0, 5.0, 10.0, 20.0, 40.0]}}

MILD = {"learning": {"partition": {"concentration": 1.0, "dealing": "once"}}}
"""The paper states rho only for Fig. 8. MADS reaches 71.15 % in Fig. 9, but 65.66 % in Fig. 8 with rho = 0.1, so the
data of Fig. 9 are less skewed. We use rho = 1, the middle value of Fig. 8, so that both figures share runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A number of the paper, and how to find ours."""

    paper: float
    scheme: str
    below: str | None = None  # the number is the distance below this scheme
    at: float | None = None  # the value of the varied setting
    metric: str = "score"

    @property
    def what(self) -> str:
        place = "" if self.at is None else f" at {self.at:g}"
        below = "" if self.below is None else f", below {scheme_label(self.below)}"
        return f"{scheme_label(self.scheme)}{place}{below}"

    def ours(self, results: StudyResults) -> float | None:
        """The same number in a study: a mean over seeds, of a difference over common seeds; None if it is missing."""
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
    """By how many percent the error of a scheme is below that of the best of others; None while one is missing."""

    paper: float
    scheme: str
    others: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"{scheme_label(self.scheme)}, % below the best of {', '.join(map(scheme_label, self.others))}"

    def ours(self, results: StudyResults) -> float | None:
        """The same number in a study, from means over its seeds; None if it is missing."""
        mean = {row.scheme: row.estimates["score"].mean for row in results.rows if row.results}
        if len(results.manifest.points) > 1 or not {self.scheme, *self.others} <= mean.keys():
            return None
        return 100.0 * (1.0 - mean[self.scheme] / min(mean[name] for name in self.others))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """One figure: its full study, the changes for the quick one, and the paper's numbers."""

    name: str
    title: str
    claim: str  # the paper's conclusion
    drawing: Drawing
    full: Mapping[str, Any]
    quick: Mapping[str, Any]
    metric: str = "score"
    numbers: tuple[Quoted | QuotedGain, ...] = ()
    overrides: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # further schemes
    seeds: int | Sequence[int] | None = None  # another number of seeds, or other seeds
    fixed: tuple[str, ...] = ()  # fields that the figure sets, besides those that vary

    @property
    def stand_in(self) -> str:
        return f"quick: {self.quick['scenario']} instead of the paper's task"

    @property
    def seeds_text(self) -> str:
        """The number of seeds, or the seeds separated by commas; a single seed ends with a comma."""
        if self.seeds is None or isinstance(self.seeds, int):
            return str(self.seeds)
        return ",".join(map(str, self.seeds)) + ("," if len(self.seeds) == 1 else "")

    def changed(
        self, overrides: Sequence[str], also: Sequence[str], seeds: int | Sequence[int] | None = None
    ) -> PaperFigure:
        return replace(self, overrides=tuple(overrides), also=tuple(also), seeds=seeds)

    def study(self, *, quick: bool) -> dict[str, Any]:
        """The study as a table; figures with the same study share its name, and a changed study gets a new name."""
        chosen = {"metrics": ["score", "energy_joules", "kept_fraction", "uploads_per_device"], **self.full}
        chosen |= self.quick if quick else {}
        name = f"{'quick-' if quick else ''}{chosen['name']}"
        varied = [f"{section}.{name}" for section, names in chosen.get("grid", {}).items() for name in names]
        for override in self.overrides:
            field, _, value = override.partition("=")
            if field.strip() in (*varied, *self.fixed):
                raise ScenarioError(field.strip(), value, f"cannot be set: {self.name} sets it")
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
