"""LaneGCN as a flat vector, its batches of graphs, its metrics, and the task it learns in the simulator."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wayfare
from wayfare.errors import InputError
from wayfare.learning.argoverse.batch import SceneBatch, scene_store
from wayfare.learning.argoverse.cache import Prepared, save_prepared
from wayfare.learning.argoverse.metrics import displacement, one_guess
from wayfare.learning.argoverse.scenes import SceneSettings
from wayfare.learning.argoverse.synthetic import synthetic_scenes, write_synthetic
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.base import load_vector, read_vector
from wayfare.learning.models.lanegcn import Forecast, LaneGcn
from wayfare.learning.tasks import class_names, load_task, model_of
from wayfare.learning.tasks.argoverse import Forecasting, forecast_loss, forecasting
from wayfare.streams import FLEET, Stream, generator

SMALL = LaneGcn(width=16, modes=3)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return synthetic_scenes(24, 8, SceneSettings())


@pytest.fixture(scope="module")
def task(prepared: Prepared) -> Forecasting:
    return forecasting(prepared, SMALL)


def network(model: LaneGcn, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A module with weights at random, last norms included, which begin at 0."""
    module = model.module().to(dtype).eval()
    vector = model.initial(generator(0, Stream.INITIAL_MODEL, FLEET)).to(dtype)
    noise = torch.from_numpy(generator(1, Stream.INITIAL_MODEL, FLEET).normal(0, 0.1, len(vector)))
    load_vector(module, vector + noise.to(dtype))
    return module


def forecast(module: nn.Module, batch: SceneBatch) -> Forecast:
    with torch.no_grad():
        result: Forecast = module(batch)
    return result


def test_the_flat_vector_is_the_whole_network() -> None:
    for model in (SMALL, replace(SMALL, lanes=False)):
        vector = model.initial(generator(3, Stream.INITIAL_MODEL, FLEET))
        module = model.module()
        load_vector(module, vector)
        assert len(vector) == model.parameters == sum(entry.numel() for entry in module.parameters())
        assert model.statistics == 0
        assert list(module.buffers()) == []
        torch.testing.assert_close(read_vector(module), vector)
    assert torch.equal(vector, model.initial(generator(3, Stream.INITIAL_MODEL, FLEET)))


def test_the_full_size_is_that_of_the_paper() -> None:
    assert 2_000_000 < LaneGcn().parameters < 4_000_000


def test_scenes_in_a_batch_do_not_hear_of_one_another(task: Forecasting) -> None:
    module = network(SMALL)
    whole = forecast(module, task.train.batch(torch.tensor([3, 5, 8])))
    alone = [forecast(module, task.train.batch(torch.tensor([scene]))) for scene in (3, 5, 8)]
    torch.testing.assert_close(whole.places, torch.cat([part.places for part in alone]))
    torch.testing.assert_close(whole.scores, torch.cat([part.scores for part in alone]))


def test_relations_in_a_batch_are_those_of_the_graph_within_each_scene(prepared: Prepared, task: Forecasting) -> None:
    batch = task.train.batch(torch.tensor([4, 4, 9]))
    receiver, giver, kind = batch.relation
    assert torch.equal(batch.lane_scene[receiver], batch.lane_scene[giver])
    nodes = np.concatenate(
        [prepared.train.lanes[prepared.train.first_lane[s] : prepared.train.first_lane[s + 1]] for s in (4, 4, 9)]
    )
    ahead = {tuple(pair) for pair in prepared.lanes.follows.tolist()}
    found = {(int(nodes[a]), int(nodes[b])) for a, b in zip(receiver[kind == 0], giver[kind == 0], strict=True)}
    inside = [set(nodes[batch.lane_scene == scene]) for scene in range(3)]
    assert found == {(a, b) for a, b in ahead if any(a in scene and b in scene for scene in inside)}


def turned(batch: SceneBatch, angle: float) -> SceneBatch:
    cos, sin = np.cos(angle), np.sin(angle)
    turn = torch.tensor([[cos, sin], [-sin, cos]], dtype=batch.past.dtype)
    move = torch.tensor([30.0, -12.0], dtype=batch.past.dtype)
    return replace(
        batch,
        actor_centre=batch.actor_centre @ turn + move,
        lane_centre=batch.lane_centre @ turn + move,
        actor_direction=batch.actor_direction @ turn,
        lane_direction=batch.lane_direction @ turn,
    )


