from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.image_files import small_arrays, small_set
from torch import Tensor, nn

import wayfare
from wayfare.errors import InputError, ScenarioError, UnavailableError
from wayfare.learning.batches import SHIFT_PIXELS, Batches
from wayfare.learning.data import CIFAR10, FASHION, IMAGE_SETS
from wayfare.learning.data.cache import save_images
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks import Metric, Task, class_names, load_task, model_of, own_task
from wayfare.learning.tasks.base import Labelled
from wayfare.learning.tasks.images import ImageClassification, image_task, moved
from wayfare.scenario.model import Learning
from wayfare.streams import Stream, generator

ARRAYS = small_arrays(CIFAR10, train=20, test=7)
TASK = image_task("cifar10", ARRAYS, SmallCnn(image=CIFAR10.image), CIFAR10.classes)


def by_hand(image: Tensor, right: int, down: int, mirrored: int) -> Tensor:
    """Padding, a crop, a mirror."""
    framed = nn.functional.pad(image, (SHIFT_PIXELS,) * 4)
    height, width = image.shape[-2:]
    y, x = SHIFT_PIXELS - down, SHIFT_PIXELS - right
    cropped = framed[..., y : y + height, x : x + width]
    return cropped.flip(-1) if mirrored else cropped


def test_images_are_moved_and_mirrored_as_crops_of_a_framed_image() -> None:
    crops = torch.tensor([[right, down, flip] for right in (-4, -1, 0, 3) for down in (-3, 0, 4) for flip in (0, 1)])
    images = torch.from_numpy(ARRAYS.train_images)[torch.arange(len(crops)) % 20]
    expected = torch.stack([by_hand(image, *crop) for image, crop in zip(images, crops.tolist(), strict=True)])
    assert torch.equal(moved(images, crops), expected)
    assert torch.equal(moved(images[:1], torch.zeros(1, 3, dtype=torch.int64)), images[:1])


def test_augmentation_depends_on_device_and_round_alone() -> None:
    held = [np.arange(100), np.arange(100, 150)]
    long, short = (Batches(held, 8, rounds, seed=1, augment=True) for rounds in (700, 20))
    assert np.array_equal(long.crops_of(0, 3, 5), short.crops_of(0, 3, 5))  # type: ignore[arg-type]
    assert np.array_equal(long.of(1, 3, 5), Batches(held, 8, 20, seed=1).of(1, 3, 5))
    drawn = long.crops_of(1, 1, 700)
    assert drawn is not None
    assert drawn.shape == (700, 8, 3)
    assert [np.unique(column).tolist() for column in drawn.reshape(-1, 3).T] == [
        list(range(-4, 5)),
        list(range(-4, 5)),
        [0, 1],
    ]
    assert not np.array_equal(drawn[:20], short.crops_of(0, 1, 20))  # type: ignore[arg-type]
    assert Batches(held, 8, 20, seed=1).crops_of(0, 1, 5) is None


def test_images_stay_bytes_and_come_out_normalised() -> None:
    assert TASK.train_images.dtype == torch.uint8
    inputs = TASK.inputs(torch.arange(20))
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)


def test_black_comes_in_before_images_are_normalised() -> None:
    moved_away = TASK.inputs(torch.tensor([0]), torch.tensor([[4, 0, 0]]))
    black = (-TASK.mean / TASK.deviation).expand(3, 32, 4)
    torch.testing.assert_close(moved_away[0, :, :, :4], black)


def test_the_score_of_images_does_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TASK.model.initial(generator(0, Stream.INITIAL_MODEL, 0))
    whole = Evaluator(TASK)(model)
    monkeypatch.setattr("wayfare.learning.tasks.images._EVALUATED_AT_ONCE", 3)
    pieces = Evaluator(TASK)(model)
    assert pieces.score == whole.score
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)


