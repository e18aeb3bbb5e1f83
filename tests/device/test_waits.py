"""The host waits for a GPU only where a decision needs numbers, and a fixed number of times.

A wait leaves the GPU idle, and nothing fails if there is one more. So these runs take the algorithms of a GPU, which
are plain tensor operations, on a CPU, and count the calls that would wait there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.simulator.test_simulator import Notes
from torch import Tensor
from torch.overrides import TorchFunctionMode

from wayfare.codec import length
from wayfare.device import DeviceState, Meeting, Terms, Transmission, contact
from wayfare.methods import make_method
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.simulator import Simulation
from wayfare.sparsify import spectrum, topk
from wayfare.world import draw_world

ENTRIES = 40_000
LINK = Link(bandwidth_hz=1e6, max_power_watts=0.2, parameters=ENTRIES, bits_per_entry=47.3, dense_bits=ENTRIES * 32.0)
# Each reads one number or one tensor. `numpy` follows `cpu`, which has waited by then.
_READING = {"cpu", "item", "tolist", "nonzero", "masked_select", "unique", "equal"}
_READING |= {"__float__", "__int__", "__bool__", "__index__", "__contains__"}


class Waits(TorchFunctionMode):
    """Counts the calls that wait for a GPU, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        self.calls[name] += name in _READING
        if name == "bincount":
            # It reads the largest number, and the smallest unless numbers are bytes.
            self.calls[name] += 1 if args[0].dtype == torch.uint8 else 2
        if name == "__getitem__" and isinstance(args[1], Tensor):
            self.calls[name] += args[1].dtype == torch.bool
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _algorithms_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "_is_on_gpu", lambda _: True)
    monkeypatch.setattr(length, "_is_on_gpu", lambda _: True)
    monkeypatch.setattr(topk, "_largest_by_threshold", topk._largest_by_selection)


def one_contact(
    scheme: str, contact_s: float, link: Link = LINK, where: torch.device | None = None
) -> tuple[Transmission, dict[str, int]]:
    """A contact of a device with an update of normal numbers, and its waits."""
    model = torch.randn(ENTRIES, generator=torch.Generator().manual_seed(1)).to(where)
    state = DeviceState(received=model, memory=torch.zeros_like(model), budget_joules=2.0, backlog_joules=1e-6)
    terms = Terms(method=make_method(scheme, Scenario()), link=link, rounds=4000)
    meeting, local_model = Meeting(round=100, contact_s=contact_s, gain_per_watt=1e5), torch.zeros_like(model)
    with Waits() as waits:
        done = contact(state, local_model, meeting, terms)
    return done, dict(+waits.calls)


@pytest.mark.parametrize("scheme", ["mads", "afl-spar", "sfl-spar"])
def test_a_contact_without_a_curve_waits_for_the_norm_alone(scheme: str) -> None:
    done, waits = one_contact(scheme, 0.03)
    assert 0 < done.upload.entries < ENTRIES
    assert waits == {"cpu": 1}


@pytest.mark.parametrize(
    ("contact_s", "entries", "messages"),
    [
        pytest.param(0.006, 13_394, 3, id="part of an update: the third length fits"),
        pytest.param(0.03, ENTRIES, 1, id="a whole update"),
    ],
)
def test_mads_rd_waits_once_to_decide_and_once_for_every_message_it_tries(
    contact_s: float, entries: int, messages: int
) -> None:
    done, waits = one_contact("mads-rd", contact_s)
    assert done.upload.entries == pytest.approx(entries, rel=0.01)
    assert waits == {"cpu": 1 + messages}


@pytest.mark.gpu
def test_a_contact_with_kernels_is_the_same_and_waits_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, because the interpreter of kernels takes long. Their own tests also run there."""
    done, waits = one_contact("mads-rd", 0.006)
    monkeypatch.setattr(topk, "_largest_by_selection", None)
    monkeypatch.setattr(length, "_byte_counts", None)
    monkeypatch.setattr(spectrum, "first_indices", None)
    synchronised: list[torch.cuda.Event] = []
    wait = torch.cuda.Event.synchronize

    def counted(event: torch.cuda.Event) -> None:
        synchronised.append(event)
        wait(event)

    monkeypatch.setattr(torch.cuda.Event, "synchronize", counted)
    by_kernels, waits_of_kernels = one_contact("mads-rd", 0.006, where=torch.device("cuda"))
    assert (by_kernels.upload.entries, by_kernels.upload.bits) == (done.upload.entries, done.upload.bits)
    assert torch.equal(by_kernels.state.memory.cpu(), done.state.memory)
    # Numbers come through pinned memory, and the host waits for their copy.
    assert waits_of_kernels == {}
    assert len(synchronised) == waits["cpu"]


def test_normalisation_statistics_add_no_wait() -> None:
    _, without = one_contact("mads-rd", 0.03)
    with_statistics = replace(LINK, parameters=ENTRIES - 64, statistics_bits=64 * 32.0)
    _, waits = one_contact("mads-rd", 0.03, with_statistics)
    assert waits == without


def test_the_server_and_the_rounds_of_a_run_wait_only_to_evaluate(small: Scenario) -> None:
    world, notes = draw_world(small, 0), Notes()
    simulation = Simulation(world, make_method("mads", small), notes)
    with Waits() as waits:
        simulation.run()
    # A contact reads the norm, an evaluation loss and score together.
    assert +waits.calls == {"cpu": len(notes.contacts), "tolist": len(notes.evaluations)}
