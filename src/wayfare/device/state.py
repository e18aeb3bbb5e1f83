"""What a device carries from contact to contact, and what changes it outside of one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from wayfare.methods import NO_STATE, Method, State
from wayfare.methods.account import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState(Account):
    """A device of Algorithm 1. Its local model is w_n = received - g_n."""

    received: Tensor  # the last global model it got
    memory: Tensor  # e, what error feedback remembers
    memory_state: State = field(default_factory=dict)  # what else the memory rule remembers
    local_state: State = field(default_factory=dict)  # what the local rule remembers


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
    """Take the global model, and what the server hands down beside it: g = 0 and the age of the model is 0."""
    local_state = method.local.received(state.local_state, handed)
    return replace(state, received=model, received_round=round_, local_state=local_state)


def undelivered(state: DeviceState, local_model: Tensor) -> Tensor:
    """x = e + g, all that a device computed and nobody has."""
    return state.memory + (state.received - local_model)


def hand_over(state: DeviceState, update: Tensor) -> DeviceState:
    """Give x to a relay, which answers for it from then on: e becomes e - x = -g.

    The device keeps its received and its local model; what it sends later is e + g again, which now is only what is
    new.
    """
    return replace(state, memory=state.memory - update)


def take_model(
    state: DeviceState, update: Tensor, model: Tensor, model_round: int, nothing: Tensor
) -> tuple[DeviceState, Tensor]:
    """Take the global model of another device and put x = e + g on top of it: the new state and the new local model.

    All that nobody has is then in the local model, and nothing in the memory.
    """
    return replace(state, received=model, received_round=model_round, memory=nothing), model - update
