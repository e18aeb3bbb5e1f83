"""Users' own networks are stacked where a step equals that of `reference`, and say why where they are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.jobs import Job, run, starts
from torch import Tensor, nn
from torch.nn import functional

import wayfare
from wayfare.engine import Burst, LocalTraining, choose_engine, make_engine
from wayfare.engine.reference import Reference
from wayfare.engine.stacked_mlp import StackedMlp
from wayfare.engine.traced.engine import StackedTraced
from wayfare.engine.vmapped import Vmapped
from wayfare.learning.batches import Batches
from wayfare.learning.descent import Descent
from wayfare.learning.local_loss import LocalLoss
from wayfare.learning.schedule import Schedule
from wayfare.learning.tasks import own_task

DEVICES, BATCH = 5, 3
RAGGED = [Burst(device, 1 + device % 2, steps) for device, steps in enumerate([3, 1, 0, 2, 3])]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.ReLU(), nn.Linear(7, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(Shortcut(4), nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.GroupNorm(2, 6), nn.SiLU()),
        *(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4)),
    )


class Shortcut(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, signal: Tensor) -> Tensor:
        assert signal.dim() == 4
        return torch.cat([signal + self.layer(signal), signal], dim=1)[:, : signal.shape[1]]


def pooled() -> nn.Module:
    """Convolutions with everything that their backward pass may take in."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)),
        *(nn.Conv2d(4, 6, 2, stride=(1, 2)), nn.ReLU(), nn.Conv2d(6, 2, 1, padding="same"), nn.MaxPool2d((2, 1))),
        *(nn.Flatten(2), nn.Conv1d(2, 3, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(3, 4)),
    )


class Recurrent(nn.Module):
    """A recurrent layer and a head on its last output and last states."""

    def __init__(self, layer: type[nn.RNNBase], batch_first: bool = True, **options: object) -> None:
        super().__init__()
        self.layer = layer(6, 5, batch_first=batch_first, **options)  # type: ignore[arg-type]
        self.head = nn.Linear(10 if options.get("bidirectional") else 5, 4)

    def forward(self, signal: Tensor) -> Tensor:
        signal = signal.flatten(1, 2)
        first = self.layer.batch_first
        out, last = self.layer(signal if first else signal.transpose(0, 1))
        last = last[0] if isinstance(last, tuple) else last
        logits: Tensor = self.head(out[:, -1] if first else out[-1])
        return logits + last.sum(dim=(0, 2)).unsqueeze(1)


class Transformer(nn.Module):
    """Words as integers, learned positions, two layers of attention."""

    def __init__(self, dropout: float = 0.0, batch_first: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(6, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout, batch_first=batch_first)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 4)
        self.batch_first = batch_first

    def forward(self, words: Tensor) -> Tensor:
        signal = self.words(words) + self.positions
        if self.batch_first:
            return self.head(self.layers(signal).mean(1))  # type: ignore[no-any-return]
        return self.head(self.layers(signal.transpose(0, 1)).mean(0))  # type: ignore[no-any-return]


class Masked(nn.Module):
    """Causal attention of narrow heads over 16 words, some of which are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 8), nn.Linear(8, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        words = words.repeat(1, 3)[:, :16]
        causal = torch.ones(16, 16, dtype=torch.bool, device=words.device).triu(1)
        padding = (words == 0) & (torch.arange(16, device=words.device) > 0)
        signal = self.layer(self.words(words), src_mask=causal, src_key_padding_mask=padding)
        return self.head(signal.mean(1))  # type: ignore[no-any-return]


class ByHand(nn.Module):
    """Parameters that no layer owns: a token, positions, a scale, a low-rank matrix, and a dropout of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(7, 6))
        self.down, self.up = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 6))
        self.scale, self.head = nn.Parameter(torch.randn(6)), nn.Linear(6, 4)
        self.norm = nn.LayerNorm(6)
        self.register_buffer("shift", torch.linspace(0, 1, 6), persistent=False)

    def forward(self, signal: Tensor) -> Tensor:
        batch, _, steps, _ = signal.shape
        tokens = torch.cat([self.token.expand(batch, -1, -1), signal.squeeze(1)], dim=1) + self.positions[: steps + 1]
        tokens = tokens + self.norm(tokens) @ (self.down @ self.up) + self.shift
        heads = tokens.view(batch, steps + 1, 2, 3).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True, dropout_p=0.2)
        tokens = self.scale * mixed.transpose(1, 2).reshape(batch, steps + 1, 6)
        return self.head(functional.dropout(tokens, 0.3, self.training)[:, 0])  # type: ignore[no-any-return]