def test_a_scene_that_is_moved_and_turned_has_the_same_futures(task: Forecasting) -> None:
    module, batch = network(SMALL), task.train.batch(torch.arange(4)).cast(torch.float64)
    torch.testing.assert_close(forecast(module, turned(batch, 1.1)).places, forecast(module, batch).places)


def test_the_map_and_other_road_users_matter(task: Forecasting) -> None:
    module, batch = network(SMALL), task.train.batch(torch.arange(4)).cast(torch.float64)
    before = forecast(module, batch).places
    elsewhere = replace(batch, lane_centre=batch.lane_centre + 3)
    assert not torch.allclose(forecast(module, elsewhere).places, before)
    others = torch.ones(len(batch.past), dtype=torch.bool)
    others[batch.agents] = False
    slower = torch.where(others[:, None, None], 0.5 * batch.past, batch.past)
    agents = forecast(module, replace(batch, past=slower)).places[batch.agents]
    assert not torch.allclose(agents, before[batch.agents])


def test_mirroring_twice_changes_nothing_and_once_exchanges_left_and_right(task: Forecasting) -> None:
    samples = torch.arange(3)
    plain, mirrored = (task.train.batch(samples, torch.tensor(flags)) for flags in ([0, 0, 0], [1, 0, 1]))
    for entry in fields(SceneBatch):
        torch.testing.assert_close(getattr(plain, entry.name), getattr(task.train.batch(samples), entry.name))
    signs = torch.tensor([-1.0, 1.0, -1.0])
    torch.testing.assert_close(mirrored.future[:, :, 1], plain.future[:, :, 1] * signs[plain.actor_scene][:, None])
    torch.testing.assert_close(mirrored.lane_centre[:, 0], plain.lane_centre[:, 0])
    torch.testing.assert_close(mirrored.past[:, 3], plain.past[:, 3] * signs[plain.actor_scene][:, None])


def test_a_scene_with_one_road_user_and_no_map_is_a_scene(prepared: Prepared) -> None:
    model = replace(SMALL, lanes=False)
    alone = forecasting(prepared, model)
    module = network(model)
    lonely = (alone.train.first_actor.diff() == 1).nonzero().squeeze(1)
    assert torch.isfinite(forecast(module, alone.train.batch(lonely[:2])).places).all()
    assert torch.isfinite(alone.loss(module, torch.arange(5)))
    with pytest.raises(InputError, match="the scenes have no lane graph"):
        forecasting(prepared.without_lanes(), SMALL)


def by_hand(places: Tensor, truth: Tensor) -> list[list[float]]:
    return [[float((mode[t] - true[t]).norm()) for t in range(30)] for mode, true in zip(places, truth, strict=True)]


def test_errors_are_those_counted_by_hand() -> None:
    generator_ = torch.Generator().manual_seed(0)
    truth = torch.randn(5, 30, 2, generator=generator_)
    places = truth[:, None] + 2 * torch.randn(5, 6, 30, 2, generator=generator_)
    scores = torch.randn(5, 6, generator=generator_)
    errors = torch.tensor([by_hand(places[:, mode], truth) for mode in range(6)]).permute(1, 0, 2)
    likely = errors[torch.arange(5), scores.argmax(dim=1)]
    one = displacement(places, scores, truth, 1)
    assert one.ade_m == pytest.approx(float(likely.mean()), rel=1e-5)
    assert one.fde_m == pytest.approx(float(likely[:, -1].mean()), rel=1e-5)
    assert one.miss_rate == pytest.approx(float((likely[:, -1] > 2).float().mean()))
    best = errors[torch.arange(5), errors[:, :, -1].argmin(dim=1)]
    six = displacement(places, scores, truth, 6)
    assert six.fde_m == pytest.approx(float(best[:, -1].mean()), rel=1e-5)
    assert six.ade_m == pytest.approx(float(best.mean()), rel=1e-5)
    assert one_guess(truth, truth).ade_m == 0


