"""The parts a method is made of, and the method itself.

A part is a frozen value: the same part and the same state give the same result, wherever it is computed. What a part
has to remember is an explicit `State` that belongs to the device or the server, so that checkpoints, other processes
and the field carry it without knowing what it means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from wayfare.control.auto_weight import Wanted, demand
from wayfare.errors import ScenarioError
from wayfare.methods.encounter import Encounter, EnergyRule, Upload
from wayfare.radio import Link
from wayfare.scenario.exchange import Relays

if TYPE_CHECKING:
    # PyTorch takes seconds to import, and a plan needs none.
    from torch import Tensor

    from wayfare.sparsify import Sparse

State: TypeAlias = Mapping[str, Any]
"""What a part remembers: tensors and numbers by name, or tables of them. It is replaced, never changed in place."""
NO_STATE: State = {}
Draw: TypeAlias = Callable[[], np.random.Generator]
"""Chance for a part: the same generator for the same seed, device and round."""


class Part:
    """One of the six parts of a method; a dataclass shows its values in records and in the keys of runs."""

    # Changed by the author when the same values come to mean something else, or the code cannot be identified.
    version: ClassVar[str] = ""

    def objection(self, method: Method) -> str | None:
        """Why this part cannot work with the other parts of a method; None if it can."""
        return None


class UploadRule(Part, ABC):
    """How many entries a device sends in a contact, and with what power."""

    # What a method is called that is made of this rule alone.
    name: ClassVar[str] = ""
    energy_rule: EnergyRule = "unlimited"
    # Whether it looks at where the device is and how fast; that costs a world some time to say.
    needs_position: ClassVar[bool] = False

    @abstractmethod
    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """The upload of one contact."""

    def demand(self, encounter: Encounter, link: Link) -> Wanted | None:
        """What a contact would take at the price of a joule, for `control.weight = "auto"`: by Proposition 2.

        The encounter does not know of this contact's part in the experience yet. None if there is nothing to send.
        """
        return paper_demand(encounter, link)

    def uses_forecast(self) -> bool:
        """Whether decisions depend on how long the contact will last; if not, an error of that does no harm."""
        return True

    def least_joules(self, link: Link) -> float:
        """With less energy than this left, a device never brings anything through again, and need not train."""
        return 0.0

    def any_length(self) -> bool:
        """Whether a run may be made longer afterwards: no decision looks at how many rounds there are."""
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
    """Which entries and values represent an update."""

    # Whether what it sends are entries of the update as they are, and the largest of it: checks then look at that.
    sends_largest: ClassVar[bool] = False

    @abstractmethod
    def select(self, vector: Tensor, entries: int, draw: Draw) -> Sparse:
        """At most so many entries of a vector, and the values that the server gets for them."""

    def priced(self, link: Link) -> Link:
        """The link with what an entry, or a whole update, costs in this form; by default as the link has it."""
        return link


class MemoryRule(Part, ABC):
    """What a device has to send, and what it remembers of what was not sent.

    The memory is a vector; rules that need more keep it in their state.
    """

    # Whether memory and what was sent are always all that there was to send: then mass can be balanced.
    conserves: ClassVar[bool] = False

    def init(self, like: Tensor) -> State:
        """What the rule remembers beside the memory before the first contact."""
        return NO_STATE

    @abstractmethod
    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        """What there is to send, from the memory and what was learned since the last model came (g in Algorithm 1).

        The state counts only if the upload completes: one that does not changes nothing.
        """

    @abstractmethod
    def keep(self, update: Tensor, sent: Sparse, state: State) -> tuple[Tensor, State]:
        """The memory after some entries of what there was to send have been delivered."""

    def take_back(self, memory: Tensor, returned: Sparse, state: State) -> tuple[Tensor, State]:
        """Entries that were sent and did not arrive after all, as can happen in the field."""
        return memory.index_add(0, returned.indices, returned.values), state


@dataclass(frozen=True, kw_only=True)
class LocalRule(Part):
    """How a device trains between contacts; loss, learning rate and batch size are the scenario's.

    By default a step of SGD on every round. What else a rule declares is done by the engines
    (`wayfare.learning.descent` has the formulas).
    """

    trains_between_contacts: bool = True
    prox: float = 0.0  # mu of mu/2 |w - received|^2
    clip_norm: float | None = None  # longer gradients are scaled down to this length
    weight_decay: float = 0.0
    momentum: float = 0.0  # begins at zero with every model that is received
    steps_per_round: int = 1

    # Whether a vector of the device is added to every gradient: `correction` in its state, 0 at the beginning.
    corrects: ClassVar[bool] = False

    def pull(self) -> float:
        """Every gradient gets pull (w - received) added, as a proximal term does; 0 adds nothing."""
        return self.prox

    def init(self, like: Tensor) -> State:
        """What a device remembers before the first contact."""
        return {"correction": like.new_zeros(()).expand(len(like))} if self.corrects else NO_STATE

    def delivered(self, state: State, change: Tensor) -> State:
        """After what was learned has been delivered, all of it or in part."""
        return state

    def received(self, state: State, handed: State) -> State:
        """After the server handed down a model, and beside it what its rule hands to this device."""
        return {**state, **handed} if self.corrects else state

    def correction(self, state: State) -> Tensor | None:
        """What is added to every gradient until the next model comes."""
        return state["correction"] if self.corrects else None


# In the field, a device that missed a model may have trained from any other.
UNKNOWN_REACH = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    device: int
    sent: Sparse  # entries of an update, or a whole model where the server rule takes models
    staleness_rounds: int = 1  # rounds since the device received the model it trained from
    round: int = 1
    samples: int | None = None  # that the device holds, where that is known
    # The sum of learning rates over the steps behind it: what a gradient of size 1 would have moved the model by.
    reach: float = UNKNOWN_REACH


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTerms:
    """What a server knows of its fleet."""

    devices: int
    statistics: int = 0  # entries of normalisation at the end of a vector, which are taken as they come


class ServerRule(Part, ABC):
    """What the server does with what arrives."""

    # What a device sends: its update, or its whole model, all or nothing.
    takes: ClassVar[Literal["updates", "models"]] = "updates"
    # Whether pieces of an upload may be used as they come; otherwise the field waits until it is all there.
    takes_pieces: ClassVar[bool] = False
    # Whether it hands more to devices than the model.
    hands_down: ClassVar[bool] = False
    # Whether it takes an update divided by its reach for the mean gradient, which needs plain steps of SGD.
    uses_reach: ClassVar[bool] = False

    def objection(self, method: Method) -> str | None:
        """What a server hands down must be used, and reaches no device by way of another."""
        if self.hands_down and not method.local.corrects:
            return "its server hands down corrections; add a local rule that uses them"
        if self.hands_down and method.peers is not None:
            return "relays carry models, and not what else the server hands down"
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
        """The model after a round in which something arrived, in the order of the devices.

        Devices may hold the model that is given: a new one takes its place.
        """

    def handed(self, state: State, device: int) -> State:
        """What a device gets beside the model."""
        return NO_STATE

    def taken(self, model: Tensor, state: State, terms: ServerTerms) -> Tensor | None:
        """The sum of all updates so far, but for a constant, as model and state hold it: mass can be balanced.

        None where they do not tell; then only what arrived is balanced.
        """
        return None


@dataclass(frozen=True)
class PeerRule(Part):
    """What two devices do when they meet: they carry updates and models for each other (FedMobile).

    `rules` say when, how often and at whose cost. Override the two methods to choose otherwise among those that may.
    """

    rules: Relays = field(default_factory=Relays)

    def objection(self, method: Method) -> str | None:
        """What is carried must add up."""
        if method.server.takes == "models":
            return "a method that mixes models cannot relay updates"
        return None if method.memory.conserves else "relays need a memory that keeps all that was not sent"

    def relay(self, willing: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Who carries an update: of devices with room for it, those who meet the server soonest first."""
        return willing[0]

    def giver(self, known: Sequence[tuple[int, int]]) -> int:
        """Whose model is taken, of (device, round in which it got its model): the newest, then the least number."""
        return max(known, key=lambda peer: (peer[1], -peer[0]))[0]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: six parts and a name."""

    name: str
    upload: UploadRule
    compressor: Compressor
    memory: MemoryRule
    server: ServerRule
    local: LocalRule = field(default_factory=LocalRule)
    peers: PeerRule | None = None
    # How the registry makes it again, where that is not its name.
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
        }
        return {kind: part for kind, part in every.items() if part is not None}

    @property
    def energy_rule(self) -> EnergyRule:
        return self.upload.energy_rule

    def any_length(self) -> bool:
        """Whether a run may be made longer afterwards; relays look at who will meet the server again."""
        return self.upload.any_length() and self.peers is None