def test_a_perceptron_takes_images_as_rows() -> None:
    arrays = small_arrays(FASHION)
    task = image_task("fashion", arrays, Mlp((784, 10)), FASHION.classes, flat=True)
    assert task.inputs(torch.arange(3)).shape == (3, 784)
    assert isinstance(task, Labelled)
    assert Evaluator(task)(torch.zeros(7850)).loss == pytest.approx(np.log(10), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "parameters", "statistics"),
    [
        (["learning.task=cifar10"], 6_568_650, 2 * (64 + 3 * 128 + 256 + 3 * 512)),
        (["learning.task=cifar10", "learning.normalisation=group"], 6_568_650, 0),
        (["learning.task=cifar10", "learning.network=cnn"], SmallCnn(image=(3, 32, 32)).parameters, 0),
        (["learning.task=fashion"], Mlp((784, 256, 128, 10)).parameters, 0),
        (["learning.task=fashion", "learning.network=mlp", "learning.hidden=[]"], 7850, 0),
        (["learning.task=fashion", "learning.network=cnn"], SmallCnn().parameters, 0),
        ([], 84_618, 0),
    ],
)
def test_the_network_of_a_scenario_is_known_without_its_data(
    settings: list[str], parameters: int, statistics: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    model = model_of(wayfare.load(overrides=settings).learning)
    assert (model.parameters, model.statistics) == (parameters, statistics)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["learning.task=chess"], "learning.task = 'chess': must be one of fashion-small, fashion, cifar10"),
        (["learning.network=cnn"], "learning.network = 'cnn': must be mlp for the task fashion-small"),
        (
            ["learning.task=cifar10", "learning.network=mlp"],
            "learning.network = 'mlp': must be resnet9 or cnn for the task cifar10",
        ),
        (["learning.augment=true"], "learning.augment = True: fashion-small has no images to shift and mirror"),
    ],
)
def test_tasks_and_networks_that_do_not_fit_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_task(wayfare.load(overrides=settings).learning)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["cifar10", "fashion"])
def test_a_task_without_its_data_says_how_to_get_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    with pytest.raises(UnavailableError, match=rf"fetch it with `fetch_images\(IMAGE_SETS\['{name}'\]"):
        load_task(wayfare.load(overrides=[f"learning.task={name}"]).learning)


