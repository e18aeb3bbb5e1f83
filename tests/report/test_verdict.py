from __future__ import annotations

import pytest

from wayfare.learning.tasks import Metric
from wayfare.learning.tasks.base import ACCURACY
from wayfare.records import RunSummary, summarise_scheme
from wayfare.report.tables import comparison_columns, comparison_notes
from wayfare.report.verdict import beside, details, headline, score_text, study_details, study_headline, verdict_of

ADE = Metric(name="ade_m", better="lower")


def runs(
    name: str,
    scores: list[float],
    energy_joules: float = 90.0,
    metric: Metric = ACCURACY,
    parameters: int = 1000,
    sums: int = 0,
) -> list[RunSummary]:
    return [
        RunSummary(
            scheme=name,
            energy_rule="queue",
            seed=seed,
            metric=metric,
            score=score,
            energy_joules=energy_joules,
            budget_joules=100.0,
            kept_fraction=0.4,
            uploads_per_device=5.0,
            failed_uploads_per_device=0.0,
            staleness_rounds=9.0,
            contacts=9,
            parameters=parameters,
            sums=sums,
            bits=3.2e7,
        )
        for seed, score in enumerate(scores)
    ]


def test_the_best_scheme_within_the_budget_wins() -> None:
    verdict = verdict_of(
        [
            runs("mads", [0.70, 0.72, 0.71]),
            runs("lavish", [0.80, 0.82, 0.81], energy_joules=300.0),
            runs("poor", [0.50, 0.52, 0.51]),
        ]
    )
    assert headline(verdict) == "MADS has the best accuracy within the energy budget: 71.0 ± 2.5 %"
    text = " ".join(details(verdict))
    assert (
        "Significantly ahead of MADS, but over the budget: lavish (+10.0 ± 0.0, over the budget) percentage points."
        in text
    )
    assert "Significantly behind: poor (\u221220.0 ± 0.0) percentage points." in text


def test_little_energy_is_not_called_none() -> None:
    (line, *_) = details(verdict_of([runs("mads", [0.7, 0.8], energy_joules=0.25)]))
    assert line.startswith("MADS spends 0.25 J of 100 J ")


def test_updates_of_different_sizes_are_compared_by_bits() -> None:
    statistics, mads = runs("statistics", [0.7, 0.8], parameters=9000), runs("mads", [0.5, 0.6])
    (alone, *_), (line, *_) = (details(verdict_of(each)) for each in ([mads], [statistics, mads]))
    assert alone.endswith("and delivers 40 % of an update per contact.")
    assert line == "Statistics spends 90 J of 100 J (90 %) and sends 32 Mbit."
    schemes = [summarise_scheme(one) for one in (statistics, mads)]
    columns = {column.heading: column.cells for column in comparison_columns(schemes, [statistics, mads])}
    assert columns["sent\nMbit"] == ["32", "32"]
    assert "kept\n%" not in columns
    assert [note.term for note in comparison_notes(schemes, 1, {})].count("sent") == 1


@pytest.mark.parametrize("names", [["statistics"], ["statistics", "statistics:lda"]])
def test_class_statistics_are_sent_once_and_have_no_kept_share(names: list[str]) -> None:
    found = [runs(name, [0.7, 0.8], sums=1000) for name in names]
    assert details(verdict_of(found))[0].endswith("and sends 32 Mbit.")
    schemes = [summarise_scheme(one) for one in found]
    assert "sent\nMbit" in [column.heading for column in comparison_columns(schemes, found)]
    (note,) = [note for note in comparison_notes(schemes, 1, {}) if note.term in ("sent", "kept")]
    assert str(note) == "sent: by all devices"


def test_what_seeds_do_not_tell_apart_is_not_called_a_win() -> None:
    verdict = verdict_of([runs("mads", [0.70, 0.60, 0.80]), runs("other", [0.60, 0.65, 0.70])])
    assert not verdict.rivals[0].is_significant
    assert "No significant difference to MADS with 3 seeds: other (\u22125.0 ± 21.5" in " ".join(details(verdict))
    assert beside(verdict) == ", no significant difference to the others"


def test_schemes_with_equal_digits_share_the_place_and_the_thrifty_one_is_named_first() -> None:
    verdict = verdict_of([runs("paced", [0.70004, 0.72], energy_joules=99.0), runs("mads", [0.70, 0.72])])
    assert headline(verdict).startswith("MADS and paced share the best accuracy")


def test_lower_is_better_for_an_error() -> None:
    verdict = verdict_of([runs("mads", [1.5, 1.6], metric=ADE), runs("other", [1.2, 1.3], metric=ADE)])
    assert headline(verdict).startswith("other has the lowest ADE within the energy budget: 1.250")
    assert beside(verdict) == ", significantly ahead of all others"


def test_one_seed_claims_nothing_beyond_itself() -> None:
    verdict = verdict_of([runs("mads", [0.7]), runs("other", [0.5])])
    assert verdict.one_seed
    assert "Differences in this one world: other (\u221220.0) percentage points." in details(verdict)
    assert beside(verdict) == ""


def test_a_lone_scheme_is_told_without_a_contest() -> None:
    assert headline(verdict_of([runs("mads", [0.7])])) == "MADS reaches accuracy 70.0 %"


def test_no_scheme_within_the_budget_is_said() -> None:
    verdict = verdict_of([runs("a", [0.7], 200.0), runs("b", [0.5], 300.0)])
    assert "(all schemes exceeded the energy budget)" in headline(verdict)


@pytest.mark.parametrize(("value", "text"), [(-0.0001, "+0.0"), (0.0, "+0.0"), (-0.012, "\u22121.2"), (0.5, "+50.0")])
def test_a_difference_of_zero_has_no_minus(value: float, text: str) -> None:
    assert score_text(ACCURACY, value, None, sign="+") == text


@pytest.mark.parametrize("metric", [ACCURACY, ADE])
def test_a_scheme_that_diverged_comes_last(metric: Metric) -> None:
    nan = float("nan")
    verdict = verdict_of([runs("gone", [nan, 0.1], metric=metric), runs("mads", [0.7, 0.8], metric=metric)])
    assert verdict.winner.name == "mads"
    assert [rival.is_significant for rival in verdict.rivals] == [False]
    alone = verdict_of([runs("gone", [nan], metric=metric)])
    assert "nan" in headline(alone)


def test_only_seeds_that_all_schemes_have_count() -> None:
    verdict = verdict_of([runs("mads", [0.8, 0.8, 0.2]), runs("poor", [0.7, 0.7])])
    assert (verdict.winner.name, verdict.winner.seeds) == ("mads", 2)


def test_the_headline_of_a_study_is_a_sentence_about_all_points() -> None:
    clear = verdict_of([runs("mads", [0.8, 0.81, 0.82]), runs("afl", [0.5, 0.51, 0.52])])
    close = verdict_of([runs("mads", [0.8, 0.7, 0.9]), runs("afl", [0.81, 0.69, 0.89])])
    lost = verdict_of([runs("mads", [0.5, 0.51, 0.52]), runs("afl", [0.8, 0.81, 0.82])])
    assert study_headline([clear, close]) == "MADS has the best accuracy within the energy budget at all 2 points"
    assert study_headline([clear, close, lost]).endswith(" the best accuracy within the energy budget at 2 of 3 points")
    assert study_details([clear, close, lost]) == [
        "Best elsewhere: AFL (1).",
        "The lead over every other scheme is significant at 2 of 3 points.",
    ]


def test_a_study_of_one_seed_claims_nothing_about_chance() -> None:
    assert study_details([verdict_of([runs("mads", [0.8]), runs("afl", [0.5])])]) == []
