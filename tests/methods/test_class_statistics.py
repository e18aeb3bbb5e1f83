"""Class statistics as an upload: the same sums from any contacts, to the bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import mse_loss as mse

import wayfare
from wayfare.device import Checks, Meeting, Terms, begin_device, contact, receive
from wayfare.errors import InputError, ScenarioError
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.sums import SumsModel, collect
from wayfare.methods import Arrival, Encounter, LocalRule, Method, ServerTerms, make_method
from wayfare.methods.statistics import MAX_WHOLE, AddSums, ClassStatistics, SumsFirst
from wayfare.simulator import Simulation
from wayfare.sparsify import Sparse
from wayfare.studies.single import Execution
from wayfare.world import World, draw_world, world_for

SET = ("learning.backbone=efficientnet-lite0", "rounds=60", "fleet.devices=4", "learning.evaluate_every_rounds=20")
DEVICES, ENTRIES = 3, 40


def method(name: str = "statistics") -> Method:
    return make_method(name, wayfare.load("fashion-small"))


@cache
def world() -> World:
    drawn = draw_world(wayfare.load("fashion-small", [*SET]), 0)
    return world_for(drawn, method())


def numbers(seed: int) -> Tensor:
    """Statistics of a device: whole numbers of all sizes, many of them 0."""
    rng = np.random.default_rng(seed)
    values = np.round(rng.standard_normal(ENTRIES) * 2.0 ** rng.integers(-2, 18, ENTRIES))
    return torch.from_numpy(values.astype(np.float32))


def terms(bandwidth_hz: float = 300.0) -> Terms:
    link = replace(world().link, parameters=ENTRIES, sums=ENTRIES, first_sums=10, bandwidth_hz=bandwidth_hz)
    return Terms(method=method("statistics:greedy"), link=link, rounds=1000, checks=Checks(paranoid=True))


@given(st.lists(st.tuples(st.integers(0, DEVICES - 1), st.booleans(), st.floats(0.05, 40)), max_size=25), st.randoms())
@settings(max_examples=40, deadline=None)
def test_any_order_subset_and_repetition_of_contacts_gives_the_same_sums_to_the_bit(contacts, chance) -> None:  # type: ignore[no-untyped-def]
    """Short contacts deliver parts, some uploads are lost, and a last long contact of each device delivers the rest."""
    shared, rule = terms(), AddSums()
    at_server = ServerTerms(devices=DEVICES, sums=ENTRIES)
    model = torch.zeros(ENTRIES)
    states = [begin_device(model, torch.zeros(ENTRIES), 1e6, shared.method) for _ in range(DEVICES)]
    local = [numbers(seed) for seed in range(DEVICES)]
    last = [(device, False, 1e4) for device in chance.sample(range(DEVICES), DEVICES)]
    for round_, (device, lost, contact_s) in enumerate([*contacts, *last], 1):
        meeting = Meeting(round=round_, contact_s=contact_s, gain_per_watt=100.0, device=device)
        done = contact(states[device], local[device], meeting, shared, lasts_s=contact_s / 100 if lost else contact_s)
        states[device] = done.state
        if done.sent is None:
            continue
        model, _ = rule.apply(model, {}, [Arrival(device=device, sent=done.sent)], at_server)
        states[device] = receive(states[device], model, round_, shared.method)
        local[device] = model
    assert torch.equal(model, sum(numbers(seed) for seed in range(DEVICES)))
    assert not any(bool(state.memory.any()) for state in states)


def test_a_device_that_sees_new_samples_sends_the_difference() -> None:
    shared, layout = terms(), world().task.model
    assert isinstance(layout, SumsModel)
    inputs, labels = world().task.train_inputs[:200], world().task.train_labels[:200]  # type: ignore[attr-defined]
    before, after = (collect(inputs[:count], labels[:count], layout.layout) for count in (120, 200))
    size = len(before)
    shared = replace(shared, link=replace(world().link, bandwidth_hz=1e6))
    zeros, at_server = torch.zeros(size), ServerTerms(devices=20, sums=size)
    state, model, local, received = begin_device(zeros, zeros, 1e6, shared.method), zeros, before, []
    for round_ in (1, 2):
        meeting = Meeting(round=round_, contact_s=100.0, gain_per_watt=100.0)
        done = contact(state, local, meeting, shared)
        assert done.sent is not None
        received.append(done)
        model, _ = AddSums().apply(model, {}, [Arrival(device=0, sent=done.sent)], at_server)
        state = receive(done.state, model, round_, shared.method)
        # The engine adds to the local vector what the new samples change.
        local = model + (after - before)
    assert torch.equal(model, after)
    assert len(received[1].sent) == int((after - before).count_nonzero()) < size  # type: ignore[arg-type]
    assert contact(state, model, Meeting(round=3, contact_s=1.0, gain_per_watt=1.0), shared).upload.bits == 0


def test_counts_and_sums_go_before_products_and_a_contact_takes_what_fits() -> None:
    narrow, own = terms(bandwidth_hz=20.0), numbers(0)
    own[:10] = torch.arange(1, 11).float()
    state = begin_device(torch.zeros(ENTRIES), torch.zeros(ENTRIES), 1e6, narrow.method)
    done = contact(state, own, Meeting(round=1, contact_s=14.0, gain_per_watt=100.0), narrow)
    assert done.sent is not None
    assert 10 < len(done.sent) < int(own.count_nonzero())
    assert done.sent.indices[:10].tolist() == list(range(10))
    left, sent = done.state.memory[10:].abs(), done.sent.values[10:].abs()
    assert float(sent.min()) >= float(left.max())


def test_no_more_power_is_used_than_delivers_everything() -> None:
    wide, link = terms(), world().link
    state = begin_device(torch.zeros(ENTRIES), torch.zeros(ENTRIES), 1e6, wide.method)
    uploads = [
        contact(state, numbers(1), Meeting(round=1, contact_s=seconds, gain_per_watt=100.0), wide).upload
        for seconds in (20.0, 200.0)
    ]
    assert uploads[0].bits == uploads[1].bits
    assert uploads[1].energy_joules < uploads[0].energy_joules
    assert all(
        upload.airtime_s == pytest.approx(seconds, rel=1e-3) for upload, seconds in zip(uploads, (20, 200), strict=True)
    )
    assert link.power_watts(1e9, 1e-3, 1.0) == float("inf")


def test_the_server_stops_before_a_sum_could_be_rounded() -> None:
    model = torch.tensor([MAX_WHOLE - 2.0, 0.0])
    arrival = Arrival(device=0, sent=Sparse(torch.tensor([0]), torch.tensor([-2.0])))
    with pytest.raises(InputError, match="no longer exact; set scale"):
        AddSums().apply(model, {}, [arrival], ServerTerms(devices=2, sums=2))


class Watching:
    """Keeps nothing but the scores."""

    def __init__(self) -> None:
        self.scores: list[float] = []

    def on_contact(self, event: object) -> None: ...
    def on_relay(self, event: object) -> None: ...
    def on_round(self, round_: int) -> None: ...
    def on_evaluation(self, event: object, metrics: object) -> None:
        self.scores.append(event.score)  # type: ignore[attr-defined]


def test_a_run_ends_with_the_sums_of_all_devices_that_met_the_server() -> None:
    seen, watching = world(), Watching()
    outcome = Simulation(seen, method(), watching, checks=Checks(paranoid=True)).run()  # type: ignore[arg-type]
    task, model = seen.task, seen.task.model
    assert isinstance(model, SumsModel)
    own = []
    for device in np.unique(seen.meets.device):
        samples = torch.from_numpy(seen.held[device])
        own.append(collect(task.train_inputs[samples], task.train_labels[samples], model.layout))  # type: ignore[attr-defined]
    assert torch.equal(outcome.model, torch.stack(own).sum(0))
    assert watching.scores[0] < 0.2 < 0.6 < watching.scores[-1]


def test_your_own_task_with_vectors_has_statistics(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    inputs = (3 * np.eye(4, 6)[labels] + rng.standard_normal((400, 6))).astype(np.float32)
    task = wayfare.own_task("blobs", train=(inputs, labels), test=(inputs, labels), network=nn.Linear(6, 4))
    scenario = wayfare.load("fashion-small", ["rounds=60", "fleet.devices=4", "learning.batch_size=4"])
    record = wayfare.run(scenario, "statistics", task=task, out=tmp_path, execution=Execution(device="cpu"))
    assert record.evaluations["score"][-1] > 0.85


def test_features_that_the_steps_would_round_away_are_refused_and_a_scale_helps() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    inputs = (0.003 * (3 * np.eye(4, 6)[labels] + rng.standard_normal((400, 6)))).astype(np.float32)
    task = wayfare.own_task("small", train=(inputs, labels), test=(inputs, labels), network=nn.Linear(6, 4))
    drawn = draw_world(wayfare.load("fashion-small", ["fleet.devices=4", "learning.batch_size=4"]), 0, task=task)
    rule = r"scale = 1.0: statistics:lda would round .* deviate by 0\.004\d; set class-statistics\(scale=0\.004\d\)"
    with pytest.raises(ScenarioError, match=rule):
        world_for(drawn, method("statistics:lda"))
    with pytest.raises(ScenarioError, match=r"coarseness = 70.0: .* deviate by 0\.004\d; must be at most 6\d"):
        world_for(drawn, method("statistics:lda + class-statistics(scale=0.0045, coarseness=70.0)"))
    scaled = world_for(drawn, method("statistics:lda + class-statistics(scale=0.0045)")).task.model
    assert isinstance(scaled, SumsModel)
    assert (scaled.layout.collection.classifier, scaled.layout.collection.scale) == ("lda", 0.0045)


def test_settings_that_are_not_given_stay_as_the_name_says() -> None:
    pilot = method("statistics:lda:pilot + class-statistics(min_count=9)").local
    assert pilot == ClassStatistics(classifier="lda", pilot=1000, coarseness=4.0, min_count=9)
    trained = method("mads-rd:from-statistics + class-statistics(scale=2.0)").local
    assert trained == ClassStatistics(classifier="lda", scale=2.0, trains=True)
    assert method("statistics:greedy + sums-first(by=0.0)").upload == SumsFirst("greedy", by=0.0)
    assert method("sfl-spar + sgd(momentum=0.9)").local == LocalRule(trains_between_contacts=False, momentum=0.9)


def test_a_name_may_ask_for_another_classifier_a_pilot_and_an_energy_rule() -> None:
    found = method("statistics:greedy:pilot:lda")
    assert found.name == "statistics:lda:pilot:greedy"
    assert found.local == ClassStatistics(classifier="lda", pilot=1000, coarseness=4.0)
    assert found.upload == SumsFirst("greedy")
    assert method("mads-rd:from-pilot").local == replace(found.local, trains=True)


def test_settings_of_training_do_not_concern_statistics_alone() -> None:
    settings = [*SET, "server.weighting=samples", "server.optimizer=adam", "server.average_rounds=10"]
    drawn = draw_world(wayfare.load("fashion-small", settings), 0)
    found = [Simulation(each, method(), Watching()).run().model for each in (drawn, world())]  # type: ignore[arg-type]
    assert torch.equal(*found)


def test_a_large_upload_is_spread_over_contacts_at_little_power() -> None:
    link, rule = replace(world().link, bandwidth_hz=2e4), SumsFirst("unlimited")
    seen = contact_with(1_000_000)
    slow, fast = rule.decide(seen, link), SumsFirst("unlimited", by=0.0).decide(seen, link)
    assert 50_000 < slow.bits < fast.bits / 10
    assert slow.power_watts < fast.power_watts / 10
    assert rule.decide(replace(seen, round=200), link) == fast
    assert rule.decide(contact_with(1000), link).bits == pytest.approx(1000, rel=1e-3)
    assert rule.decide(contact_with(0), link).bits == 0


def contact_with(bits: int) -> Encounter:
    return Encounter(
        contact_s=10.0,
        gain_per_watt=1e3,
        staleness_rounds=1,
        update_norm_sq=1.0,
        backlog_joules=0.0,
        spent_joules=0.0,
        budget_joules=100.0,
        round=10,
        rounds=1000,
        met_s=20.0,
        sums_left=bits // 4,
        sums_bits=bits,
    )


def test_training_goes_on_from_the_classifier_of_the_statistics() -> None:
    """The head is what the sums give, plus what devices learned; both are paid for in one run."""
    drawn, both = draw_world(wayfare.load("fashion-small", [*SET]), 0), method("mads-rd:from-statistics")
    seen, watching = world_for(drawn, both), Watching()
    outcome = Simulation(drawn, both, watching, checks=Checks(paranoid=True)).run()  # type: ignore[arg-type]
    alone = Simulation(drawn, method("statistics:lda"), Watching()).run()  # type: ignore[arg-type]
    model, sums = seen.task.model, seen.link.sums
    assert isinstance(model, SumsModel)
    assert torch.equal(outcome.model[:sums], alone.model)
    learned = outcome.model[sums:] - model.classifier(outcome.model[:sums])
    assert 0 < float(learned.norm()) < float(outcome.model[sums:].norm())
    assert watching.scores[-1] > 0.6
    statistics_bits, both_bits = (Counting().of(drawn, name) for name in ("statistics:lda", "mads-rd:from-statistics"))
    assert statistics_bits < both_bits


def test_training_starts_from_a_share_of_the_logits() -> None:
    drawn = draw_world(wayfare.load("fashion-small", [*SET]), 0)
    weak, whole = method("mads-rd:from-statistics"), method("mads-rd:from-statistics + class-statistics(sharpness=1.0)")
    outcome = Simulation(drawn, weak, Watching(), checks=Checks(paranoid=True)).run()  # type: ignore[arg-type]
    sums = outcome.model[: world_for(drawn, weak).link.sums]
    expected, found = (world_for(drawn, each).task.model for each in (whole, weak))
    assert isinstance(expected, SumsModel)
    assert isinstance(found, SumsModel)
    assert torch.equal(found.classifier(sums), 0.25 * expected.classifier(sums))


class Counting(Watching):
    """Adds up the bits of a run."""

    def of(self, where: World, name: str) -> float:
        self.bits = 0.0
        Simulation(where, method(name), self).run()  # type: ignore[arg-type]
        return self.bits

    def on_contact(self, event: object) -> None:
        self.bits += event.bits  # type: ignore[attr-defined]


def test_principal_axes_of_a_pilot_change_the_bits_and_not_the_classifier() -> None:
    drawn = draw_world(wayfare.load("fashion-small", [*SET]), 0)
    found = []
    for pilot in (0, 300):
        text = f"fine = statistics:lda + class-statistics(classifier='lda', coarseness=0.01, pilot={pilot})"
        outcome = Simulation(drawn, method(text), Watching()).run()  # type: ignore[arg-type]
        model = world_for(drawn, method(text)).task.model
        assert isinstance(model, SumsModel)
        found.append((model.layout, model.classifier(outcome.model)))
    (plain, one), (turned, other) = found
    assert plain.basis is None
    assert turned.basis is not None
    assert torch.allclose(turned.basis.T @ turned.basis, torch.eye(256), atol=1e-4)
    assert float((one - other).norm()) < 0.05 * float(one.norm())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("statistics + add", "statistics need the server rule add-sums"),
        ("statistics + forgetting", "keeps everything that was not sent"),
        ("statistics + guard", "statistics must arrive as they are"),
        ("statistics + relays", "relays do not carry statistics"),
        ("statistics + class-statistics(min_count=0)", "must be a whole number of at least 1"),
        ("statistics + class-statistics(sharpness=0.5)", "sharpness concerns training, and nothing is trained after"),
        ("statistics + class-statistics(momentum=0.9)", "momentum concerns training, and nothing is trained after"),
        ("statistics + add-sums(step=0.5)", "the step of add-sums concerns training, and nothing is trained after"),
        ("mads-rd:from-statistics + class-statistics(sharpness=0.0)", "sharpness = 0.0: must be a number from 1e-09"),
        ("mads-rd + class-statistics + add-sums", "without rounding, so they need the upload rule sums-first"),
        ("mads-rd:from-statistics + class-statistics(trains=false)", "trains = true exactly if sums-first has a rule"),
        ("statistics + class-statistics(trains=true)", "trains = true exactly if sums-first has a rule"),
        ("statistics + sgd", "add the local rule class-statistics"),
        ("statistics + sums-first(by='x')", "by = 'x': must be 0 to 1"),
        ("statistics + add-sums(step=0.0)", "step = 0.0: must be a finite number above 0"),
        ("statistics + sums-first(then=3)", "then = 3: must be an upload rule"),
        (
            "statistics + sums-first(energy_rule='foo')",
            "energy_rule = 'foo': must be one of unlimited, greedy, paced",
        ),
        (
            "statistics + class-statistics(trains_between_contacts=false)",
            "collects before the first contact",
        ),
    ],
)
def test_parts_that_would_falsify_sums_are_refused(text: str, rule: str) -> None:
    with pytest.raises(ScenarioError, match=rule):
        method(text)


def test_a_network_of_ones_own_that_statistics_would_replace_is_refused() -> None:
    inputs, labels = np.eye(4, 6, dtype=np.float32)[np.arange(40) % 4], np.arange(40) % 4
    deep = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    task = wayfare.own_task("blobs", train=(inputs, labels), test=(inputs, labels), network=deep)
    drawn = draw_world(wayfare.load("fashion-small", ["fleet.devices=4", "learning.batch_size=4"]), 0, task=task)
    with pytest.raises(ScenarioError, match=r"network = 'Sequential': mads-rd:from-.* must be nn.Linear\(6, classes\)"):
        world_for(drawn, method("mads-rd:from-statistics"))
    assert isinstance(world_for(drawn, method()).task.model, SumsModel)


def test_tasks_without_vectors_and_weighted_servers_are_refused() -> None:
    with pytest.raises(ScenarioError, match="one weight for both"):
        make_method("mads-rd:from-statistics", wayfare.load("fashion-small", ["server.weighting=samples"]))
    with pytest.raises(ScenarioError, match="has its own server rule"):
        make_method("mads-rd:from-statistics", wayfare.load("fashion-small", ["server.optimizer=adam"]))
    pixels = world().task.train_inputs.view(-1, 1, 16, 16)  # type: ignore[attr-defined]
    images = replace(world().task, train_inputs=pixels, model=Mlp((256, 10)))  # type: ignore[type-var]
    with pytest.raises(ScenarioError, match="for images"):
        world_for(replace(world(), task=images), method())
    numbers = wayfare.own_task("line", train=([[0.0]], [1.0]), test=([[0.0]], [1.0]), network=nn.Linear(1, 1), loss=mse)
    with pytest.raises(ScenarioError, match="needs classes"):
        world_for(replace(world(), task=numbers), method())
    judges = {"loss": mse, "score": mse, "metric": wayfare.Metric(name="mse", better="lower")}
    data = {"train": ([[0.0]], [-1]), "test": ([[0.0]], [1])}
    signs = wayfare.own_task("signs", **data, network=nn.Linear(1, 1), **judges)  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match="needs classes from 0 on, and the task signs has the label -1"):
        world_for(replace(world(), task=signs), method())