def test_the_loss_falls_with_the_error_and_ignores_what_was_not_seen(task: Forecasting) -> None:
    batch = task.train.batch(torch.arange(6))
    perfect = Forecast(batch.future[:, None].expand(-1, 3, -1, -1).clone(), torch.zeros(len(batch.past), 3))
    wrong = Forecast(perfect.places + 4, perfect.scores)
    assert float(forecast_loss(perfect, batch)) < 0.01 < 5 < float(forecast_loss(wrong, batch))
    unseen = perfect.places.clone()
    unseen[~batch.future_seen[:, None].expand(-1, 3, -1)] = 1e3
    torch.testing.assert_close(forecast_loss(Forecast(unseen, perfect.scores), batch), forecast_loss(perfect, batch))


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_has_the_derivative_it_should(seed: int) -> None:
    task, samples = forecasting(synthetic_scenes(3, 1, SceneSettings(), seed=seed), SMALL), torch.arange(3)
    module = network(SMALL)
    ends: list[Tensor] = []

    def hold(_: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        """Scores look at where a future ends and must not move it: to the derivative that end is given."""
        ends.append(inputs[0])
        return ends[0]

    module.get_submodule("head.end").register_forward_pre_hook(hold)
    weights = list(module.parameters())
    gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(task.loss(module, samples), weights)])
    before, step, values = read_vector(module), 1e-7, []
    with torch.no_grad():
        for sign in (1, -1):
            load_vector(module, before + sign * step * gradient / gradient.norm())
            values.append(float(task.loss(module, samples)))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(gradient.norm()), rel=1e-5)


def test_a_few_steps_of_training_beat_constant_velocity(prepared: Prepared, task: Forecasting) -> None:
    module = SMALL.module()
    load_vector(module, SMALL.initial(generator(0, Stream.INITIAL_MODEL, FLEET)))
    optimiser = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(60):
        loss = task.loss(module, torch.arange(24))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    # Judged on what it was trained on: this shows that it can learn, not that it generalises.
    with torch.no_grad():
        result = replace(task, val=scene_store(prepared.train, prepared.lanes)).evaluate(module.eval())
    batch = task.train.batch_of_all()
    assert result.score < 0.75 * one_guess(batch.straight_on(), batch.future[batch.agents]).ade_m


def test_an_evaluation_has_every_metric(task: Forecasting) -> None:
    result = Evaluator(task)(SMALL.initial(generator(0, Stream.INITIAL_MODEL, FLEET)))
    assert task.metric.name == "ade_m"
    assert task.metric.better == "lower"
    assert set(result.others) == {"fde_m", "miss_rate", "min_ade3_m", "min_fde3_m", "miss_rate3"}
    assert result.others["min_fde3_m"] <= result.others["fde_m"]


OVERRIDES = ["learning.argoverse.width=16", "learning.argoverse.synthetic_scenes=40"]


def test_a_scenario_makes_the_task_of_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "data"))
    made = load_task(wayfare.load("argoverse-small", OVERRIDES).learning)
    assert class_names(made) == ("MIA", "PIT")
    assert len(made.class_of_samples()) == 40
    write_synthetic(tmp_path / "made", 6, 3)
    folder = [f"learning.argoverse.folder={tmp_path}/made", f"learning.argoverse.map_folder={tmp_path}/made/navmap"]
    read = load_task(wayfare.load("argoverse-small", [*OVERRIDES, *folder]).learning)
    assert len(read.class_of_samples()) == 6
    assert len(list((tmp_path / "data" / "argoverse").iterdir())) == 1
    save_prepared(tmp_path / "scenes.npz", synthetic_scenes(5, 2, SceneSettings()))
    file = [*OVERRIDES, f"learning.argoverse.folder={tmp_path}/scenes.npz", "learning.argoverse.map=none"]
    assert len(load_task(wayfare.load("argoverse-small", file).learning).class_of_samples()) == 5
    with pytest.raises(InputError, match=r"lane_radius_m = 50.0: applies only when scenes are prepared"):
        load_task(wayfare.load("argoverse-small", [*file, "learning.argoverse.lane_radius_m=50"]).learning)
    holds_it = [*OVERRIDES, f"learning.argoverse.folder={tmp_path}", "learning.argoverse.map=none"]
    assert len(load_task(wayfare.load("argoverse-small", holds_it).learning).class_of_samples()) == 5
    with pytest.raises(InputError, match="needs a map_folder"):
        wayfare.load("argoverse-small", ["learning.argoverse.folder=somewhere"])
    assert model_of(wayfare.load("paper-argoverse-waypoint").learning).parameters == LaneGcn().parameters


def test_lanegcn_trains_in_the_simulator(tmp_path: Path) -> None:
    from wayfare.studies.single import Execution

    small = ["rounds=8", "fleet.devices=3", "learning.batch_size=4", "learning.evaluate_every_rounds=4"]
    scenario = wayfare.load("argoverse-small", [*OVERRIDES, *small, "mobility.width_m=200", "mobility.height_m=200"])
    record = wayfare.run(scenario, "mads", out=tmp_path, execution=Execution(engine="reference"))
    assert record.evaluations["score"][-1] < record.evaluations["score"][0]
