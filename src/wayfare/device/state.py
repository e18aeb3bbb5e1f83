"""The state of a device, and its changes outside a contact with the server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from wayfare.methods import NO_STATE, Method, State
from wayfare.methods.account import Account
from wayfare.radio import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState(Account):
    """A device of Algorithm 1. Its local model is w_n = received - g_n."""

    received: Tensor  # the global model of the last download
    memory: Tensor  # e, the memory of error feedback
    memory_state: State = field(default_factory=dict)  # of the memory rule
    local_state: State = field(default_factory=dict)  # of the local rule


def begin_device(model: Tensor, nothing: Tensor, budget_joules: float, method: Method) -> DeviceState:
    """A device before its first contact; ``nothing`` is a memory of zeros."""
    return DeviceState(
        received=model,
        memory=nothing,
        memory_state=method.memory.init(model),
        local_state=method.local.init(model),
        budget_joules=budget_joules,
    )


def receive(state: DeviceState, model: Tensor, round_: int, method: Method, handed: State = NO_STATE) -> DeviceState:
    """Download the global model and what the server rule adds to it. Then g = 0 and the staleness is 0."""
    local_state = method.local.received(state.local_state, handed)
    return replace(state, received=model, received_round=round_, local_state=local_state)


def undelivered(state: DeviceState, local_model: Tensor) -> Tensor:
    """x = e + g: everything that a device learned and has not delivered."""
    return state.memory + (state.received - local_model)


def hand_over(state: DeviceState, update: Tensor) -> DeviceState:
    """Give x to a relay, which is then responsible for it: e becomes e - x = -g.

    The device keeps its received and local models. Its next update e + g contains only what is new.
    """
    return replace(state, memory=state.memory - update)


def take_model(
    state: DeviceState, update: Tensor, model: Tensor, model_round: int, nothing: Tensor
) -> tuple[DeviceState, Tensor]:
    """Take a global model W from another device: the local model becomes W - x with x = e + g.

    Everything undelivered is then in the local model, and the memory is empty.
    """
    return replace(state, received=model, received_round=model_round, memory=nothing), model - update


def first_trained(link: Link) -> int:
    """The first entry after class statistics; the first of all if there are only statistics."""
    return link.sums if link.sums < link.parameters else 0


def delivers_first(state: DeviceState, link: Link) -> bool:
    """Whether a device may have statistics to deliver before it trains: some are left, or it has sent nothing yet."""
    first = first_trained(link)
    return first > 0 and (state.received_round == 0 or bool(state.memory[:first].any()))
