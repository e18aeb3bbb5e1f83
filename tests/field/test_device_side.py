"""One contact and one burst of a device in the field, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import wayfare
from tests.field.parts import (
    INITIAL,
    LAYOUT,
    LINK,
    METHOD,
    MIXING,
    REMEMBERING,
    Fixed,
    cut,
    noise,
    open_outbox,
    terms_with,
    train,
)
from tests.field.test_outbox import everything
from wayfare.engine import Burst, Engine
from wayfare.errors import DivergenceError, InvariantError, RunFolderError
from wayfare.field.runtime.exchange import Exchanger
from wayfare.field.runtime.guide import ByExperience, Occasion
from wayfare.field.runtime.messages import joined, unpack
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.stores import check_identity
from wayfare.field.runtime.trainer import LocalTrainer
from wayfare.field.runtime.work import Work
from wayfare.methods import LocalRule, Method
from wayfare.scenario import Scenario

OCCASION = Occasion(round=1, contact_s=1.0, gain_per_watt=1e3, chunk_bytes=300)


def meet(outbox: Outbox, method: Method, occasion: Occasion = OCCASION) -> list[float]:
    """Cut an update; the power that the radio was told to use."""
    powers: list[float] = []
    radio = Radio(terms=terms_with(method), set_power_watts=powers.append)
    Exchanger(SimpleNamespace(device_end=lambda name: None), "bus", outbox, ByExperience(LINK), radio, LAYOUT)._cut(
        occasion, 1
    )  # type: ignore[arg-type]
    return powers


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (replace(METHOD, upload=Fixed(1000)), "entries = 1000, must be 0 to 300 parameters"),
        (replace(MIXING, upload=Fixed(200)), "entries = 200, must be 0 or all if the server mixes models"),
    ],
)
def test_a_decision_that_cannot_be_is_refused_and_changes_nothing(method: Method, rule: str, tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    before = everything(outbox)
    with pytest.raises(InvariantError, match=f"round 1, device 4, scheme fixed: {rule}"):
        meet(outbox, method, replace(OCCASION, device=4))
    assert everything(outbox) == before


def test_an_update_that_diverged_is_not_sent(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    outbox.trained(outbox.local, outbox.local * torch.inf, 1)
    with pytest.raises(DivergenceError, match="the update of device 0"):
        meet(outbox, METHOD)


def test_what_is_cut_is_the_update_or_the_model_that_the_server_rule_takes(tmp_path: Path) -> None:
    for method in (METHOD, replace(MIXING, upload=Fixed(LAYOUT.parameters))):
        outbox = open_outbox(tmp_path / method.server.takes, method=method)
        train(outbox, 1, 1)
        change = outbox.state.received - outbox.local
        assert meet(outbox, method) == [0.1]
        sent = joined([unpack(data, LAYOUT).entries for _, data in outbox.pending(1)])
        whole = change if method.server.takes == "updates" else outbox.local
        assert torch.equal(sent.values, whole[sent.indices])
        assert outbox.state.contacts == 1


class Noting(Engine):
    """An engine that notes its bursts and learns a constant."""

    def __init__(self) -> None:
        self.bursts: list[Burst] = []

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        self.bursts += bursts
        for model, burst in zip(models, bursts, strict=True):
            model.add_(1.0)
            if burst.velocity is not None:
                burst.velocity.add_(1.0)


def test_training_is_pulled_towards_the_last_model_also_while_an_upload_is_on_its_way(tmp_path: Path) -> None:
    outbox, engine = open_outbox(tmp_path), Noting()
    trainer = LocalTrainer(outbox, engine, 4, ByExperience(LINK, steps=60), terms_with(METHOD))
    trainer._burst()
    cut(outbox, outbox.progress.trained_round)
    assert not torch.equal(outbox.state.received, INITIAL)
    assert trainer._burst() is False
    outbox.progress = replace(outbox.progress, trained_round=50)
    trainer._burst()
    assert [burst.received is INITIAL for burst in engine.bursts] == [True, True]
    outbox.settle(1, range(9))
    model = noise(5)
    outbox.receive(model, 1, 55)
    outbox.progress = replace(outbox.progress, trained_round=50)
    trainer._burst()
    assert engine.bursts[-1].received is model
    assert {burst.device for burst in engine.bursts} == {4}


def test_gradients_are_corrected_as_the_local_rule_says(tmp_path: Path) -> None:
    outbox, engine = open_outbox(tmp_path, method=REMEMBERING), Noting()
    trainer = LocalTrainer(outbox, engine, 0, ByExperience(LINK, steps=100), terms_with(REMEMBERING))
    trainer._burst()
    cut(outbox, 100, method=REMEMBERING)
    outbox.progress = replace(outbox.progress, trained_round=50)
    trainer._burst()
    first, second = (burst.correction for burst in engine.bursts)
    assert not first.any()
    assert torch.equal(second, outbox.state.local_state["delivered"])


def test_momentum_goes_on_until_a_model_comes(tmp_path: Path) -> None:
    method, engine = replace(METHOD, local=LocalRule(momentum=0.9)), Noting()
    outbox = open_outbox(tmp_path, method=method)
    trainer = LocalTrainer(outbox, engine, 0, ByExperience(LINK), terms_with(method), step_every_s=1.0)
    for count in (1.0, 2.0):
        trainer._burst()
        assert torch.equal(outbox.velocity, torch.full_like(INITIAL, count))
        # It outlives the process.
        outbox.close()
        outbox = open_outbox(tmp_path, method=method)
        trainer._outbox = outbox
    assert trainer._burst()
    start, velocity = outbox.local, outbox.velocity
    outbox.receive(noise(5), 1, 3)
    assert not outbox.velocity.any()
    # A burst that began before it brings its way along, and not its momentum.
    outbox.trained(start, start + 1, 4, velocity)
    assert not outbox.velocity.any()
    assert open_outbox(tmp_path / "another").velocity is None


def test_a_store_goes_on_only_with_the_method_it_was_begun_with(tmp_path: Path) -> None:
    mine = tmp_path / "mine_in_the_field.py"
    mine.write_text(
        "from wayfare import Encounter, Link, Upload, send_top_k\nfrom wayfare.methods import UploadRule\n"
        "class Mine(UploadRule):\n    name = 'mine'\n"
        "    def decide(self, encounter: Encounter, link: Link) -> Upload:\n"
        "        return send_top_k(encounter, link, 0.1)\n",
        encoding="utf-8",
    )
    names = ["mads", "mads-rd", "mads + decay", "mads + decay(share=0.5)", "afl", "fedasync", "fedasync:hinge"]
    works = [Work(scenario=Scenario(), scheme_name=name) for name in (*names, f"{mine}:Mine")]
    identities = [work.identity("fleet", "bus-1") for work in works]
    assert len({str(identity) for identity in identities}) == len(works)
    assert Work(scenario=Scenario(), scheme_name="m = mads + decay").identity("fleet", "bus-1") == identities[2]
    assert Work(scenario=Scenario()).identity("fleet", "bus-2") != identities[0]
    with pytest.raises(RunFolderError, match=r"method\.memory\.values\.share: 0\.9 -> 0\.5"):
        check_identity(tmp_path, identities[2], identities[3])
    # A setting that another version does not know has its default.
    newer = {**identities[2], "method": {**identities[2]["method"], "peers": {"class": "new"}}}
    check_identity(tmp_path, identities[2], newer)
    mine.write_text(mine.read_text(encoding="utf-8").replace("0.1", "0.2"), encoding="utf-8")
    assert works[len(names)].identity("fleet", "bus-1") != identities[len(names)]


def test_task_parts_and_seed_must_be_as_on_the_server_and_values_and_the_guard_need_not() -> None:
    usual = Work(scenario=Scenario()).agreement

    def differing(**changes: Any) -> list[str]:
        found = Work(**{"scenario": wayfare.load(overrides=["learning.batch_size=7"]), **changes}).agreement
        return [name for name, digest in found.items() if usual[name] != digest]

    assert differing() == []
    assert differing(scheme_name="mads + guard(clip=3)") == []
    assert differing(guard=None) == []
    assert differing(scheme_name="fedasync") == ["scheme"]
    assert differing(scheme_name="mads + decay") == ["scheme"]
    assert differing(seed=1) == ["seed"]
    assert differing(scenario=wayfare.load(overrides=["learning.task=cifar10"])) == ["task"]


def test_updates_on_another_backbone_are_of_another_model(tmp_path: Path) -> None:
    layouts = []
    for weight in (0.1, 0.2):
        file = tmp_path / f"backbone_{weight:g}.py".replace("0.", "")
        layers = f"nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.PReLU(init={weight})"
        file.write_text(f"from torch import nn\n\ndef backbone():\n    return nn.Sequential({layers})\n")
        scenario = wayfare.load(overrides=["learning.task=cifar10", f"learning.backbone={file}"])
        layouts.append(Work(scenario=scenario).layout)
    assert layouts[0].parameters == layouts[1].parameters
    assert layouts[0].model_id != layouts[1].model_id
