"""One table of schemes; all of them pass the same tests."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import wayfare
from wayfare import Encounter, Link, Method, Upload
from wayfare.codec.widths import profile
from wayfare.control.rate_distortion import Profile
from wayfare.errors import ScenarioError
from wayfare.methods import descriptions, make_method, power_and_allowance
from wayfare.methods.servers import Mix
from wayfare.scenario.exchange import Mixing
from wayfare.scenario.model import Scenario
from wayfare.sparsify.spectrum import spectrum

CODED = ["mads-rd", "mads-rd:index", "mads-rd:values", "mads-rd:progressive"]
NAMES = ["mads", "optimal", *CODED] + [
    f"{name}{rule}"
    for name in (
        "afl-spar",
        "afl",
        "afl:fitting",
        "sfl-spar",
        "fedmobile",
        "fedmobile:billed",
        "fedmobile:fitting",
        "fedasync",
        "fedasync:constant",
        "fedasync:hinge",
        "fedasync:hinge:fitting",
    )
    for rule in ("", ":paced", ":unlimited")
]
LINK = Link(bandwidth_hz=15e3, max_power_watts=0.2, parameters=84_618, bits_per_entry=48.37, dense_bits=84_618 * 32.0)


@cache
def typical_profile() -> Profile:
    """Of an update as large as the link's model, with heavy tails."""
    values = np.random.default_rng(0).standard_t(4, LINK.parameters).astype(np.float32)
    return profile(spectrum(torch.from_numpy(values)))


def encounters(count: int = 400) -> list[Encounter]:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        round_, budget = int(rng.integers(1, 1001)), float(rng.uniform(1, 40))
        contact_s = float(rng.exponential(6))
        found.append(
            Encounter(
                contact_s=contact_s,
                gain_per_watt=float(10 ** rng.uniform(1, 9)),
                staleness_rounds=int(rng.integers(1, 100)),
                update_norm_sq=float(10 ** rng.uniform(-2, 4)),
                backlog_joules=float(rng.choice([0.0, rng.exponential(3)])),
                spent_joules=budget * float(rng.choice([0.0, rng.random(), 1.0])),
                budget_joules=budget,
                round=round_,
                rounds=1000,
                met_s=contact_s + float(rng.exponential(200)),
                profile=typical_profile,
            )
        )
    return found


def scheme(name: str) -> Method:
    return make_method(name, Scenario())


@pytest.mark.parametrize("name", NAMES)
class TestEveryScheme:
    def test_has_a_name_a_rule_and_a_description(self, name: str) -> None:
        found = scheme(name)
        assert found.name == name
        assert found.energy_rule in ("unlimited", "greedy", "paced", "queue")
        assert descriptions()[name.partition(":")[0]]

    def test_decides_the_same_for_the_same_encounter(self, name: str) -> None:
        for encounter in encounters(20):
            assert scheme(name).upload.decide(encounter, LINK) == scheme(name).upload.decide(encounter, LINK)

    def test_stays_within_power_time_and_size(self, name: str) -> None:
        for encounter in encounters():
            upload = scheme(name).upload.decide(encounter, LINK)
            assert 0 <= upload.power_watts <= LINK.max_power_watts * (1 + 1e-12)
            assert 0 <= upload.entries <= LINK.parameters
            capacity = encounter.contact_s * LINK.rate_bps(upload.power_watts, encounter.gain_per_watt)
            assert upload.bits <= capacity * (1 + 1e-9)
            assert upload.energy_joules >= 0
            assert upload.energy_joules <= upload.power_watts * encounter.contact_s * (1 + 1e-9)
            if not upload.completes:
                assert upload.entries == 0

    def test_energy_is_power_times_airtime(self, name: str) -> None:
        for encounter in encounters():
            upload = scheme(name).upload.decide(encounter, LINK)
            if upload.completes and upload.bits:
                airtime_s = upload.bits / LINK.rate_bps(upload.power_watts, encounter.gain_per_watt)
                assert upload.energy_joules == pytest.approx(upload.power_watts * airtime_s)

    def test_keeps_to_its_budget_if_it_has_a_wall(self, name: str) -> None:
        found = scheme(name)
        if found.energy_rule in ("greedy", "paced"):
            for encounter in encounters():
                left = encounter.budget_joules - encounter.spent_joules
                assert found.upload.decide(encounter, LINK).energy_joules <= left * (1 + 1e-9)

    def test_sends_nothing_in_no_time(self, name: str) -> None:
        for encounter in encounters(20):
            upload = scheme(name).upload.decide(replace(encounter, contact_s=0.0), LINK)
            assert (upload.entries, upload.energy_joules) == (0, 0.0)

    def test_more_time_never_delivers_less(self, name: str) -> None:
        for encounter in encounters(100):
            uploads = [
                scheme(name).upload.decide(replace(encounter, contact_s=factor * encounter.contact_s), LINK)
                for factor in (0.5, 1.0, 2.0)
            ]
            # With more bits there may be fewer entries, with wider values.
            delivered = [upload.bits if name in CODED else upload.entries for upload in uploads]
            if scheme(name).energy_rule != "paced":  # a longer contact spreads the same energy more thinly
                assert delivered == sorted(delivered)

    def test_decides_without_a_look_at_the_update(self, name: str) -> None:
        for encounter in encounters(20):
            upload = scheme(name).upload.decide(replace(encounter, profile=None), LINK)
            assert 0 <= upload.entries <= LINK.parameters


