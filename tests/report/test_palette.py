"""Colours and dashes of schemes."""

from __future__ import annotations

from wayfare.report.palette import look_of


def test_methods_of_ones_own_have_colours_that_nobody_else_on_the_page_has() -> None:
    names = ["mads", "mine", "afl", "mads + decay(share=0.5)", "fedbuff"]
    looks = [look_of(name, names) for name in names]
    assert len({look.light for look in looks}) == len(names)
    assert all(look.dash == "solid" for look in looks)


def test_no_two_of_many_look_alike() -> None:
    names = ["mads", "optimal", *(f"own-{number}" for number in range(14))]
    looks = [look_of(name, names) for name in names]
    assert len({(look.light, look.dash) for look in looks}) == len(names)
