"""The scenario: all settings of an experiment and their defaults.

Defaults are the paper's (Table I, and the calibration in docs/design.md) where the paper states a value.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from wayfare.scenario.argoverse import Argoverse
from wayfare.scenario.exchange import Contacts, Mixing, Relays
from wayfare.scenario.mobility import Mobility, WaypointMobility
from wayfare.scenario.partition import DirichletPartition, Partition
from wayfare.scenario.section import LARGEST, Count, Positive, Section
from wayfare.scenario.server import Server


class Fleet(Section):
    """The number of devices and their energy budgets."""

    # Number of devices, without the server.
    devices: Count = 20
    # The smallest energy budget of a device for the whole run.
    energy_min_joules: Positive = 50.0
    # The largest energy budget of a device for the whole run.
    energy_max_joules: Positive = 150.0
    # Budgets are uniform between minimum and maximum. With a total, they are then scaled to this sum.
    energy_total_joules: Positive | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Fleet:
        if self.energy_min_joules > self.energy_max_joules:
            raise ValueError(
                f"energy_min_joules ({self.energy_min_joules}) must not exceed energy_max_joules "
                f"({self.energy_max_joules})"
            )
        return self


class Radio(Section):
    """The uplink: 3GPP TR 38.901 UMi street canyon and a Shannon rate."""

    # Two nodes are in contact while their distance is at most this.
    range_m: Positive = 100.0
    # The bandwidth of each upload.
    bandwidth_hz: Positive = 1e6
    # The carrier frequency, which determines the path loss.
    carrier_hz: Positive = 3.5e9
    # The largest transmission power of a device.
    max_power_watts: Positive = 0.2
    # The noise power density at the receiver.
    noise_dbm_per_hz: Annotated[float, Field(ge=-300, le=100)] = -174.0
    # The standard deviation of shadowing with a line of sight.
    shadowing_los_db: Annotated[float, Field(ge=0, le=100)] = 4.0
    # The standard deviation of shadowing without a line of sight.
    shadowing_nlos_db: Annotated[float, Field(ge=0, le=100)] = 8.2


class Upload(Section):
    """The size of an entry in an upload."""

    # Bits per value. An index takes log2 of the number of parameters in addition.
    value_bits: Annotated[int, Field(ge=1, le=64)] = 32


NO_BACKBONE = "none"
Schedule = Literal["constant", "linear", "cosine"]
LocalLoss = Literal["plain", "logit-adjusted", "prox"]
Trained = Literal["head", "norms", "adapters", "last-block", "everything"]


def _none_or_several(count: int) -> int:
    if count == 1:
        raise ValueError("must be 0 (off) or at least 2: one sample has no variance")
    return count


class Learning(Section):
    """The task, the network and the local training."""

    # `fashion-small`, `fashion`, `cifar10`, `argoverse`, or your own task (`mine.py:task`).
    task: str = "fashion-small"
    # `auto` depends on the task: a perceptron for fashion, ResNet-9 for cifar10, LaneGCN for argoverse. On top of a
    # backbone it is `linear`, one layer.
    network: Literal["auto", "mlp", "cnn", "resnet9", "lanegcn", "linear"] = "auto"
    # A pre-trained network: `none`, `efficientnet-lite0`, `torchvision:NAME`, `timm:NAME` (`NAME@FILE` with a file of
    # weights), or your own (`mine.py:backbone`).
    backbone: str = NO_BACKBONE
    # Width and height to which images are resized for the backbone.
    backbone_pixels: Annotated[int, Field(ge=32, le=1024)] = 160
    # What is trained, sent and billed: the network on top of the backbone (`head`), and in addition scale and shift of
    # the normalisations in its last blocks (`norms`), low-rank adapters in them (`adapters`), all their weights
    # (`last-block`), or all weights (`everything`). The rest is frozen.
    trained: Trained = "head"
    # How many of the last blocks of the backbone `norms`, `adapters` and `last-block` change. Blocks before them are
    # computed once and cached.
    trained_blocks: Count = 7
    # r of W + (alpha / r) B A. A layer of m inputs and n outputs has r (m + n) trained entries.
    adapter_rank: Count = 8
    # alpha: scales adapters, and the length of their steps with its square.
    adapter_alpha: Positive = 16.0
    # Hidden layers of a perceptron.
    hidden: tuple[Count, ...] = (256, 128)
    # Normalisation in ResNet-9. Batch normalisation has statistics, which every update carries; group has none.
    normalisation: Literal["batch", "group"] = "batch"
    # Shift training images by up to 4 pixels and mirror them, at random.
    augment: bool = False
    # The step size of local SGD.
    learning_rate: Positive = 0.01
    # How the rate falls over the rounds. The controller always divides updates by the initial `learning_rate`.
    schedule: Schedule = "constant"
    # Samples in the minibatch of a local step.
    batch_size: Count = 32
    # Limits the drift of local models. `logit-adjusted` adds the logarithm of the device's class shares to the logits
    # during training; `prox` pulls the model towards the received one.
    local_loss: LocalLoss = "plain"
    # tau: factor of the logarithm of a class share.
    logit_strength: Positive = 1.0
    # Mixes a device's class shares with equal shares, so that no share is 0 and a device with one class still learns.
    logit_smoothing: Annotated[float, Field(ge=1e-6, le=1)] = 0.1
    # mu of mu/2 |w - received|^2.
    prox_strength: Positive = 0.1
    partition: Partition = DirichletPartition()
    argoverse: Argoverse = Argoverse()
    # Rounds between two evaluations of the global model on the test data.
    evaluate_every_rounds: Annotated[int, Field(ge=1)] = 20
    # Also evaluate the model for each device: the mean score, and the mean of the worst tenth.
    evaluate_devices: bool = False
    # The score of a run is the mean over this many last evaluations, because a single one varies by points.
    final_evaluations: Annotated[int, Field(ge=1)] = 5
    # Number of unlabelled training samples from which the evaluated model gets its batch normalisation statistics.
    # Averaged variances lack the variance between devices. 0: use the averaged statistics.
    recalibrate_statistics: Annotated[int, Field(ge=0, le=10_000_000), AfterValidator(_none_or_several)] = 0

    @field_validator("partition", mode="before")
    @classmethod
    def _kind(cls, partition: object) -> object:
        """The default kind is the paper's."""
        return {"kind": "dirichlet", **partition} if isinstance(partition, dict) else partition

    @field_validator("trained")
    @classmethod
    def _has_what_it_trains(cls, trained: Trained, others: ValidationInfo) -> Trained:
        if trained != "head" and others.data.get("backbone") == NO_BACKBONE:
            raise ValueError("needs a backbone; without one, all of the network is trained")
        return trained

    @model_validator(mode="after")
    def _pull_stops_short(self) -> Learning:
        if self.local_loss == "prox" and self.learning_rate * self.prox_strength > 1:
            raise ValueError(
                f"prox_strength ({self.prox_strength}) times learning_rate ({self.learning_rate}) must not exceed 1: "
                "a step would overshoot the received model"
            )
        return self


