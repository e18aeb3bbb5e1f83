"""Relays on contacts by hand: what each device carries, and what the server gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import wayfare
from tests.conftest import SMALL
from tests.simulator.test_relays import LINK, simulate, simulation, steps
from tests.simulator.test_simulator import Notes
from wayfare import device as devices
from wayfare.device import DeviceState, Meeting, Terms
from wayfare.errors import ScenarioError
from wayfare.methods import make_method
from wayfare.mobility import SERVER
from wayfare.scenario import Scenario
from wayfare.world import draw_world

HEAD = "start_s,end_s,a,b,distance_m\n"


def list_of(tmp_path: Path, lines: Sequence[str], *overrides: str) -> Scenario:
    """Devices 0, 1, 2 and a server, on contacts by hand; rounds of 10 s."""
    file = tmp_path / "contacts.csv"
    header = "# wayfare contact plan: devices=3 server=server duration_s=100\n"
    file.write_text(header + HEAD + "\n".join(lines) + "\n")
    sets = ["mobility.model=trace", f"mobility.file={file}", "rounds=10", "fleet.devices=3", "learning.hidden=[8]"]
    return wayfare.load(
        "fashion-small", [*sets, "radio.bandwidth_hz=1e6", "learning.evaluate_every_rounds=1", *overrides]
    )


def test_a_story_by_hand(tmp_path: Path) -> None:
    """Device 1 carries the update of device 0, which then takes a newer model from device 1 and adds what is new."""
    chosen = list_of(
        tmp_path,
        [
            "11,19,0,1,10",  # round 2: 0 hands its update to 1
            "31,39,1,server,10",  # round 4: 1 delivers its own and that of 0
            "51,59,0,1,10",  # round 6: 1, who never meets the server again, hands its new update to 0, and its model
            "71,79,0,server,10",  # round 8: 0 delivers what is new of its own, and that of 1
        ],
    )
    world = draw_world(chosen, 0)
    models: list[torch.Tensor] = []

    class Looking(Notes):
        def on_round(self, round_: int) -> None:
            models.append(run.state().server.model)

    looking = Looking()
    run = simulation(world, looking, engine="reference")
    run.run()
    assert [(e.round, e.kind, e.giver, e.taker, e.owner, e.completed) for e in looking.relays] == [
        (2, "upload", 0, 1, 0, True),
        (4, "delivery", 1, SERVER, 0, True),
        (6, "upload", 1, 0, 1, True),
        (6, "download", 1, 0, SERVER, True),
        (8, "delivery", 0, SERVER, 1, True),
    ]
    assert [(e.round, e.device, e.staleness_rounds) for e in looking.contacts] == [(4, 1, 4), (8, 0, 4)]
    # The same by hand, with plain gradient steps.
    first = world.initial_model
    at_2 = steps(world, 0, first, 1, 2)
    handed = first - at_2
    own_1 = first - steps(world, 1, first, 1, 4)
    model_4 = first - own_1 / 3 - handed / 3
    torch.testing.assert_close(models[3], model_4, rtol=0, atol=1e-6)
    new_0 = at_2 - steps(world, 0, at_2, 3, 6)
    local_0 = steps(world, 0, model_4 - new_0, 7, 8)
    new_1 = model_4 - steps(world, 1, model_4, 5, 6)
    model_8 = model_4 - (model_4 - local_0) / 3 - new_1 / 3
    torch.testing.assert_close(models[7], model_8, rtol=0, atol=1e-6)


def test_models_without_devices_that_meet_are_refused(tmp_path: Path) -> None:
    exponential = wayfare.load("fashion-small", ["mobility.model=exponential", "rounds=20"])
    with pytest.raises(ScenarioError, match=r"mobility.model = 'exponential': has no contacts between devices"):
        wayfare.run(exponential, "fedmobile", out=tmp_path)
    alone = list_of(tmp_path, ["31,39,1,server,10", "41,49,0,server,10"])
    with pytest.raises(ScenarioError, match=r"mobility.file = .*has no contacts between devices"):
        wayfare.run(alone, "fedmobile", out=tmp_path)
    # Devices that move and do not happen to meet are no mistake.
    far = wayfare.load("fashion-small", [*SMALL, "rounds=5", "radio.range_m=1e-6", "mobility.speed_mps=0.001"])
    assert not simulate(far)[1].relays


def test_what_a_device_hands_over_leaves_it_only_what_is_new() -> None:
    rng = torch.Generator().manual_seed(0)
    received, local, memory = (torch.randn(50, generator=rng) for _ in range(3))
    state = DeviceState(received=received, received_round=2, memory=memory, budget_joules=5.0)
    meeting, terms = (
        Meeting(round=5, contact_s=9.0, gain_per_watt=1e6),
        Terms(method=make_method("fedmobile", Scenario()), link=LINK, rounds=10),
    )
    parcel = devices.undelivered(state, local)
    torch.testing.assert_close(parcel, memory + received - local)
    offer = devices.make_offer(state, parcel, meeting, terms, staleness_rounds=3)
    whole = wayfare.Upload(entries=50, bits=1600.0, power_watts=0.1, energy_joules=0.2)
    after = devices.hand_over(devices.pay(offer.state, offer.encounter, 0.2), parcel)
    torch.testing.assert_close(devices.undelivered(after, local), torch.zeros(50), rtol=0, atol=1e-6)
    assert after.spent_joules == 0.2
    # A second transmission of the round is not given the pace of a round again.
    again = devices.make_offer(after, parcel, meeting, terms, staleness_rounds=3)
    assert devices.pay(again.state, again.encounter, 0.2).backlog_joules == pytest.approx(after.backlog_joules + 0.2)
    model = torch.randn(50, generator=rng)
    taken, new_local = devices.take_model(after, devices.undelivered(after, local), model, 4, torch.zeros(50))
    torch.testing.assert_close(new_local, model, rtol=0, atol=1e-5)
    assert (taken.received_round, int(taken.memory.count_nonzero())) == (4, 0)
    for less in (replace(whole, entries=49), replace(whole, entries=0, completes=False)):
        assert not devices.is_whole(offer, less)
