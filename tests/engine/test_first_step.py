"""The first step of a user's own network is tried before a run, and all engines take the gradients of any network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.engine.jobs import run, starts
from tests.engine.test_own_networks import RAGGED, largest_error, own_job
from torch import Tensor, nn

from wayfare.engine import choose_engine
from wayfare.engine.reference import Reference
from wayfare.engine.traced.engine import StackedTraced
from wayfare.errors import InputError


class Spare(nn.Module):
    """Two heads, of which the loss uses one, and a gain without an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.body, self.head, self.spare = nn.Linear(36, 7), nn.Linear(7, 4), nn.Linear(7, 2)

    def forward(self, signal: Tensor) -> Tensor:
        hidden = torch.relu(self.body(signal.flatten(1)))
        self.spare(hidden)
        return self.head(hidden) * self.gain  # type: ignore[no-any-return]


class Sparse(nn.Module):
    """A table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 8, sparse=True), nn.Linear(8, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.words(words).mean(1))  # type: ignore[no-any-return]


class Overwriting(nn.Linear):
    """Changes a result that the backward pass needs."""

    def forward(self, signal: Tensor) -> Tensor:
        return super().forward(signal.flatten(1)).tanh().mul_(2).tanh_().add_(1)


def scripted() -> nn.Module:
    return nn.Sequential(nn.Flatten(), torch.jit.script(nn.Linear(36, 4)))


@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_parameters_that_the_loss_does_not_use_stay_as_they_are(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    local = own_job(Spare)
    chosen = choose_engine("auto", local.training)
    assert isinstance(chosen.engine, StackedTraced)
    assert largest_error(local, engine) <= 1e-10
    before = starts(local, torch.float32)
    after = run(engine, local, before, RAGGED)
    spare = slice(local.training.task.model.parameters - 16, None)
    assert torch.equal(after[:, spare], before[:, spare])
    warned = "mine: the loss of the first minibatch does not depend on spare.weight, spare.bias"
    assert len([message for message in caplog.messages if message.startswith(warned)]) <= 1


def test_sparse_gradients_of_a_table_give_the_same_model_on_every_engine() -> None:
    local = own_job(Sparse, words=True)
    assert isinstance(choose_engine("auto", local.training).engine, StackedTraced)
    assert largest_error(local) <= 1e-10


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_a_scripted_layer_runs_plainly_and_is_named() -> None:
    local = own_job(scripted)
    chosen = choose_engine("auto", local.training)
    assert isinstance(chosen.engine, Reference)
    assert chosen.reason == "the network of mine cannot be stacked: 1 is compiled by torch.jit"
    before = starts(local, torch.float32)
    assert not torch.equal(run("auto", local, before, RAGGED)[0], before[0])


def whole(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.argmax(dim=1).float().mean()


def failing(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, targets + 1].mean()


@pytest.mark.parametrize("engine", ["auto", "reference", "stacked"])
@pytest.mark.parametrize(
    ("network", "loss", "reason"),
    [
        (lambda: Overwriting(36, 4), None, "RuntimeError: one of the variables needed for gradient computation"),
        (Spare, whole, "RuntimeError: element 0 of tensors does not require grad"),
        (Spare, failing, "IndexError: index 4 is out of bounds"),
    ],
    ids=["overwrites", "has no gradient", "fails"],
)
def test_a_first_step_that_fails_is_reported_before_the_run(
    network: Callable[[], nn.Module], loss: Callable[[Tensor, Tensor], Tensor] | None, reason: str, engine: str
) -> None:
    local = own_job(network, loss=loss)
    with pytest.raises(InputError, match=f"^mine: the first training step fails: {reason}"):
        choose_engine(engine, local.training)


def test_the_first_step_leaves_the_generators_as_they_were() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    choose_engine("reference", own_job(Spare).training)
    assert torch.equal(torch.rand(2), expected)
