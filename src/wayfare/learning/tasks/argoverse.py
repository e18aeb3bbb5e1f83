"""Motion forecasting on Argoverse 1 with LaneGCN: where will a road user be in the next three seconds?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from wayfare.arrays import Ints
from wayfare.errors import InputError, ScenarioError
from wayfare.learning.argoverse.batch import SceneBatch, SceneStore, scene_store
from wayfare.learning.argoverse.cache import Prepared, load_prepared, prepared_scenes
from wayfare.learning.argoverse.metrics import displacement
from wayfare.learning.argoverse.scenes import SceneSettings
from wayfare.learning.argoverse.sequence import CITIES
from wayfare.learning.argoverse.synthetic import synthetic_scenes
from wayfare.learning.models.base import Model
from wayfare.learning.models.lanegcn import Forecast, LaneGcn
from wayfare.learning.tasks.base import Evaluation, Metric
from wayfare.places import data_folder
from wayfare.scenario.argoverse import Argoverse
from wayfare.scenario.model import Learning

ADE = Metric(name="ade_m", better="lower")

# The loss of the scores: the score of the nearest future must exceed that of another one by this margin ...
_MARGIN = 0.2
# ... if it ends within _NEAR_M of the truth and the other ends more than _CLEARLY_M further away.
_NEAR_M, _CLEARLY_M = 2.0, 0.2
# Weight of the expected error against the other two losses, and weight of an agent against another road user. Agents
# were chosen because they move; most others are parked.
_EXPECTED_WEIGHT, _AGENT_WEIGHT = 3.0, 10.0
# Smooths a distance at 0, where it has no derivative.
_SMALL_M = 1e-3
# Scenes per batch in an evaluation: few enough for a laptop's memory.
_EVALUATED_SCENES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecasting:
    """Training and validation scenes; the score is that of the agents in the validation scenes."""

    name: str
    model: LaneGcn
    train: SceneStore
    val: SceneStore
    city: Ints  # of every training scene
    metric: Metric = ADE

    @property
    def classes(self) -> int:
        return len(CITIES)

    @property
    def class_names(self) -> tuple[str, ...]:
        return CITIES

    def class_of_samples(self) -> Ints:
        return self.city

    def loss(self, module: nn.Module, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        """Weighted mean over all road users of some scenes; the last column of ``crops`` mirrors a scene."""
        batch = self.train.batch(samples, None if crops is None else crops[:, 2])
        return forecast_loss(module(batch), batch)

    def evaluate(self, module: nn.Module) -> Evaluation:
        """ADE of the most likely future; other errors for one guess and for all K."""
        scenes = torch.arange(len(self.val), device=self.val.first_actor.device).split(_EVALUATED_SCENES)
        judged = [self._judged(module, self.val.batch(some)) for some in scenes]
        places, scores, truth = (torch.cat([part[index] for part in judged]) for index in range(3))
        weights = torch.tensor([float(part[2].shape[0]) for part in judged])
        losses = torch.stack([part[3] for part in judged]).to(weights)
        one, several = (displacement(places, scores, truth, guesses) for guesses in (1, self.model.modes))
        modes = self.model.modes
        return Evaluation(
            score=one.ade_m,
            loss=float((losses * weights).sum() / weights.sum()),
            others={
                "fde_m": one.fde_m,
                "miss_rate": one.miss_rate,
                f"min_ade{modes}_m": several.ade_m,
                f"min_fde{modes}_m": several.fde_m,
                f"miss_rate{modes}": several.miss_rate,
            },
        )

    def to(self, device: torch.device) -> Self:
        return replace(self, train=self.train.to(device), val=self.val.to(device))

    @staticmethod
    def _judged(module: nn.Module, batch: SceneBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        forecast: Forecast = module(batch)
        agents = batch.agents
        return (
            forecast.places[agents],
            forecast.scores[agents],
            batch.future[agents].to(forecast.places.dtype),
            forecast_loss(forecast, batch),
        )


def forecasting(prepared: Prepared, model: LaneGcn) -> Forecasting:
    if model.lanes and not len(prepared.lanes):
        raise InputError("the scenes have no lane graph; set learning.argoverse.map = 'none'")
    scenes = prepared if model.lanes else prepared.without_lanes()
    return Forecasting(
        name="argoverse",
        model=model,
        train=scene_store(scenes.train, scenes.lanes),
        val=scene_store(scenes.val, scenes.lanes),
        city=scenes.train.city,
    )


def argoverse_model(learning: Learning, network: str) -> LaneGcn:
    section = learning.argoverse
    return LaneGcn(width=section.width, modes=section.modes, lanes=section.map != "none")


def argoverse_task(learning: Learning, model: Model) -> Forecasting:
    """The scenes of a scenario: from a folder of sequences, from a file of prepared scenes, or synthetic."""
    assert isinstance(model, LaneGcn)
    section = learning.argoverse
    settings = SceneSettings(
        actor_radius_m=section.actor_radius_m,
        lane_radius_m=section.lane_radius_m,
        lane_spacing_m=section.lane_spacing_m,
    )
    if section.folder is None:
        scenes = section.synthetic_scenes
        return forecasting(synthetic_scenes(scenes, scenes // 4, settings, roads=model.lanes), model)
    if section.prepared_file is not None:
        _reject_other_preparation(section, section.prepared_file)
        return forecasting(load_prepared(section.prepared_file), model)
    map_folder = None if section.map_folder is None else Path(section.map_folder)
    folder, kept = Path(section.folder), data_folder() / "argoverse"
    return forecasting(prepared_scenes(folder, section.map, map_folder, settings, kept), model)


def forecast_loss(forecast: Forecast, batch: SceneBatch) -> Tensor:
    future = batch.future.to(forecast.places.dtype)
    return forecast_losses(forecast, future, batch.future_seen, actor_weights(batch).to(future))


def actor_weights(batch: SceneBatch) -> Tensor:
    """(actors,): the weight of every road user in the loss."""
    return torch.ones_like(batch.speed).index_fill(0, batch.agents, _AGENT_WEIGHT)


def forecast_losses(forecast: Forecast, future: Tensor, seen: Tensor, weight: Tensor) -> Tensor:
    """LaneGCN's loss (smooth L1 of the nearest future, a margin for its score) and the expected error of the scores.

    The nearest future is the one that ends nearest to the truth. The expected error, sum_k softmax(score)_k |error_k|,
    is not in the paper. With thousands of scenes instead of hundreds of thousands, the margin alone leaves the most
    likely future, on which the score is based, no better than constant velocity. A road user counts in the steps in
    which it was seen, and ends with the last of them; a road user without such steps does not count.

    Leading dimensions are kept: (..., actors, 30, 2), (..., actors, 30), (..., actors) -> (...).
    """
    places, scores = forecast.places, forecast.scores
    weight = weight * seen.any(dim=-1)
    truth = future.unsqueeze(-3).expand_as(places)
    with torch.no_grad():
        last = (seen * torch.arange(1, seen.shape[-1] + 1, device=seen.device)).argmax(dim=-1)
        at_last = last[..., None, None, None].expand(*places.shape[:-2], 1, 2)
        apart = torch.take_along_dim(places, at_last, dim=-2) - torch.take_along_dim(truth, at_last, dim=-2)
        ends = torch.linalg.vector_norm(apart.squeeze(-2), dim=-1)
        nearest, best = ends.min(dim=-1, keepdim=True)
        # A mask instead of an index: the derivative of indexing sums in a random order on a GPU.
        chosen = best == torch.arange(ends.shape[-1], device=best.device)
        compared = ((nearest < _NEAR_M) & (ends - nearest > _CLEARLY_M)) * weight.unsqueeze(-1)
    share = seen / seen.sum(dim=-1, keepdim=True).clamp(min=1)
    regression = nn.functional.smooth_l1_loss(places, truth, reduction="none").sum(dim=-1)
    distance = torch.sqrt((places - truth).square().sum(dim=-1) + _SMALL_M**2)
    of_future = chosen.unsqueeze(-1) * regression + _EXPECTED_WEIGHT * scores.softmax(dim=-1).unsqueeze(-1) * distance
    errors = (of_future * share.unsqueeze(-2)).sum(dim=(-2, -1))
    behind = _MARGIN - ((scores * chosen).sum(dim=-1, keepdim=True) - scores)
    scoring = (behind.clamp(min=0) * compared).sum(dim=(-2, -1)) / compared.sum(dim=(-2, -1)).clamp(min=1)
    total: Tensor = (weight * errors).sum(dim=-1) / weight.sum(dim=-1) + scoring
    return total


def _reject_other_preparation(section: Argoverse, file: Path) -> None:
    """Raise ScenarioError for settings that only apply when scenes are prepared."""
    for name in ("actor_radius_m", "lane_radius_m", "lane_spacing_m"):
        value = getattr(section, name)
        if value != Argoverse.model_fields[name].default:
            rule = f"applies only when scenes are prepared, and {file} is already prepared; omit it, or prepare again"
            raise ScenarioError(f"learning.argoverse.{name}", value, rule)
