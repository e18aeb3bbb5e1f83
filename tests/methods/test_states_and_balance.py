"""States of parts as trees, what a server has taken so far, and which parts object to which."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.test_published_servers import ENTRIES, TERMS, dense, uploads

import wayfare
from wayfare.errors import ScenarioError
from wayfare.methods import ServerRule, make_method
from wayfare.methods.published.ca2fl import CalibratedBuffer
from wayfare.methods.published.ef21_sgdm import Estimates
from wayfare.methods.published.fadas import AdaptiveBuffer
from wayfare.methods.published.fedbuff import Buffer
from wayfare.methods.published.feddyn import DynamicServer
from wayfare.methods.published.staleness_weighted import StalenessWeights
from wayfare.methods.servers import Add, Mix, Optimise
from wayfare.methods.states import mapped, same_kind, same_state, vectors_of
from wayfare.scenario.server import Server


@pytest.mark.parametrize(
    "rule",
    [
        Add(),
        Optimise(Server(optimizer="sgd", step=0.4)),
        Optimise(Server(optimizer="momentum", momentum=0.6, step=0.3)),
        Buffer(size=3, step=0.7),
        DynamicServer(),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_model_and_state_tell_the_sum_of_all_updates(rule: ServerRule) -> None:
    model = torch.linspace(-1, 1, ENTRIES, dtype=torch.float64)
    state = rule.init(model, TERMS)
    before = rule.taken(model, state, TERMS)
    assert before is not None
    total = np.zeros(ENTRIES)
    for arrivals in uploads(2):
        if arrivals:
            model, state = rule.apply(model, state, arrivals, TERMS)
        total += sum((dense(arrival) for arrival in arrivals), np.zeros(ENTRIES))
        after = rule.taken(model, state, TERMS)
        assert after is not None
        np.testing.assert_allclose((after - before).numpy(), total, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [
        Optimise(Server(optimizer="adam")),
        Mix(),
        AdaptiveBuffer(),
        CalibratedBuffer(),
        StalenessWeights(),
        Estimates(),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_other_rules_do_not_tell_the_sum(rule: ServerRule) -> None:
    model = torch.zeros(ENTRIES)
    assert rule.taken(model, rule.init(model, TERMS), TERMS) is None


TREE = {"count": 3, "share": 0.5, "mean": torch.tensor([1.0, 2.0]), "own": {"7": torch.tensor([4.0]), "n": 1}}


def test_a_tree_is_changed_vector_by_vector() -> None:
    found = mapped({**TREE, "computed": np.float64(2.5)}, lambda vector: 2 * vector)
    assert (found["count"], found["share"], found["own"]["n"], found["computed"]) == (3, 0.5, 1, 2.5)
    assert type(found["computed"]) is float
    assert (found["mean"].tolist(), found["own"]["7"].tolist()) == ([2.0, 4.0], [8.0])
    assert [name for name, _ in vectors_of({**TREE, "computed": np.float64(2.5)})] == ["mean", "own.7"]


@pytest.mark.parametrize(
    ("change", "same", "kind"),
    [
        ({}, True, True),
        ({"count": 4}, False, True),
        ({"mean": torch.tensor([1.0, 3.0])}, False, True),
        ({"mean": torch.tensor([1.0, 2.0, 3.0])}, False, False),
        ({"mean": torch.tensor([1, 3])}, False, False),
        ({"own": {"7": torch.tensor([5.0]), "n": 1}}, False, True),
        ({"own": {"7": torch.tensor([4.0, 1.0]), "n": 1}}, False, False),
        ({"own": {"8": torch.tensor([4.0]), "n": 1}}, False, True),
        ({"other": 1}, False, False),
    ],
)
def test_trees_are_the_same_or_of_one_kind(change: dict[str, object], same: bool, kind: bool) -> None:
    other = {**TREE, **change}
    assert (same_kind(TREE, other), same_kind(other, TREE)) == (kind, kind)
    assert same_state(TREE, other) == same


@pytest.mark.parametrize("setting", ["prox=0.1", "clip_norm=1.0", "weight_decay=0.1", "momentum=0.9"])
def test_gradients_are_derived_from_plain_steps_only(setting: str) -> None:
    with pytest.raises(ScenarioError, match="derives gradients from updates"):
        make_method(f"scaffold + corrected({setting})", wayfare.load("fashion-small"))
    assert make_method("scaffold + corrected(steps_per_round=2)", wayfare.load("fashion-small")).local.corrects


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("fedasync", ["server.weighting=samples"], "mixes models and has no updates to weight"),
        ("fedmobile", ["server.weighting=samples"], "relays sums of several devices' updates"),
        ("scaffold", ["server.weighting=samples"], "corrects gradients with equal weights"),
        ("scaffold", ["learning.local_loss=prox"], "derives gradients from updates"),
        ("fedasync", ["server.step=0.5"], r"server.step = 0.5: fedasync mixes models"),
        ("fedbuff", ["server.optimizer=adam"], r"server.optimizer = 'adam': fedbuff has its own server rule"),
    ],
)
def test_settings_of_the_server_that_a_method_cannot_use(name: str, settings: list[str], reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        make_method(name, wayfare.load("fashion-small", settings))
    assert make_method("afl", wayfare.load("fashion-small", settings)).name == "afl"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("afl:paced:greedy", "one of :greedy"),
        ("afl:", "takes"),
        ("mads:paced", "takes no choices after its name"),
        ("mads-rd:paced", "one of :curve"),
    ],
)
def test_a_name_takes_one_choice_of_each_group(text: str, refused: str) -> None:
    with pytest.raises(ScenarioError, match=refused):
        make_method(text, wayfare.load("fashion-small"))
