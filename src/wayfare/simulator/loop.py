"""The simulator: rounds of contacts between a fleet and its server (Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from wayfare import device as devices
from wayfare import server as servers
from wayfare.arrays import Ints
from wayfare.device import DeviceState
from wayfare.engine import Compute, InMemory, LocalTraining, Policy, Shelf, Trainer, make_engine
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.schedule import Schedule
from wayfare.schemes import Scheme
from wayfare.server import ServerState
from wayfare.simulator.events import ContactEvent, EvaluationEvent, MetricEvent, Observer
from wayfare.simulator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: the global model and every device."""

    model: Tensor
    states: list[DeviceState]


class Simulation:
    """One scheme in one world. Contacts of a round are served together: all upload, then all download."""

    def __init__(
        self,
        world: World,
        scheme: Scheme,
        observer: Observer,
        *,
        engine: str = "auto",
        policy: Policy = "ahead",
        compute: Compute | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        scenario = world.scenario
        self._world, self._scheme, self._observer = world, scheme, observer
        self._compute, self._shelf = compute or Compute(), shelf or InMemory()
        # Vectors and data lie where the local steps are computed, from the first round to the last.
        task, initial = world.task.to(self._compute.device), world.initial_model.to(self._compute.device)
        self._server = ServerState(model=initial, devices=scenario.fleet.devices)
        # Devices that have not met the server share its first model and one zero.
        nothing = initial.new_zeros(()).expand(len(initial))
        self._states = [
            DeviceState(received=initial, received_round=0, memory=nothing, budget_joules=float(budget))
            for budget in world.budgets_joules
        ]
        training = LocalTraining(
            task=task,
            batches=world.batches,
            learning_rate=scenario.learning.learning_rate,
            compute=self._compute,
            schedule=Schedule(scenario.learning.schedule, scenario.rounds),
        )
        self._trainer = Trainer(
            make_engine(engine, training),
            initial,
            _contact_rounds(world),
            training="always" if getattr(scheme, "trains_between_contacts", True) else "in-contact",
            policy=policy,
        )
        self._evaluate = Evaluator(task)
        self._norm_scale = 1 / scenario.learning.learning_rate if scenario.control.update_norm == "raw" else 1.0
        self._bits = 0.0

    def run(self) -> Outcome:
        """All rounds, from the first to the last."""
        with self._compute.numerics():
            return self._run()

    def _run(self) -> Outcome:
        scenario = self._world.scenario
        edges = np.searchsorted(self._world.meets.round, np.arange(1, scenario.rounds + 2))
        self._evaluation(0)
        for round_ in range(1, scenario.rounds + 1):
            rows = np.arange(edges[round_ - 1], edges[round_])
            if len(rows):
                self._contacts(round_, rows)
            if round_ % scenario.learning.evaluate_every_rounds == 0 or round_ == scenario.rounds:
                self._evaluation(round_)
            self._observer.on_round(round_)
        return Outcome(model=self._server.model, states=self._states)

    def local_model(self, device: int) -> Tensor:
        """w_n, as far as the device trained by its last contact; received - w_n is what it has not delivered yet."""
        return self._trainer.model(device)

    def _contacts(self, round_: int, rows: Ints) -> None:
        """The contacts that count in one round."""
        meets, link = self._world.meets, self._world.link
        met = [int(device) for device in meets.device[rows]]
        # 1. Bring the local models of the devices met up to date.
        self._trainer.meet(met, round_)
        uploads, finished = [], []
        for row, device in zip(rows, met, strict=True):
            # 2. Each device adds its memory to its cumulative update, and its scheme decides.
            offer = devices.begin_contact(
                self._states[device],
                self._trainer.model(device),
                contact_s=float(meets.contact_s[row]),
                gain_per_watt=float(self._world.gains_per_watt[row]),
                round_=round_,
                rounds=self._world.scenario.rounds,
                link=link,
                norm_scale=self._norm_scale,
            )
            upload = self._scheme.decide(offer.encounter, link)
            # 3. It sends the largest entries and remembers the rest.
            state, sent = devices.transmit(offer, upload)
            if sent is not None:
                state = replace(state, memory=self._shelf.keep(device, state.memory))
                uploads.append(sent)
                finished.append(device)
                self._bits += upload.bits
            self._states[device] = state
            self._observer.on_contact(
                ContactEvent(
                    round=round_,
                    device=device,
                    contact_s=offer.encounter.contact_s,
                    distance_m=float(meets.distance_m[row]),
                    gain_per_watt=offer.encounter.gain_per_watt,
                    staleness_rounds=offer.encounter.staleness_rounds,
                    update_norm_sq=offer.encounter.update_norm_sq,
                    backlog_joules=offer.encounter.backlog_joules,
                    power_watts=upload.power_watts,
                    entries=upload.entries,
                    bits=upload.bits,
                    energy_joules=upload.energy_joules,
                    completed=upload.completes,
                )
            )
        # 4. The server aggregates what arrived.
        self._server = servers.aggregate(self._server, uploads)
        # 5. Every device whose exchange completed receives the new global model and starts from it.
        for device in finished:
            self._states[device] = devices.receive(self._states[device], self._server.model, round_)
            self._trainer.receive(device, self._server.model)

    def _evaluation(self, round_: int) -> None:
        result = self._evaluate(self._server.model)
        self._observer.on_evaluation(
            EvaluationEvent(
                round=round_,
                time_s=round_ * self._world.scenario.round_s,
                score=result.score,
                loss=result.loss,
                energy_joules=sum(state.spent_joules for state in self._states),
                bits=self._bits,
            ),
            [MetricEvent(round=round_, name=name, value=value) for name, value in result.others.items()],
        )


def _contact_rounds(world: World) -> list[Ints]:
    """The rounds of every device's contacts, in order."""
    meets = world.meets
    # A stable sort keeps the order of rounds within a device.
    order = np.argsort(meets.device, kind="stable")
    edges = np.searchsorted(meets.device[order], np.arange(1, world.scenario.fleet.devices))
    return np.split(meets.round[order], edges)
