"""Class statistics as the start of a trained part of a backbone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tests.image_files import small_arrays, small_set
from tests.learning.test_tuned import OWN
from tests.methods.test_class_statistics import Watching

import wayfare
from wayfare.device import Checks
from wayfare.engine import ENGINES, Burst, LocalTraining
from wayfare.engine.base import Overlapping, Ready
from wayfare.engine.reference import Reference
from wayfare.errors import ScenarioError
from wayfare.learning.data import CIFAR10, IMAGE_SETS
from wayfare.learning.data.cache import save_images
from wayfare.learning.models.base import load_vector
from wayfare.learning.models.tuned import Tuned
from wayfare.learning.sums import SumsModel
from wayfare.learning.tasks.tuned import TunedClassification
from wayfare.methods import make_method
from wayfare.scenario import Scenario
from wayfare.simulator import Simulation
from wayfare.world import World, draw_world, world_for

SMALLER = (
    "rounds=12",
    "fleet.devices=3",
    "learning.batch_size=4",
    "learning.partition.concentration=10",
    "mobility.width_m=150",
    "mobility.height_m=150",
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A backbone of the user, and a small CIFAR-10."""
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    arrays = small_arrays(CIFAR10, train=240, test=7)
    small = small_set(CIFAR10, arrays)
    save_images(small, arrays)
    monkeypatch.setitem(IMAGE_SETS, CIFAR10.name, small)  # type: ignore[arg-type]
    written = tmp_path / f"{tmp_path.name}.py"
    written.write_text(OWN, encoding="utf-8")
    yield written
    draw_world.cache_clear()


def scenario_with(file: Path, trained: str, *others: str) -> Scenario:
    named = ["learning.task=cifar10", f"learning.backbone={file}", "learning.backbone_pixels=32"]
    kind = [f"learning.trained={trained}"]
    if trained not in ("head", "everything"):
        kind.append("learning.trained_blocks=1")
    return wayfare.load(overrides=[*named, *kind, *SMALLER, *others])


def drawn(file: Path, trained: str) -> World:
    return draw_world(scenario_with(file, trained), 0)


def final_model(world: World, scheme: str, *, paranoid: bool = True) -> torch.Tensor:
    method, checks = make_method(scheme, world.scenario), Checks(paranoid=paranoid)
    return Simulation(world, method, Watching(), engine="reference", checks=checks).run().model  # type: ignore[arg-type]


@pytest.mark.parametrize("trained", ["adapters", "everything"])
def test_a_network_with_the_layer_of_its_statistics_classifies_as_they_do(trained: str, file: Path) -> None:
    world = drawn(file, trained)
    sums = final_model(world, "statistics:lda")
    seen = world_for(world, make_method("mads-rd:from-statistics", world.scenario))
    task, start = seen.task, seen.initial_model.clone()
    assert isinstance(task, TunedClassification)
    assert isinstance(task.model, SumsModel)
    start[: len(sums)] = sums
    start[len(sums) :] += task.model.classifier(sums)
    network = task.model.module().eval()
    load_vector(network, start)
    head = SumsModel(task.model.layout).module()
    load_vector(head, sums)
    with torch.no_grad():
        found, expected = network(task.prepare(task.test_stored)), 0.25 * head(task.on_features().test_inputs)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=2e-2 * float(expected.std()))


def test_adapters_train_on_from_the_statistics_of_the_frozen_features(file: Path) -> None:
    world = drawn(file, "adapters")
    found, sums = final_model(world, "mads-rd:from-statistics"), final_model(world, "statistics:lda")
    seen = world_for(world, make_method("mads-rd:from-statistics", world.scenario))
    model = seen.task.model
    assert isinstance(model, SumsModel)
    assert isinstance(model.trained, Tuned)
    assert len(found) == len(sums) + model.trained.parameters
    assert torch.equal(found[: len(sums)], sums)
    learned = (found - seen.initial_model)[len(sums) :] - model.classifier(sums)
    blocks = model.trained.parameters - model.trained.head.parameters
    assert float(learned[:blocks].norm()) > 0
    assert 0 < float(learned[blocks:].norm()) < float(found[len(sums) + blocks :].norm())


class Beside(Overlapping):
    """An engine that a trainer has to launch. All bursts have ended when a launch returns."""

    def __init__(self, training: LocalTraining) -> None:
        self._engine = Reference(training)

    def run(self, models: Sequence[torch.Tensor], bursts: Sequence[Burst]) -> None:
        raise AssertionError("a trainer lets bursts of this engine overlap")

    def launch(
        self,
        models: Sequence[torch.Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> Sequence[Ready]:
        self._engine.run(models, bursts)
        return [Ended() for _ in bursts]


class Ended:
    def wait(self) -> None: ...

    def query(self) -> bool:
        return True


def test_an_engine_that_trains_beside_contacts_does_so_after_statistics(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = drawn(file, "adapters")
    expected = final_model(world, "mads-rd:from-statistics", paranoid=False)
    monkeypatch.setitem(ENGINES, "reference", Beside)  # type: ignore[arg-type]
    assert torch.equal(final_model(world, "mads-rd:from-statistics", paranoid=False), expected)


def test_statistics_alone_do_not_depend_on_what_else_could_be_trained(file: Path) -> None:
    found = [final_model(drawn(file, trained), "statistics") for trained in ("head", "adapters", "everything")]
    assert found[0].any()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("trained", ["head", "adapters"])
def test_statistics_give_one_layer_and_a_deeper_head_is_rejected_before_anything_is_computed(trained: str) -> None:
    """The file of the backbone does not exist."""
    deep = scenario_with(Path("none.py"), trained, "learning.network=mlp", "learning.hidden=[5]")
    rule = (
        r"^learning\.network = 'mlp': mads-rd:from-statistics starts from class statistics, which give one layer; must "
        "be auto or linear$"
    )
    with pytest.raises(ScenarioError, match=rule):
        make_method("mads-rd:from-statistics", deep)
    for allowed in ("mads-rd", "statistics"):
        make_method(allowed, deep)
    make_method("mads-rd:from-statistics", scenario_with(Path("none.py"), trained, "learning.network=linear"))


def test_statistics_need_vectors(file: Path) -> None:
    images = draw_world(wayfare.load(overrides=["learning.task=cifar10", *SMALLER]), 0)
    rule = "schemes = 'statistics': needs vectors as inputs, and the task cifar10 has others; set learning.backbone"
    with pytest.raises(ScenarioError, match=rule):
        final_model(images, "statistics")
