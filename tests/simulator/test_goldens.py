"""Small runs of every scheme against their goldens: to the bit where numbers are rounded alike, roughly elsewhere.

The summary at the end of a test run says which comparison was made. ``WAYFARE_GOLDENS=exact`` makes it a failure if
runs could not be compared to the bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import pytest

from tests.simulator import goldens
from tests.simulator.golden_cases import CASES
from tests.simulator.numerics import description, fingerprint

Note = Callable[[str, object], None]


@cache
def golden_file() -> goldens.Golden:
    return goldens.read()


def test_there_is_a_golden_of_every_case_and_no_other() -> None:
    assert list(golden_file()["cases"]) == list(CASES)


def test_numbers_are_rounded_as_in_the_goldens_where_that_is_asked_for() -> None:
    known = golden_file()["machines"]
    if os.environ.get("WAYFARE_GOLDENS") == "exact":
        assert fingerprint() in known, f"this is {description()}; goldens are of {', '.join(known.values())}"


@pytest.mark.parametrize("name", CASES, ids=list(CASES))
def test_a_run_repeats_its_golden(name: str, record_property: Note) -> None:
    golden, found, machine = golden_file()["cases"][name], goldens.run(CASES[name]), fingerprint()
    if machine in golden["hashes"]:
        record_property("goldens", "compared to the bit")
        differences = goldens.exact_differences(golden, found, machine)
    else:
        record_property("goldens", f"compared roughly: numbers are rounded differently here ({description()})")
        differences = goldens.rough_differences(golden, found)
    assert not differences, "\n".join([name, *differences])


@pytest.mark.parametrize("name", ["mads stacked", "mads-rd reference", "fedmobile:paced stacked"])
def test_rounding_passes_the_rough_comparison_and_fails_the_exact_one(name: str) -> None:
    golden, case = golden_file()["cases"][name], CASES[name]
    shaken = goldens.run(case, case.shaken_world(goldens.SHAKES + 1))
    assert not goldens.rough_differences(golden, shaken)
    for machine in golden["hashes"]:
        assert goldens.exact_differences(golden, shaken, machine)


def test_another_scheme_fails_the_rough_comparison() -> None:
    for name, other in (("mads stacked", "mads control.variant=printed stacked"), ("afl stacked", "afl:paced stacked")):
        assert goldens.rough_differences(golden_file()["cases"][name], goldens.run(CASES[other]))
