"""Random, recurrent and frozen layers of own networks are stacked and give the updates of `reference`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engine.jobs import run, starts
from tests.engine.test_own_networks import RAGGED, Recurrent, largest_error, own_job
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from wayfare.engine import choose_engine
from wayfare.engine.reference import Reference
from wayfare.engine.traced.engine import StackedTraced


class Calling(nn.Module):
    """Layers by name, and a function that uses them."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, signal: Tensor) -> Tensor:
        return self.call(self, signal)


class Frozen(nn.BatchNorm2d):
    """Batch normalisation by constant moments that are not trivial."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.running_mean = torch.linspace(-1, 1, channels)
        self.running_var = torch.linspace(0.5, 2, channels)

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


def noisy(net: Any, signal: Tensor) -> Tensor:
    out: Tensor = net.layer(signal.flatten(1))
    return functional.dropout(out + 0.1 * torch.rand_like(out), 0.1, net.training)


def resampled(net: Any, signal: Tensor) -> Tensor:
    mean, spread = net.layer(signal.flatten(1)).chunk(2, dim=1)
    return net.head(mean + torch.randn_like(spread) * spread.exp())  # type: ignore[no-any-return]


def skipping(net: Any, signal: Tensor) -> Tensor:
    """A residual branch that is left out for some samples (stochastic depth)."""
    hidden = net.layer(signal.flatten(1))
    kept = hidden.new_empty((hidden.shape[0], 1)).bernoulli_(0.7)
    return net.head(hidden + kept * hidden.tanh())  # type: ignore[no-any-return]


def sized(net: Any, signal: Tensor) -> Tensor:
    """New tensors whose first size is the number of samples."""
    hidden = net.layer(signal.flatten(1)) + torch.ones(signal.size(0), 6)
    return net.head(hidden * (torch.rand(signal.shape[0], 1) < 0.7))  # type: ignore[no-any-return]


def thinned(net: Any, signal: Tensor) -> Tensor:
    kept = functional.dropout(net.layer.weight, 0.3, net.training)
    return functional.linear(signal.flatten(1), kept, net.layer.bias)


def by_gru(net: Any, signal: Tensor) -> Tensor:
    rows = signal.squeeze(1)
    state = rows.new_zeros(rows.size(0), 5)
    for at in range(6):
        state = net.cell(rows[:, at], state)
    return net.head(state)  # type: ignore[no-any-return]


def by_lstm(net: Any, signal: Tensor) -> Tensor:
    rows = signal.squeeze(1)
    state = cell = rows.new_zeros(rows.size(0), 5)
    for at in range(6):
        state, cell = net.cell(rows[:, at], (state, cell))
    return net.head(state + cell)  # type: ignore[no-any-return]


def dropping_images() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(4, 6, 3), nn.Dropout(0.2)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.AlphaDropout(0.2), nn.Linear(24, 4)),
    )


def bounded_images() -> nn.Module:
    """Depthwise convolutions, whose activation and pooling stay on joined channels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU6(), nn.Conv2d(4, 4, 3, groups=4, bias=False)),
        *(nn.BatchNorm2d(4), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)),
    )


def frozen_images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), Frozen(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))


def scaled_images() -> nn.Module:
    """Batch normalisation with a constant scale, which still trains its shift and its moments."""
    norm = nn.BatchNorm2d(4)
    norm.weight.requires_grad_(False).copy_(torch.linspace(0.5, 2, 4))
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "noise": lambda: Calling(noisy, layer=nn.Linear(36, 4)),
    "resampled": lambda: Calling(resampled, layer=nn.Linear(36, 6), head=nn.Linear(3, 4)),
    "stochastic depth": lambda: Calling(skipping, layer=nn.Linear(36, 6), head=nn.Linear(6, 4)),
    "new tensors": lambda: Calling(sized, layer=nn.Linear(36, 6), head=nn.Linear(6, 4)),
    "dropped weights": lambda: Calling(thinned, layer=nn.Linear(36, 4)),
    "dropped channels": dropping_images,
    "bounded images": bounded_images,
    "frozen normalisation": frozen_images,
    "frozen scale": scaled_images,
    "gru with dropout": lambda: Recurrent(nn.GRU, num_layers=3, dropout=0.2, bidirectional=True),
    "lstm with dropout, time first": lambda: Recurrent(nn.LSTM, batch_first=False, num_layers=2, dropout=0.2),
    "gru cell": lambda: Calling(by_gru, cell=nn.GRUCell(6, 5, bias=False), head=nn.Linear(5, 4)),
    "lstm cell": lambda: Calling(by_lstm, cell=nn.LSTMCell(6, 5), head=nn.Linear(5, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_stack_makes_the_draws_and_updates_of_the_reference(name: str) -> None:
    local = own_job(NETWORKS[name])
    assert isinstance(choose_engine("auto", local.training).engine, StackedTraced)
    assert largest_error(local) <= 1e-10
    assert largest_error(local, real=torch.float32) <= 1e-3


def test_draws_of_a_stack_repeat_and_leave_the_default_generator_alone() -> None:
    local = own_job(NETWORKS["noise"])
    initial = starts(local, torch.float32)
    torch.manual_seed(1)
    first = run("auto", local, initial, RAGGED)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))
    assert torch.equal(run("auto", local, initial, RAGGED), first)


def sometimes(net: Any, signal: Tensor) -> Tensor:
    """Leaves a layer out in one minibatch of ten: one traced step cannot show it."""
    hidden: Tensor = net.layer(signal.flatten(1))
    return hidden if torch.rand(()) < 0.9 else -hidden


def shifted(net: Any, signal: Tensor) -> Tensor:
    return net.layer(signal.flatten(1) + 1e-4 * torch.randn(36))  # type: ignore[no-any-return]


def moody(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is another one in one minibatch of ten."""
    return functional.cross_entropy(outputs if torch.rand(()) < 0.9 else -outputs, targets)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(6, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, signal: Tensor) -> Tensor:
        return self.head(self.layer(signal.squeeze(1))[0][:, -1])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("network", "loss", "reason"),
    [
        (lambda: Calling(sometimes, layer=nn.Linear(36, 4)), None, "it draws random numbers that do not depend on"),
        (lambda: Calling(shifted, layer=nn.Linear(36, 4)), None, "it draws random numbers that do not depend on"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), moody, "its loss draws random numbers"),
        (
            lambda: nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(36, 4))),
            None,
            "it assigns its buffer 1.parametrizations.weight.0._u",
        ),
    ],
    ids=["sometimes", "shifted", "moody", "assigns"],
)
def test_a_draw_that_one_step_may_not_show_keeps_a_network_from_being_stacked(
    network: Callable[[], nn.Module], loss: Callable[[Tensor, Tensor], Tensor] | None, reason: str
) -> None:
    local = own_job(network, loss=loss)
    chosen = choose_engine("auto", local.training)
    assert isinstance(chosen.engine, Reference)
    assert (chosen.reason or "").startswith(f"the network of mine cannot be stacked: {reason}")
    assert largest_error(local) == 0


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="oneDNN is missing")
def test_a_wide_lstm_runs_plainly_on_a_cpu_and_is_stacked_by_name() -> None:
    local = own_job(Wide)
    chosen = choose_engine("auto", local.training)
    assert isinstance(chosen.engine, Reference)
    assert (chosen.reason or "").endswith("layer (LSTM) takes less time on a CPU one device after another")
    assert isinstance(choose_engine("stacked", local.training).engine, StackedTraced)
    assert largest_error(local, "stacked") <= 1e-10
