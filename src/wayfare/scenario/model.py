"""The scenario: every number of an experiment, and the one table of defaults.

Defaults are the paper's (Table I and the calibration in docs/design.md) wherever the paper has a value.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from wayfare.scenario.argoverse import Argoverse
from wayfare.scenario.exchange import Contacts, Mixing, Relays
from wayfare.scenario.mobility import Mobility, WaypointMobility
from wayfare.scenario.partition import DirichletPartition, Partition
from wayfare.scenario.section import LARGEST, Count, Positive, Section
from wayfare.scenario.server import Server


class Fleet(Section):
    """How many devices there are, and what each may spend on transmitting."""

    # How many devices train; the server is not one of them.
    devices: Count = 20
    # The smallest energy budget of a device for the whole run.
    energy_min_joules: Positive = 50.0
    # The largest energy budget of a device for the whole run.
    energy_max_joules: Positive = 150.0
    # Budgets are drawn uniformly between the two above; with a total they are then scaled to sum to it.
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

    # Two nodes are in contact while they are at most this far apart.
    range_m: Positive = 100.0
    # The band that each upload has to itself.
    bandwidth_hz: Positive = 1e6
    # The carrier frequency, which sets the path loss.
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
    """What an entry of an update costs on the air."""

    # Bits of each value that is sent; an index costs log2 of the number of parameters on top.
    value_bits: Annotated[int, Field(ge=1, le=64)] = 32


Schedule = Literal["constant", "linear", "cosine"]
LocalLoss = Literal["plain", "logit-adjusted", "prox"]


def _none_or_several(count: int) -> int:
    if count == 1:
        raise ValueError("must be 0 (off) or at least 2: one sample has no variance")
    return count


class Learning(Section):
    """The task, the network and the local training."""

    # What the fleet learns: `fashion-small`, `fashion`, `cifar10`, `argoverse`, or a task of another package.
    task: str = "fashion-small"
    # `auto` is the task's own: a perceptron for fashion, ResNet-9 for cifar10, LaneGCN for argoverse.
    network: Literal["auto", "mlp", "cnn", "resnet9", "lanegcn"] = "auto"
    # Hidden layers of a perceptron.
    hidden: tuple[Count, ...] = (256, 128)
    # Of ResNet-9. The statistics of batch normalisation travel with every update; group normalisation has none.
    normalisation: Literal["batch", "group"] = "batch"
    # Training images are moved by up to 4 pixels and mirrored at random.
    augment: bool = False
    # The step size of local SGD.
    learning_rate: Positive = 0.01
    # How the rate falls over the rounds; by ||x|| of raw gradients the controller means x / learning_rate all the same.
    schedule: Schedule = "constant"
    # Samples in the minibatch of a local step.
    batch_size: Count = 32
    # What holds back devices that drift while they train alone. `logit-adjusted` adds the log of a device's own class
    # shares to its logits while it trains; `prox` pulls its model towards the one it received.
    local_loss: LocalLoss = "plain"
    # tau: what the log of a share is multiplied by.
    logit_strength: Positive = 1.0
    # The part of a device's class shares that is spread evenly over all classes: no share is 0, and a device with one
    # class still learns from it.
    logit_smoothing: Annotated[float, Field(ge=1e-6, le=1)] = 0.1
    # mu of mu/2 |w - received|^2.
    prox_strength: Positive = 0.1
    partition: Partition = DirichletPartition()
    argoverse: Argoverse = Argoverse()
    # Rounds between two evaluations of the global model on the test data.
    evaluate_every_rounds: Annotated[int, Field(ge=1)] = 20
    # Evaluations also say how good the model is for each device: the mean, and the mean of the worst tenth.
    evaluate_devices: bool = False
    # The accuracy of a run is the mean over its last evaluations: one evaluation alone moves by points.
    final_evaluations: Annotated[int, Field(ge=1)] = 5
    # Training samples, without their labels, from which the model that is judged gets its statistics of batch
    # normalisation. Averaged variances lack the variance between devices. 0: the statistics that came with the updates.
    recalibrate_statistics: Annotated[int, Field(ge=0, le=10_000_000), AfterValidator(_none_or_several)] = 0

    @field_validator("partition", mode="before")
    @classmethod
    def _kind(cls, partition: object) -> object:
        """A partition that does not say its kind is the paper's."""
        return {"kind": "dirichlet", **partition} if isinstance(partition, dict) else partition

    @model_validator(mode="after")
    def _pull_stops_short(self) -> Learning:
        if self.local_loss == "prox" and self.learning_rate * self.prox_strength > 1:
            raise ValueError(
                f"prox_strength ({self.prox_strength}) times learning_rate ({self.learning_rate}) must not exceed 1: "
                "a step would pull a model beyond the one it received"
            )
        return self


def _number_or_auto(value: Any) -> Any:
    """One rule for both shapes, so that a message never names the branch of a union."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST
    if value != "auto" and not is_number:
        raise ValueError(f'must be a number of at least 0 and at most {LARGEST:g}, or "auto"')
    return value


Weight: TypeAlias = Annotated[float | Literal["auto"], BeforeValidator(_number_or_auto)]


class Control(Section):
    """The Lyapunov controller (Section V)."""

    # V: what a unit of convergence bound is worth in joule-backlog; `auto` finds it, online and for each device, so
    # that the budget is used up and never exceeded.
    weight: Weight = 3e-4
    # `printed` leaves out the 1/ln 2 that Proposition 2 lacks; with a weight that finds itself both decide alike.
    variant: Literal["corrected", "printed"] = "corrected"
    # ||x||^2 of raw gradients (x / learning rate) or of x as Algorithm 1 has it.
    update_norm: Literal["raw", "scaled"] = "raw"


class Scenario(Section):
    """Everything an experiment is made of but its scheme and its seed."""

    # Names the folder of a run; it changes no number.
    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)] = "scenario"
    # How many rounds the fleet trains; a device takes one local step in each.
    rounds: Count = 4000
    # How long a round lasts.
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
    # What `compare` runs when no schemes are named.
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
                "a device has one exchange with the server in a round"
            )
        return self

    @property
    def duration_s(self) -> float:
        """How long the fleet moves."""
        return self.rounds * self.round_s