@pytest.fixture
def small_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache with sets of a few images, which pass for the real ones."""
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    for spec in (CIFAR10, FASHION):
        arrays = small_arrays(spec, train=200, test=30)
        small = small_set(spec, arrays)
        save_images(small, arrays)
        monkeypatch.setitem(IMAGE_SETS, spec.name, small)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("settings", [["learning.task=fashion"], ["learning.task=fashion", "learning.network=cnn"]])
def test_scenarios_train_on_what_is_in_the_cache(settings: list[str], tmp_path: Path) -> None:
    smaller = ["rounds=4", "fleet.devices=3", "learning.hidden=[8]", "learning.batch_size=4", "mobility.width_m=200"]
    scenario = wayfare.load(overrides=[*settings, *smaller, "mobility.height_m=200", "learning.augment=true"])
    record = wayfare.run(scenario, "optimal", out=tmp_path)
    assert record.evaluations["score"].shape == (2,)
    assert class_names(load_task(scenario.learning)) == FASHION.classes


@pytest.mark.usefixtures("small_cache")
def test_a_task_of_images_is_found_by_name() -> None:
    task = load_task(wayfare.load("paper-cifar10-waypoint").learning)
    assert isinstance(task, ImageClassification)
    assert (task.name, task.classes, task.model.parameters) == ("cifar10", 10, 6_568_650)
    assert task.class_of_samples().tolist() == [number % 10 for number in range(200)]
    assert task.to(torch.device("cpu")).train_images.dtype == torch.uint8


def line_network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


INPUTS = np.random.default_rng(0).normal(size=(40, 2))
SIDES = (INPUTS[:, 0] > 0).astype(np.int64)


def side_task(**changes: object) -> Task:
    arguments = {"train": (INPUTS, SIDES), "test": (INPUTS[:9], SIDES[:9]), "network": line_network}
    return own_task("sides", **{**arguments, **changes})  # type: ignore[arg-type]


def test_a_task_of_ones_own_has_the_classes_of_its_targets() -> None:
    task = side_task()
    assert (task.classes, task.metric.name, task.class_of_samples().tolist()) == (2, "accuracy", SIDES.tolist())
    assert (task.model.parameters, task.model.statistics) == (2 * 4 + 4 + 8 + 4 * 2 + 2, 8)
    assert class_names(task) == ("0", "1")
    # Engines must not take its loss for cross-entropy.
    assert not isinstance(task, Labelled)


def test_the_same_generator_gives_the_same_network_and_leaves_torch_alone() -> None:
    model = side_task().model
    before = torch.random.get_rng_state()
    first, second = (model.initial(generator(3, Stream.INITIAL_MODEL, 0)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(first, model.initial(generator(4, Stream.INITIAL_MODEL, 0)))
    assert len(first) == model.parameters + model.statistics


@dataclass
class Pairs(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return torch.from_numpy(INPUTS[place]), int(SIDES[place])


def test_a_data_set_of_pytorch_gives_the_same_task_as_arrays() -> None:
    arrays, pairs = side_task(), side_task(train=Pairs())
    module, samples = line_network().eval(), torch.tensor([3, 1, 2])
    assert torch.equal(arrays.loss(module, samples), pairs.loss(module, samples))
    assert np.array_equal(arrays.class_of_samples(), pairs.class_of_samples())


def test_other_targets_are_judged_by_their_loss() -> None:
    targets = INPUTS @ np.array([[1.0], [2.0]])
    task = side_task(
        train=(INPUTS, targets), test=(INPUTS, targets), network=one_layer, loss=nn.functional.mse_loss, kinds=SIDES
    )
    exact = torch.tensor([1.0, 2.0, 0.0])
    assert Evaluator(task)(exact).score == pytest.approx(0, abs=1e-12)
    assert (task.metric, task.classes) == (Metric(name="loss", better="lower"), 2)


def one_layer() -> nn.Module:
    return nn.Linear(2, 1)


def r_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1 - (outputs - targets).square().sum() / (targets - targets.mean()).square().sum()


def root_mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean().sqrt()


class Remembering:
    """A metric that remembers what it has seen until it is reset, as those of torchmetrics do."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.seen.append((outputs - targets).abs())
        return torch.cat(self.seen).max()

    def reset(self) -> None:
        self.seen.clear()


def test_scores_are_those_of_the_whole_test_set() -> None:
    rng = np.random.default_rng(0)
    # Sorted by target, as recorded data often are: within a piece targets hardly vary, so its R squared is low.
    inputs = np.sort(rng.normal(size=(3500, 2)), axis=0)
    targets = inputs @ np.array([[1.0], [2.0]]) + 0.5 * rng.normal(size=(3500, 1))
    task = side_task(
        train=(inputs, targets),
        test=(inputs, targets),
        network=one_layer,
        loss=root_mean_square,
        score=r_squared,
        metric=Metric(name="r2", better="higher"),
        others={"rmse": root_mean_square, "largest_error": Remembering()},
    )
    errors = inputs @ np.array([[1.0], [2.0]]) - targets
    evaluate = Evaluator(task)
    for _ in range(2):
        found = evaluate(torch.tensor([1.0, 2.0, 0.0]))
        assert found.score == pytest.approx(1 - (errors**2).sum() / ((targets - targets.mean()) ** 2).sum(), abs=1e-6)
        assert found.score > 0.97
        assert found.loss == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
        assert found.others["rmse"] == found.loss
        assert found.others["largest_error"] == pytest.approx(np.abs(errors).max(), rel=1e-5)
        evaluate(torch.tensor([5.0, -2.0, 0.0]))


