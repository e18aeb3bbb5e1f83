"""The tables of methods and parts: what each row makes, costs and says of itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import wayfare
from wayfare.errors import ScenarioError
from wayfare.methods import choices_of, descriptions, make_method, part_descriptions
from wayfare.methods.mads_rd import MadsRd
from wayfare.methods.parts import LocalRule, PeerRule
from wayfare.methods.published.qsgd import Qsgd
from wayfare.methods.published.random_k import RandomK
from wayfare.methods.registry import KINDS, PARTS, TABLE, part_class
from wayfare.methods.servers import Mix
from wayfare.methods.uploads import Fitting, Whole
from wayfare.radio import Link

SCENARIO = wayfare.load("fashion-small")
LINK = Link(
    bandwidth_hz=1e3,
    max_power_watts=0.2,
    parameters=1000,
    bits_per_entry=42.0,
    dense_bits=32_100.0,
    statistics_bits=100.0,
)
# Of each method the parts that are not those of Algorithm 1.
OWN = {
    "mads": {},
    "mads-rd": {},
    "optimal": {},
    "afl-spar": {},
    "afl": {},
    "fedmobile": {"peers": "PeerRule"},
    "fedasync": {"server": "Mix"},
    "sfl-spar": {},
    "statistics": {"local": "ClassStatistics", "server": "AddSums"},
    "fedbuff": {"server": "Buffer"},
    "staleness-weighted": {"server": "StalenessWeights"},
    "ca2fl": {"server": "CalibratedBuffer"},
    "fadas": {"server": "AdaptiveBuffer"},
    "scaffold": {"server": "ControlVariates", "local": "Corrected"},
    "feddyn": {"server": "DynamicServer", "local": "DynamicRegulariser"},
    "ef21-sgdm": {"memory": "Ef21", "server": "Estimates"},
    "dgc": {"memory": "MomentumCorrection"},
    "random-k": {"compressor": "RandomK"},
    "threshold": {"compressor": "Threshold"},
    "qsgd": {"compressor": "Qsgd", "memory": "Forgetting"},
    "mobility-aware": {},
}
PLAIN = {"compressor": "TopK", "memory": "ErrorFeedback", "local": "LocalRule", "server": "Add"}


def test_every_method_of_the_table_is_made_of_its_parts() -> None:
    assert list(OWN) == list(TABLE)
    for name, own in OWN.items():
        found = {kind: type(part).__name__ for kind, part in make_method(name, SCENARIO).parts.items()}
        found.pop("upload")
        assert found == PLAIN | own, name


@pytest.mark.parametrize(
    ("name", "upload"),
    [
        ("optimal", Fitting("unlimited")),
        ("afl-spar", Fitting("greedy")),
        ("afl-spar:paced", Fitting("paced")),
        ("afl", Whole("greedy", fitting=False)),
        ("afl:fitting:unlimited", Whole("unlimited", fitting=True)),
        ("fedbuff:fitting", Whole("greedy", fitting=True)),
        ("mads-rd", MadsRd(SCENARIO.control, step="curve")),
        ("mads-rd:index", MadsRd(SCENARIO.control, step="index")),
    ],
)
def test_choices_after_a_name_are_those_of_its_upload_rule(name: str, upload: object) -> None:
    assert make_method(name, SCENARIO).upload == upload


def test_choices_of_other_parts() -> None:
    assert make_method("sfl-spar", SCENARIO).local == LocalRule(trains_between_contacts=False)
    assert make_method("fedasync:hinge", SCENARIO).server == Mix("hinge", SCENARIO.mixing)
    free, billed = (make_method(name, SCENARIO).peers for name in ("fedmobile", "fedmobile:billed"))
    assert free == PeerRule(SCENARIO.relays)
    assert free != billed
    assert choices_of("afl") == [["fitting"], ["greedy", "paced", "unlimited"]]
    assert (choices_of("mads"), choices_of("mine")) == ([], [])


def test_the_first_line_of_a_part_tells_what_it_is() -> None:
    found = part_descriptions()
    assert set(found) == set(PARTS)
    for name, (kind, line) in found.items():
        part = part_class(name)
        assert issubclass(part, KINDS[kind])
        assert (part.__doc__ or "").startswith(line)
        assert len(line) > 20
    # Two lines of its own or more have the others.
    assert sum("\n" in (part_class(name).__doc__ or "") for name in PARTS) > 3
    assert descriptions()["mads"].startswith("MADS: ")


@pytest.mark.parametrize(("strength", "works"), [(0.0, False), (0.01, True), (1.0, True)])
def test_feddyn_needs_a_strength(strength: float, works: bool) -> None:
    text = f"feddyn + dynamic-regulariser(strength={strength})"
    if works:
        assert make_method(text, SCENARIO).local.pull() == strength
        return
    with pytest.raises(ScenarioError, match="strength above 0"):
        make_method(text, SCENARIO)


@pytest.mark.parametrize(("levels", "width"), [(1, 2), (3, 3), (4, 4), (7, 4), (8, 5), (127, 8)])
@pytest.mark.parametrize("bucket", [100, 512, 1000])
def test_qsgd_costs_a_norm_for_each_bucket_and_a_width_for_each_value(levels: int, width: int, bucket: int) -> None:
    priced = Qsgd(levels, bucket).priced(LINK)
    norms = -(-1000 // bucket)
    assert priced.dense_bits == 1000 * width + 32 * norms + 100
    assert priced.bits_per_entry == pytest.approx(width + 32 / bucket + math.log2(1000))
    assert priced.statistics_bits == 132.0
    assert replace(priced, dense_bits=0.0, bits_per_entry=1.0, statistics_bits=0.0) == replace(
        LINK, dense_bits=0.0, bits_per_entry=1.0, statistics_bits=0.0
    )


def test_random_k_costs_values_and_one_key() -> None:
    priced = RandomK().priced(LINK)
    assert priced.bits_per_entry == pytest.approx(42.0 - math.log2(1000))
    assert (priced.statistics_bits, priced.dense_bits) == (164.0, 32_100.0)


def test_which_compressors_send_the_largest_entries_as_they_are() -> None:
    sends = {name: make_method(name, SCENARIO).compressor.sends_largest for name in ("afl", "threshold")}
    assert sends == {"afl": True, "threshold": True}
    assert not make_method("random-k", SCENARIO).compressor.sends_largest
    assert not make_method("qsgd", SCENARIO).compressor.sends_largest
