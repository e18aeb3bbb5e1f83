"""`Method` and the six parts of a method.

A part is a frozen value: the same part and the same state give the same result everywhere. Memory of a part is an
explicit `State` that belongs to the device or the server. Checkpoints, worker processes and the field carry it
without knowing its meaning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np

from wayfare.control.auto_weight import Wanted, demand
from wayfare.errors import ScenarioError
from wayfare.methods.collection import Collection
from wayfare.methods.encounter import Encounter, EnergyRule, Upload
from wayfare.radio import Link
from wayfare.scenario.exchange import Relays

if TYPE_CHECKING:
    # PyTorch takes seconds to import, and plans do not need it.
    from torch import Tensor

    from wayfare.methods.guard import Guard
    from wayfare.methods.privacy import Private
    from wayfare.sparsify import Sparse

State: TypeAlias = Mapping[str, Any]
"""The state of a part: tensors and numbers by name, or nested tables of them. Replace it, never change it in place."""
NO_STATE: State = {}
Draw: TypeAlias = Callable[[], np.random.Generator]
"""Returns a generator that depends only on seed, device and round."""


class Part:
    """One of the six parts of a method. The fields of a dataclass enter records and the keys of runs."""

    # Change it when the same values get another meaning, or when the code cannot be identified.
    version: ClassVar[str] = ""

    def objection(self, method: Method) -> str | None:
        """Why this part does not work with the other parts; None if it does."""
        return None


class UploadRule(Part, ABC):
    """How many entries a device sends in a contact, and at what power."""

    # The name of a method that consists of this rule alone.
    name: ClassVar[str] = ""
    energy_rule: EnergyRule = "unlimited"
    # Whether it reads position and speed, which take time to compute.
    needs_position: ClassVar[bool] = False
    # Whether decisions depend on the update. Otherwise a private device can ignore a contact at no cost in privacy.
    uses_update: ClassVar[bool] = True
    # Whether it calls `Encounter.profile` in nearly every contact. A GPU then sends norm and profile together.
    uses_profile: ClassVar[bool] = False

    def objection(self, method: Method) -> str | None:
        known = get_args(EnergyRule)
        if self.energy_rule in known:
            return None
        return f"energy_rule = {self.energy_rule!r}: must be one of {', '.join(known)}"

    @abstractmethod
    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """Decide the upload of one contact."""

    def demand(self, encounter: Encounter, link: Link) -> Wanted | None:
        """The energy that a contact would use as a function of the price of a joule, by Proposition 2.

        `control.weight = "auto"` needs it. ``encounter.experience`` does not include this contact yet. The result is
        None if there is nothing to send.
        """
        return paper_demand(encounter, link)

    def uses_forecast(self) -> bool:
        """Whether decisions depend on the forecast length of the contact."""
        return True

    def min_upload_joules(self, link: Link) -> float:
        """With less energy than this, a device can never upload again, so it stops training."""
        return 0.0

    def is_extendable(self) -> bool:
        """Whether decisions ignore the number of rounds, so that a finished run can be extended."""
        return False


def paper_demand(encounter: Encounter, link: Link) -> Wanted | None:
    return demand(
        link,
        contact_s=encounter.contact_s,
        gain_per_watt=encounter.gain_per_watt,
        staleness_rounds=encounter.staleness_rounds,
        update_norm_sq=encounter.update_norm_sq,
    )


class Compressor(Part, ABC):
    """Which entries represent an update, and with which values."""

    # Whether it sends the largest entries with exact values; checks then verify this.
    sends_largest: ClassVar[bool] = False

    @abstractmethod
    def select(self, vector: Tensor, entries: int, draw: Draw) -> Sparse:
        """Select at most ``entries`` entries of a vector, with the values that the server receives."""

    def priced(self, link: Link) -> Link:
        """The link with the cost of an entry and of a dense update under this compressor."""
        return link


class MemoryRule(Part, ABC):
    """How the update forms from the memory, and which memory remains after an upload.

    The memory is a vector. A rule that needs more keeps it in its state.
    """

    # Whether sent entries plus memory always equal the update, so that mass can be balanced.
    conserves: ClassVar[bool] = False

    def init(self, like: Tensor) -> State:
        """The state before the first contact."""
        return NO_STATE

    @abstractmethod
    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        """The update, from the memory and the change since the last download (g in Algorithm 1).

        The new state takes effect only if the upload completes.
        """

    @abstractmethod
    def keep(self, update: Tensor, sent: Sparse, state: State) -> tuple[Tensor, State]:
        """The memory after the server received some entries of the update."""

    def take_back(self, memory: Tensor, returned: Sparse, state: State) -> tuple[Tensor, State]:
        """Return entries to the memory that were sent and did not arrive, as can happen in the field."""
        return memory.index_add(0, returned.indices, returned.values), state


@dataclass(frozen=True, kw_only=True)
class LocalRule(Part):
    """How a device trains between contacts. The scenario sets loss, learning rate and batch size.

    The default is one step of SGD per round. A rule declares what else it needs, and the engines implement it
    (`wayfare.learning.descent` has the formulas).
    """

    trains_between_contacts: bool = True
    prox: float = 0.0  # mu of mu/2 |w - received|^2
    clip_norm: float | None = None  # gradients above this norm are scaled down to it
    weight_decay: float = 0.0
    momentum: float = 0.0  # restarts at zero with every download
    steps_per_round: int = 1

    # Whether the vector `correction` of the state, initially 0, is added to every gradient.
    corrects: ClassVar[bool] = False

    def collects(self) -> Collection | None:
        """The statistics that devices collect. Their sums are the first entries of the vector; None: it is a model."""
        return None

    def pull(self) -> float:
        """The factor of (w - received) that is added to every gradient, as by a proximal term."""
        return self.prox

    def init(self, like: Tensor) -> State:
        """The state before the first contact."""
        return {"correction": like.new_zeros(()).expand(len(like))} if self.corrects else NO_STATE

    def delivered(self, state: State, change: Tensor) -> State:
        """The state after a complete or partial upload."""
        return state

    def received(self, state: State, handed: State) -> State:
        """The state after a download; ``handed`` is what the server rule adds to the model."""
        return {**state, **handed} if self.corrects else state

    def correction(self, state: State) -> Tensor | None:
        """The vector that is added to every gradient until the next download."""
        return state["correction"] if self.corrects else None


# In the field, a device that missed a model may have trained from any other.
UNKNOWN_REACH = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    device: int
    sent: Sparse  # entries of an update, or a whole model if the server rule takes models
    staleness_rounds: int = 1  # rounds since the device received the model it trained from
    round: int = 1
    samples: int | None = None  # held by the device; None if unknown
    # The sum of learning rates over its local steps: how far a gradient of norm 1 would have moved the model.
    reach: float = UNKNOWN_REACH


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTerms:
    """What a server rule knows about the fleet."""

    devices: int
    statistics: int = 0  # normalisation statistics at the end of a vector; rules average them without a step size
    sums: int = 0  # class statistics at the beginning of a vector, which add up
    # The trained entries that statistics give, from the sums; None if nothing is trained after them.
    classifier: Callable[[Tensor], Tensor] | None = field(default=None, compare=False, repr=False)


class ServerRule(Part, ABC):
    """How the server updates the global model from arrivals."""

    # What a device sends: its update, or its whole model, all or nothing.
    takes: ClassVar[Literal["updates", "models"]] = "updates"
    # Whether `apply` takes arrivals strictly one after the other, so that a round may be applied in several calls.
    one_by_one: ClassVar[bool] = False
    # Whether pieces of an upload may be applied as they arrive. Otherwise the field waits for the whole upload.
    takes_pieces: ClassVar[bool] = False
    # Whether it leaves all entries alone that no arrival carries. A subclass with another `apply` says so again.
    changes_only_sent: ClassVar[bool] = False
    # Whether it hands state to devices besides the model.
    hands_down: ClassVar[bool] = False
    # Whether it derives mean gradients from updates (update / reach), which needs plain SGD steps.
    uses_reach: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """A rule with its own `apply` does not inherit what another rule declares about its own."""
        super().__init_subclass__()
        if "apply" in vars(cls):
            cls.one_by_one = vars(cls).get("one_by_one", False)
            cls.changes_only_sent = vars(cls).get("changes_only_sent", False)

    def objection(self, method: Method) -> str | None:
        """Handed-down state needs a local rule that uses it, and relays do not carry it."""
        if self.hands_down and not method.local.corrects:
            return "its server hands down corrections; add a local rule that uses them"
        if self.hands_down and method.peers is not None:
            return "relays carry models, but not the state that the server hands down"
        local = method.local
        if self.uses_reach and (local.pull() or local.clip_norm or local.weight_decay or local.momentum):
            return "its server derives gradients from updates; train without prox, clipping, weight decay and momentum"
        return None

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        return NO_STATE

    @abstractmethod
    def apply(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms
    ) -> tuple[Tensor, State]:
        """The model and the state after the arrivals of a round, which are in the order of devices.

        Devices may share the given model: return a new one, do not change it in place.
        """

    def handed(self, state: State, device: int) -> State:
        """The state that a device receives with the model."""
        return NO_STATE

    def taken(self, model: Tensor, state: State, terms: ServerTerms) -> Tensor | None:
        """The sum of all updates so far, up to a constant, derived from model and state, to balance mass.

        None if it cannot be derived; then only the arrivals are balanced.
        """
        return None


@dataclass(frozen=True)
class PeerRule(Part):
    """What two devices do in a contact: relay updates and models for each other (FedMobile).

    `rules` say when, how often and at whose cost. Override the two methods to choose another peer.
    """

    rules: Relays = field(default_factory=Relays)

    def objection(self, method: Method) -> str | None:
        """Relays add updates, so they need updates that sum without loss."""
        if method.server.takes == "models":
            return "its server mixes models; relays can only carry updates"
        return None if method.memory.conserves else "relays need a memory rule that keeps everything that was not sent"

    def relay(self, willing: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Choose the relay among willing devices, sorted by their next contact with the server."""
        return willing[0]

    def giver(self, known: Sequence[tuple[int, int]]) -> int:
        """Choose whose model to take, among (device, round of its download): the newest, then the lowest number."""
        return max(known, key=lambda peer: (peer[1], -peer[0]))[0]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Six parts and a name; optionally privacy before memory and compressor, and a guard before the server rule."""

    name: str
    upload: UploadRule
    compressor: Compressor
    memory: MemoryRule
    server: ServerRule
    local: LocalRule = field(default_factory=LocalRule)
    peers: PeerRule | None = None
    privacy: Private | None = None
    guard: Guard | None = None
    # The composition that makes it again, if the name alone does not.
    text: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        for part in self.parts.values():
            objection = part.objection(self)
            if objection is not None:
                raise ScenarioError("schemes", self.name, objection)

    @property
    def parts(self) -> dict[str, Part]:
        every = {
            "upload": self.upload,
            "compressor": self.compressor,
            "memory": self.memory,
            "local": self.local,
            "server": self.server,
            "peers": self.peers,
            "privacy": self.privacy,
            "guard": self.guard,
        }
        return {kind: part for kind, part in every.items() if part is not None}

    @property
    def energy_rule(self) -> EnergyRule:
        return self.upload.energy_rule

    def is_extendable(self) -> bool:
        """Whether a finished run can be extended. Relays look ahead to later contacts, so they prevent it."""
        return self.upload.is_extendable() and self.peers is None