def _number_or_auto(value: Any) -> Any:
    """Check both types with one rule, so that a message never names the branch of a union."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST
    if value != "auto" and not is_number:
        raise ValueError(f'must be a number of at least 0 and at most {LARGEST:g}, or "auto"')
    return value


Weight: TypeAlias = Annotated[float | Literal["auto"], BeforeValidator(_number_or_auto)]


class Control(Section):
    """The Lyapunov controller (Section V)."""

    # V: trade-off between accuracy and energy. `auto` finds it online for each device, so that the device uses its
    # budget and never exceeds it.
    weight: Weight = 3e-4
    # `printed` omits the factor 1/ln 2, as Proposition 2 does. With `weight = "auto"` both give the same decisions.
    variant: Literal["corrected", "printed"] = "corrected"
    # ||x||^2 of raw gradients (x / learning rate), or of x as in Algorithm 1.
    update_norm: Literal["raw", "scaled"] = "raw"


class Scenario(Section):
    """All settings of an experiment except scheme and seed."""

    # Part of the folder name of a run; does not affect results.
    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)] = "scenario"
    # Number of rounds. A device takes one local step per round.
    rounds: Count = 4000
    # Length of a round.
    round_s: Positive = 10.0
    fleet: Fleet = Fleet()
    mobility: Mobility = WaypointMobility()
    contacts: Contacts = Contacts()
    radio: Radio = Radio()
    upload: Upload = Upload()
    learning: Learning = Learning()
    control: Control = Control()
    server: Server = Server()
    mixing: Mixing = Mixing()
    relays: Relays = Relays()
    # The default schemes of `compare`.
    schemes: tuple[str, ...] = (
        "mads",
        "optimal",
        "afl-spar:paced",
        "afl-spar",
        "afl:fitting",
        "afl",
        "sfl-spar",
    )

    @model_validator(mode="after")
    def _one_exchange_a_round(self) -> Scenario:
        most_s = self.contacts.max_exchange_s
        if most_s is not None and most_s < self.round_s:
            raise ValueError(
                f"contacts.max_exchange_s ({most_s}) must be at least round_s ({self.round_s}): "
                "a device has at most one exchange with the server per round"
            )
        return self

    @property
    def duration_s(self) -> float:
        """The simulated time."""
        return self.rounds * self.round_s