@pytest.mark.parametrize("shape", [(40, 1), (40,), (40, 2)])
def test_a_regression_without_a_loss_is_refused(shape: tuple[int, ...]) -> None:
    targets = np.random.default_rng(0).normal(size=shape)
    with pytest.raises(InputError) as caught:
        side_task(train=(INPUTS, targets), test=(INPUTS, targets), network=one_layer)
    assert "sides: the targets are real numbers, of shape" in str(caught.value)
    assert "`loss=torch.nn.functional.mse_loss`" in str(caught.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.MSELoss()])
def test_targets_take_the_shape_of_the_outputs(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    heights = INPUTS @ np.array([1.0, 2.0])
    rows, column = (
        side_task(train=(INPUTS, shaped), test=(INPUTS, shaped), network=one_layer, loss=loss)
        for shaped in (heights, heights[:, None])
    )
    model = torch.tensor([1.0, 2.0, 0.5])
    assert Evaluator(rows)(model) == Evaluator(column)(model)
    assert Evaluator(rows)(model).loss == pytest.approx(0.25, rel=1e-5)
    module, samples = one_layer(), torch.arange(5)
    assert torch.equal(rows.loss(module, samples), column.loss(module, samples))
    wide = side_task(train=(INPUTS, heights), test=(INPUTS, heights), network=line_network, loss=loss)
    with pytest.raises(InputError, match=r"the outputs of the network have shape \(2,\) and the targets \(\)"):
        wide.loss(line_network(), samples)


def test_a_column_of_labels_is_a_list_of_labels() -> None:
    task = side_task(train=(INPUTS, SIDES[:, None]), test=(INPUTS[:9], SIDES[:9, None]))
    assert (task.classes, task.class_of_samples().tolist()) == (2, SIDES.tolist())


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"height": self.layer(inputs), "inputs": inputs}


def height_error(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs["height"], targets)


def test_a_network_may_give_several_outputs() -> None:
    inputs = np.random.default_rng(0).normal(size=(1500, 2))
    data = inputs, inputs @ np.array([[1.0], [2.0]])
    task = side_task(train=data, test=data, network=TwoOutputs, loss=height_error)
    assert Evaluator(task)(torch.tensor([1.0, 2.0, 0.5])).score == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": (INPUTS, SIDES[:-1])}, "sides: train: has 40 inputs and 39 targets"),
        ({"test": (INPUTS[:0], SIDES[:0])}, "sides: test: has 0 inputs and 0 targets"),
        ({"train": 3}, "sides: train: must be a pair of arrays, or a data set of PyTorch or Hugging Face"),
        ({"kinds": SIDES - 1}, "sides: kinds must be an integer of at least 0 for each of the 40 samples"),
        ({"score": nn.functional.mse_loss}, "sides: metric = None: must name the score and say which is better"),
        (
            {"metric": nn.functional.mse_loss},
            r"metric = mse_loss: is a function; give it as the score: `score=mse_loss",
        ),
    ],
)
def test_a_task_of_ones_own_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        side_task(**changes)
    assert message in str(caught.value)


class _Entry:
    name = "sides"

    @staticmethod
    def load() -> Callable[[Learning], Task]:
        return lambda learning: side_task()


def test_another_package_can_offer_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wayfare.learning.tasks.entry_points", lambda group: [_Entry] * (group == "wayfare.tasks"))
    scenario = wayfare.load(overrides=["learning.task=sides"])
    assert load_task(scenario.learning).name == "sides"
    assert model_of(scenario.learning).parameters == 30
    with pytest.raises(ScenarioError, match=r"must be one of fashion-small, .*sides"):
        load_task(wayfare.load(overrides=["learning.task=chess"]).learning)


def test_a_forecast_can_be_handed_to_several_runs(tmp_path: Path) -> None:
    small = ("rounds=2", "fleet.devices=2", "learning.argoverse.synthetic_scenes=16", "learning.argoverse.width=8")
    scenario = wayfare.load("argoverse-small", small)
    task = load_task(scenario.learning)
    first, second = (wayfare.run(scenario, task=task, out=tmp_path / name) for name in ("first", "second"))
    assert first.evaluations["score"].tolist() == second.evaluations["score"].tolist()
