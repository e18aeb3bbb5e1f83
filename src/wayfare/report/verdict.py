"""The winner and its lead, in sentences that claim no more than the seeds allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from wayfare.learning.tasks import Metric
from wayfare.methods import scheme_label
from wayfare.records import RunSummary, SchemeSummary, paired_difference, summarise_scheme
from wayfare.records.statistics import Difference
from wayfare.report.columns import has_kept_share, over_budget
from wayfare.report.labels import metric_words_and_unit, number_text

_CLEAR = ", significantly ahead of all others"
_MINUS = "\u2212"
# Half of the last displayed digit, both of a share and of an error in metres.
_LEVEL = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    name: str
    difference: Difference | None  # its score minus the winner's, over the seeds both have
    over_budget: bool

    @property
    def is_significant(self) -> bool:
        """Whether the 95 % interval of the difference excludes 0."""
        found = self.difference
        return found is not None and found.ci95 is not None and abs(found.mean) > found.ci95


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The best scheme within the energy budget (of all schemes, if none is), and its rivals."""

    winner: SchemeSummary
    level: list[str]  # schemes with the same score in all displayed digits
    within_budget: bool
    rivals: list[Rival]
    has_kept_share: bool  # whether shares of an update compare

    @property
    def one_seed(self) -> bool:
        return self.winner.seeds == 1


def verdict_of(runs: Sequence[Sequence[RunSummary]]) -> Verdict:
    """The verdict on schemes, each with its runs; only common seeds count, if there are any."""
    common = set[int].intersection(*({run.seed for run in mine} for mine in runs))
    if common:
        runs = [[run for run in mine if run.seed in common] for mine in runs]
    schemes = [summarise_scheme(mine) for mine in runs]
    sign = 1 if schemes[0].metric.better == "higher" else -1
    inside = [scheme for scheme in schemes if not over_budget(scheme)]
    worth = {scheme.name: _worth(sign * scheme.score_mean) for scheme in inside or schemes}
    best = max(worth.values())
    level = [scheme for scheme in inside or schemes if worth[scheme.name] > best - _LEVEL or not isfinite(best)]
    # Of schemes with equal scores, the one that spends least wins.
    winner = min(level, key=lambda scheme: scheme.energy_joules_mean)
    theirs = runs[schemes.index(winner)]
    seeds = {run.seed for run in theirs}
    rivals = [
        Rival(
            name=scheme.name,
            difference=paired_difference(mine, theirs) if seeds & {run.seed for run in mine} else None,
            over_budget=over_budget(scheme),
        )
        for scheme, mine in zip(schemes, runs, strict=True)
        if scheme is not winner
    ]
    rivals.sort(key=lambda rival: -_worth(sign * rival.difference.mean) if rival.difference else inf)
    return Verdict(
        winner=winner,
        level=[scheme.name for scheme in level if scheme is not winner],
        within_budget=bool(inside),
        rivals=rivals,
        has_kept_share=has_kept_share(schemes),
    )


def _worth(score: float) -> float:
    """A score for ranking; NaN, from a diverged run, comes last."""
    return score if isfinite(score) else -inf


def headline(verdict: Verdict) -> str:
    winner, metric = verdict.winner, verdict.winner.metric
    score = score_text(metric, winner.score_mean, winner.score_ci95, unit=True)
    words, _ = metric_words_and_unit(metric)
    if not verdict.rivals:
        return f"{scheme_label(winner.name)} reaches {words} {score}"
    condition = "within the energy budget" if verdict.within_budget else "(all schemes exceeded the energy budget)"
    best = "best" if metric.better == "higher" else "lowest"
    names, verb = " and ".join(map(scheme_label, [winner.name, *verdict.level])), "share" if verdict.level else "has"
    return f"{names} {verb} the {best} {words} {condition}: {score}"