class Reused(nn.Module):
    """Results of ReLU that several operations use."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.rows, self.head = nn.Conv2d(1, 2, 3, stride=2), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, signal: Tensor) -> Tensor:
        images = self.images(signal).relu()
        rows = (images * images.exp()).flatten(1)
        hidden = functional.relu(self.rows(rows))
        logits: Tensor = self.head(hidden * hidden) + hidden.exp().sum(dim=1, keepdim=True)
        return logits + images.sum(dim=(2, 3)).repeat(1, 2)


class Tied(nn.Module):
    """A table that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 8), nn.Linear(9, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(functional.linear(self.words(words).mean(1), self.words.weight))  # type: ignore[no-any-return]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": perceptron,
    "convolutional": convolutional,
    "pooled": pooled,
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM, batch_first=False),
    "two-way gru": lambda: Recurrent(nn.GRU, num_layers=2, bidirectional=True),
    "rnn": lambda: Recurrent(nn.RNN, bias=False),
    "transformer": Transformer,
    "transformer, time first, dropout": lambda: Transformer(0.2, batch_first=False),
    "masked": Masked,
    "by hand": ByHand,
    "reused": Reused,
    "tied": Tied,
}
WORDS = "transformer", "transformer, time first, dropout", "masked", "tied"


def own_job(
    network: Callable[[], nn.Module], *, words: bool = False, loss: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Job:
    rng = np.random.default_rng(3)
    inputs = rng.integers(0, 9, (40, 6)) if words else rng.standard_normal((40, 1, 6, 6)).astype(np.float32)
    data = inputs, np.arange(40) % 4
    metric = wayfare.Metric(name="accuracy", better="higher")
    task = own_task("mine", train=data, test=data, network=network, loss=loss, metric=metric)
    held = [rng.integers(0, 40, 20) for _ in range(DEVICES)]
    return Job(LocalTraining(task=task, batches=Batches(held, BATCH, 6, seed=0), learning_rate=0.1), DEVICES)


def largest_error(local: Job, engine: str = "auto", real: torch.dtype = torch.float64) -> float:
    """The largest distance from the models of `reference`, relative to its updates."""
    initial = starts(local, real)
    expected, found = (run(name, local, initial, RAGGED) for name in ("reference", engine))
    updates = (expected - initial).norm(dim=1).clamp(min=1e-12)
    return float(((found - expected).norm(dim=1) / updates).max())


@pytest.mark.parametrize("name", NETWORKS)
def test_an_own_network_is_stacked_and_gives_the_updates_of_the_reference(name: str) -> None:
    local = own_job(NETWORKS[name], words=name in WORDS)
    chosen = choose_engine("auto", local.training)
    assert isinstance(chosen.engine, StackedMlp if name == "perceptron" else StackedTraced)
    assert (chosen.name, chosen.reason) == ("stacked", None)
    assert largest_error(local) <= 1e-10


@pytest.mark.parametrize("name", ["convolutional", "gru", "transformer, time first, dropout"])
@pytest.mark.parametrize(
    "descent",
    [
        Descent(pull=0.3),
        Descent(corrected=True, steps_per_round=2),
        Descent(momentum=0.9, weight_decay=0.01, clip_norm=0.1),
    ],
    ids=["prox", "scaffold", "momentum"],
)
def test_a_stack_of_an_own_network_follows_the_local_rule(name: str, descent: Descent) -> None:
    local = own_job(NETWORKS[name], words=name in WORDS)
    training = replace(local.training, descent=descent, schedule=Schedule("linear", 6))
    initial = starts(local, torch.float64)
    anchors = initial.roll(1, dims=1)[:, : training.task.model.parameters].contiguous()

    def trained(engine: str) -> tuple[Tensor, Tensor]:
        models, velocities = initial.clone(), 0.1 * anchors
        bursts = [
            Burst(
                *(burst.device, burst.first_round, burst.rounds),
                received=anchors[burst.device],
                correction=0.1 * anchors[burst.device] if descent.corrected else None,
                velocity=velocities[burst.device],
            )
            for burst in RAGGED
        ]
        made = make_engine(engine, training)
        assert engine == "reference" or isinstance(made, StackedTraced)
        made.run(list(models.unbind()), bursts)
        return models, velocities

    for found, expected in zip(trained("auto"), trained("reference"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_a_falling_learning_rate_reaches_weights_that_the_backward_pass_updates() -> None:
    local = own_job(NETWORKS["convolutional"])
    assert largest_error(Job(replace(local.training, schedule=Schedule("linear", 4)), DEVICES)) <= 1e-10


def test_logit_adjustment_applies_to_an_own_network() -> None:
    local = own_job(NETWORKS["gru"])
    adjusted = replace(local.training, local_loss=LocalLoss(offsets=torch.randn(DEVICES, 4)))
    assert isinstance(make_engine("auto", adjusted), StackedTraced)
    assert largest_error(Job(adjusted, DEVICES)) <= 1e-7  # the offsets are in single precision


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is no mean over samples, and reads values."""
    weights = 1.0 + (targets == int(targets[0]))
    return (functional.cross_entropy(outputs, targets, reduction="none") * weights).sum() / weights.sum()


@pytest.mark.parametrize("loss", [weighted, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_any_loss_of_outputs_and_targets_is_computed_for_each_device(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    local = own_job(NETWORKS["perceptron"], loss=loss)
    assert isinstance(make_engine("auto", local.training), StackedTraced)
    assert largest_error(local) <= 1e-10


def test_a_loss_that_insists_on_single_precision_is_compared_in_it() -> None:
    local = own_job(NETWORKS["perceptron"], loss=nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 2.0, 4.0])))
    assert isinstance(make_engine("auto", local.training), StackedTraced)
    assert largest_error(local, real=torch.float32) <= 1e-4


def test_a_stack_in_single_precision_repeats_bit_by_bit() -> None:
    local = own_job(NETWORKS["transformer, time first, dropout"], words=True)
    initial = starts(local, torch.float32)
    assert torch.equal(*(run("auto", local, initial, RAGGED) for _ in range(2)))


class Branching(nn.Linear):
    def forward(self, signal: Tensor) -> Tensor:
        out = super().forward(signal.flatten(1))
        return out if out.sum() > 0 else -out


class Reading(nn.Linear):
    def forward(self, signal: Tensor) -> Tensor:
        return super().forward(signal.flatten(1)) / float(signal.abs().max().item())


class Centred(nn.Linear):
    def forward(self, signal: Tensor) -> Tensor:
        out = super().forward(signal.flatten(1))
        return out - out.mean(dim=0, keepdim=True)


class Softened(nn.Linear):
    """It combines samples without changing a shape, which only a comparison finds."""

    def forward(self, signal: Tensor) -> Tensor:
        return super().forward(signal.flatten(1)).softmax(dim=0)


class Counted(nn.Linear):
    def forward(self, signal: Tensor) -> Tensor:
        return super().forward(signal.reshape(len(signal), -1))


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (lambda: Branching(36, 4), "it branches on values"),
        (lambda: Reading(36, 4), "it reads values (item)"),
        (lambda: Centred(36, 4), "mean() combines the samples of a minibatch"),
        (lambda: Softened(36, 4), "a stacked step differs from the plain one by"),
        (lambda: Counted(36, 4), "it calls len() on a minibatch; write x.size(0)"),
    ],
    ids=["branches", "reads", "centres", "softens", "counts"],
)
def test_a_network_that_cannot_be_stacked_says_why_and_runs_plainly(
    network: Callable[[], nn.Module], reason: str
) -> None:
    chosen = choose_engine("auto", own_job(network).training)
    assert isinstance(chosen.engine, Reference)
    assert chosen.name == "reference"
    assert chosen.reason is not None
    assert chosen.reason.startswith(f"the network of mine cannot be stacked: {reason}")


def test_stacked_by_name_takes_vmap_for_what_cannot_be_traced() -> None:
    local = own_job(lambda: Counted(36, 4))
    assert isinstance(make_engine("stacked", local.training), Vmapped)
    assert largest_error(local, engine="stacked") <= 1e-10


SMALL = ["rounds=6", "fleet.devices=3", "learning.batch_size=4", "mobility.width_m=200", "mobility.height_m=200"]


@pytest.mark.parametrize(("network", "name"), [(perceptron, "stacked"), (lambda: Softened(36, 4), "reference")])
def test_a_record_names_the_engine_and_the_reason(
    network: Callable[[], nn.Module], name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = own_job(network).training.task
    record = wayfare.run(wayfare.load(overrides=SMALL), "mads", task=task, out=tmp_path)
    assert record.meta["execution"]["engine"] == name
    reason = record.meta.get("engine_reason")
    if name == "stacked":
        assert reason is None
        assert not caplog.messages
    else:
        assert caplog.messages == [f"{reason}; using the engine reference"]