@pytest.mark.parametrize("name", ["mads", *CODED])
@pytest.mark.parametrize("field", ["staleness_rounds", "update_norm_sq"])
def test_mads_sends_more_when_more_is_at_stake(field: str, name: str) -> None:
    for encounter in encounters(100):
        larger = replace(encounter, **{field: 10 * getattr(encounter, field)})
        assert scheme(name).upload.decide(larger, LINK).bits >= scheme(name).upload.decide(encounter, LINK).bits


@pytest.mark.parametrize("name", ["mads", *CODED])
def test_mads_saves_when_it_is_ahead_of_its_pace(name: str) -> None:
    for encounter in encounters(100):
        later = replace(encounter, backlog_joules=encounter.backlog_joules + 5)
        assert (
            scheme(name).upload.decide(later, LINK).energy_joules
            <= scheme(name).upload.decide(encounter, LINK).energy_joules
        )


def test_each_step_beyond_mads_captures_more_of_the_update_with_the_same_weight() -> None:
    """Within the paper's own power, coding and widths capture more; with the true curve bits go where they count."""
    of, captured = typical_profile(), {}
    for name in ("mads", "mads-rd:index", "mads-rd:values"):
        shares = []
        for encounter in encounters(100):
            upload = scheme(name).upload.decide(encounter, LINK)
            lost = {width.value_bits: width.lost.mean() for width in of.widths}[upload.value_bits or 32]
            shares.append(float(np.interp(upload.entries, of.kept, of.captured)) * (1 - lost))
        captured[name] = float(np.mean(shares))
    assert captured["mads"] < captured["mads-rd:index"] < captured["mads-rd:values"]


def test_the_steps_choose_widths_as_their_names_say() -> None:
    for encounter in encounters(50):
        assert scheme("mads").upload.decide(encounter, LINK).value_bits is None
        assert scheme("mads-rd:index").upload.decide(encounter, LINK).value_bits in (None, 32)
        longer = scheme("mads-rd:progressive").upload.decide(encounter, LINK)
        plain = scheme("mads-rd").upload.decide(encounter, LINK)
        assert plain.max_entries is None
        assert longer.entries == plain.entries
        assert longer.entries == 0 or (longer.max_entries or 0) >= longer.entries


def test_a_paced_device_spends_its_budget_evenly() -> None:
    rng = np.random.default_rng(3)
    spent, met = 0.0, 0.0
    for round_ in range(1, 1001):
        if rng.random() < 0.06:
            contact_s = float(rng.exponential(6))
            met += contact_s
            encounter = replace(
                encounters(1)[0],
                contact_s=contact_s,
                spent_joules=spent,
                budget_joules=20.0,
                round=round_,
                rounds=1000,
                met_s=met,
            )
            power_watts, allowance_joules = power_and_allowance("paced", encounter, LINK)
            spent += min(power_watts * contact_s, allowance_joules)
            if round_ in range(480, 520):
                assert 7 < spent < 13
    assert 18 < spent <= 20 + 1e-9