def details(verdict: Verdict) -> list[str]:
    winner, metric = verdict.winner, verdict.winner.metric
    lines = []
    spent, budget = winner.energy_joules_mean, winner.budget_joules
    delivers = f"delivers {100 * winner.kept_fraction_mean:.0f} % of an update per contact"
    lines.append(
        f"{scheme_label(winner.name)} spends {number_text(spent)} J of {number_text(budget)} J "
        f"({100 * spent / budget:.0f} %) and "
        f"{delivers if verdict.has_kept_share else f'sends {number_text(1e-6 * winner.bits_mean)} Mbit'}."
    )
    if verdict.one_seed:
        if verdict.rivals:
            lines.append(_sentence("Differences in this one world", metric, verdict.rivals))
        return lines
    for title, apart in (
        ("Significantly behind", True),
        (f"No significant difference to {scheme_label(winner.name)} with {winner.seeds} seeds", False),
    ):
        # Only schemes over the budget can be ahead of the winner.
        chosen = [rival for rival in verdict.rivals if rival.difference and rival.is_significant == apart]
        chosen = [rival for rival in chosen if not (apart and _ahead(metric, rival))]
        if chosen:
            lines.append(_sentence(title, metric, chosen))
    ahead = [rival for rival in verdict.rivals if rival.is_significant and _ahead(metric, rival)]
    if ahead:
        lines.append(
            _sentence(f"Significantly ahead of {scheme_label(winner.name)}, but over the budget", metric, ahead)
        )
    return lines


def study_headline(verdicts: Sequence[Verdict]) -> str:
    wins = Counter(scheme_label(verdict.winner.name) for verdict in verdicts)
    (name, times), points = wins.most_common(1)[0], len(verdicts)
    metric = verdicts[0].winner.metric
    best, words = "best" if metric.better == "higher" else "lowest", metric_words_and_unit(metric)[0]
    where = f"all {points} points" if times == points > 1 else f"{times} of {points} points"
    condition = " within the energy budget" if all(verdict.within_budget for verdict in verdicts) else ""
    return f"{name} has the {best} {words}{condition} at {where}"


def study_details(verdicts: Sequence[Verdict]) -> list[str]:
    wins = Counter(scheme_label(verdict.winner.name) for verdict in verdicts).most_common()
    lines = []
    if len(wins) > 1:
        lines.append(f"Best elsewhere: {', '.join(f'{name} ({times})' for name, times in wins[1:])}.")
    judged = [verdict for verdict in verdicts if verdict.rivals and not verdict.one_seed]
    if judged:
        clear = sum(beside(verdict) == _CLEAR for verdict in judged)
        lines.append(f"The lead over every other scheme is significant at {clear} of {len(judged)} points.")
    return lines


def beside(verdict: Verdict) -> str:
    """The lead of the winner over the others, as the end of a sentence."""
    ahead = [
        scheme_label(rival.name)
        for rival in verdict.rivals
        if rival.is_significant and not _ahead(verdict.winner.metric, rival)
    ]
    if not verdict.rivals or verdict.one_seed:
        return ""
    if len(ahead) == len(verdict.rivals):
        return _CLEAR
    if ahead:
        return f", significantly ahead of {', '.join(ahead)}; no significant difference to the others"
    return ", no significant difference to the others"


def score_text(metric: Metric, value: float, half_width: float | None, *, sign: str = "", unit: bool = False) -> str:
    scale, digits = (100, 1) if metric.percent else (1, 3)
    interval = "" if half_width is None else f" ± {scale * half_width:.{digits}f}"
    # Avoid a minus sign before zeros.
    number = f"{round(scale * value, digits) + 0.0:{sign}.{digits}f}".replace("-", _MINUS)
    return f"{number}{interval}{' ' + metric_words_and_unit(metric)[1] if unit else ''}".rstrip()


def _ahead(metric: Metric, rival: Rival) -> bool:
    if rival.difference is None:
        return False
    return rival.difference.mean > 0 if metric.better == "higher" else rival.difference.mean < 0


def _sentence(title: str, metric: Metric, rivals: Sequence[Rival]) -> str:
    listed = [
        f"{scheme_label(rival.name)} ({score_text(metric, rival.difference.mean, rival.difference.ci95, sign='+')}"
        f"{', over the budget' if rival.over_budget else ''})"
        for rival in rivals
        if rival.difference
    ]
    points = " percentage points" if metric.percent else ""
    return f"{title}: {', '.join(listed)}{points}."