def test_dense_uploads_are_all_or_nothing() -> None:
    outcomes = [scheme("afl:unlimited").upload.decide(encounter, LINK) for encounter in encounters()]
    assert {upload.entries for upload in outcomes} == {0, LINK.parameters}
    assert all(upload.completes == (upload.entries > 0) for upload in outcomes)
    assert any(not upload.completes and upload.energy_joules > 0 for upload in outcomes)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "madness",
            "unknown scheme; choose from mads, mads-rd, optimal, afl-spar, afl, fedmobile, fedasync, sfl-spar",
        ),
        ("", "schemes = '': unknown"),
        ("mads:greedy", "schemes = 'mads:greedy': takes no choices after its name"),
        ("mads-rd:fast", "takes one of :curve, :index, :values, :progressive"),
        ("mads-rd:index:values", "takes one of :curve, :index, :values, :progressive"),
        ("afl:fast", "one of :greedy, :paced, :unlimited"),
        ("afl:greedy:paced", "takes :fitting; one of :greedy, :paced, :unlimited"),
        ("afl:fitting:fitting", "takes :fitting; one of :greedy, :paced, :unlimited"),
        ("afl:hinge", "takes :fitting; one of :greedy, :paced, :unlimited"),
        ("afl:billed", "takes :fitting; one of :greedy, :paced, :unlimited"),
        ("afl-spar:fitting", "takes one of :greedy, :paced, :unlimited"),
        (
            "fedasync:square",
            "takes one of :polynomial, :constant, :hinge; :fitting; one of :greedy, :paced, :unlimited",
        ),
        ("fedasync:hinge:constant", "takes one of :polynomial, :constant, :hinge"),
        ("fedasync:paced:greedy", "one of :greedy, :paced, :unlimited"),
        ("fedmobile:", "takes :billed; :fitting; one of :greedy, :paced, :unlimited"),
        ("afl:queue", "one of :greedy, :paced, :unlimited"),
    ],
)
def test_unknown_schemes_and_rules_are_refused(name: str, message: str) -> None:
    with pytest.raises(ScenarioError) as refusal:
        scheme(name)
    assert message in str(refusal.value)


def test_the_default_rule_may_be_written_out() -> None:
    assert scheme("afl:greedy").name == "afl"
    assert scheme("mads-rd:curve") == scheme("mads-rd")
    assert scheme("fedasync:polynomial:greedy") == scheme("fedasync")


def test_choices_come_in_any_order_and_give_one_name() -> None:
    assert scheme("fedasync:paced:hinge").name == "fedasync:hinge:paced"
    assert scheme("fedasync:paced:hinge") == scheme("fedasync:hinge:paced")


def test_the_weight_of_a_model_falls_with_its_age() -> None:
    mixing = Mixing(weight=0.8, polynomial_exponent=0.5, hinge_rounds=4, hinge_slope=10.0)
    ages = [1, 3, 4, 5, 8, 99]
    expected = {
        "fedasync:constant": [0.8] * 6,
        "fedasync": [0.8 / 2**0.5, 0.4, 0.8 / 5**0.5, 0.8 / 6**0.5, 0.8 / 3, 0.08],
        "fedasync:hinge": [0.8, 0.8, 0.8, 0.8 / 11, 0.8 / 41, 0.8 / 951],
    }
    for name, weights in expected.items():
        rule = make_method(name, Scenario(mixing=mixing)).server
        assert isinstance(rule, Mix)
        assert [rule.weight(age) for age in ages] == pytest.approx(weights)


def test_only_fedasync_mixes_and_only_fedmobile_relays() -> None:
    for name in NAMES:
        assert (scheme(name).server.takes == "models") == name.startswith("fedasync")
        assert (scheme(name).peers is not None) == name.startswith("fedmobile")


class Whisper(wayfare.UploadRule):
    """A scheme of a user."""

    name = "whisper"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        return wayfare.send_top_k(encounter, link, 0.01 * link.max_power_watts)


def test_a_users_scheme_can_be_offered_as_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offer:
        name = "whisper"

        @staticmethod
        def load() -> type[Whisper]:
            return Whisper

    monkeypatch.setattr("wayfare.methods.registry.entry_points", lambda group: [Offer])
    assert isinstance(scheme("whisper").upload, Whisper)
    assert descriptions()["whisper"] == "A scheme of a user."


def test_what_is_no_method_is_refused_before_a_run_begins() -> None:
    with pytest.raises(ScenarioError, match=r"^schemes = 'object': is not a method: give a name, an UploadRule"):
        wayfare.run(wayfare.load(), object())  # type: ignore[arg-type]
    nameless = type("Nameless", (wayfare.UploadRule,), {"decide": lambda self, encounter, link: None})
    with pytest.raises(ScenarioError, match="your own upload rule needs a `name`"):
        wayfare.run(wayfare.load(), nameless())


def test_an_allowance_limits_the_airtime() -> None:
    encounter = replace(encounters(1)[0], contact_s=10.0, gain_per_watt=1e6)
    upload = wayfare.send_top_k(encounter, LINK, 0.2, allowance_joules=0.5)
    assert upload.energy_joules == pytest.approx(0.5, rel=1e-3)
    assert wayfare.send_top_k(encounter, LINK, 0.2, allowance_joules=0.0).entries == 0
    assert math.isclose(wayfare.send_dense(encounter, LINK, 0.2, allowance_joules=0.1).energy_joules, 0.1)
