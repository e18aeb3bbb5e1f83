"""The simulator: rounds of contacts between a fleet and its server (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.device import Checks, DeviceState, Transmission, first_trained, terms_of
from wayfare.engine import Compute, InMemory, Policy, Shelf, Trainer, choose_engine
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.recalibrate import make_recalibration
from wayfare.learning.tasks import Evaluation
from wayfare.methods import Method
from wayfare.methods.privacy import keyed_noise
from wayfare.server import server_terms_of, weights_of
from wayfare.simulator.checkpoint import SimulationState
from wayfare.simulator.device_side import DeviceSide, contact_rounds
from wayfare.simulator.events import ContactEvent, EvaluationEvent, MetricEvent, Observer, RelayEvent
from wayfare.simulator.ledger import make_ledger
from wayfare.simulator.relays import Relays, RelayState
from wayfare.simulator.server_side import ServerSide
from wayfare.world import World, device_scores, local_training, world_for
from wayfare.world.peers import draw_peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run: the last evaluated model and the states of all devices."""

    model: Tensor
    states: list[DeviceState]


class Simulation:
    """One method in one world. In each round all contacts upload, then all download."""

    def __init__(
        self,
        world: World,
        method: Method,
        observer: Observer,
        *,
        engine: str = "auto",
        policy: Policy = "ahead",
        compute: Compute | None = None,
        shelf: Shelf | None = None,
        checks: Checks | None = None,
    ) -> None:
        scenario, world = world.scenario, world_for(world, method)
        self._world, self._method, self._observer = world, method, observer
        self._compute, self._checks, shelf = compute or Compute(), checks or Checks(), shelf or InMemory()
        # Vectors and data stay on the compute device for the whole run.
        training, initial = local_training(world, method, self._compute), world.initial_model.to(self._compute.device)
        self.choice = choose_engine(engine, training)
        task, chosen = training.task, self.choice.engine
        self._ledger = make_ledger(method, chosen, initial, weights_of(world)) if self._checks.paranoid else None
        noise = keyed_noise(world.seed)
        terms = terms_of(scenario, method, world.link, seed=world.seed, checks=self._checks, noise=noise)
        nothing = initial.new_zeros(()).expand(len(initial))
        self._relays = None
        if method.peers is not None:
            peers = draw_peers(scenario, world.seed)
            self._relays = Relays(world, peers, method.peers, nothing=nothing, terms=terms, shelf=shelf)
        observed = contact_rounds(world)
        if self._relays:
            observed = self._relays.with_meetings(observed)
        self._trainer = Trainer(
            self._ledger or chosen,
            initial,
            observed,
            training="always" if method.local.trains_between_contacts else "in-contact",
            policy=policy,
            descent=training.descent,
            shelf=shelf,
            waits=first_trained(world.link) > 0,
        )
        # With free relays, a device without energy still hands its updates to others.
        retires = self._relays is None or not self._relays.free
        # A meeting with another device may change what a device sends.
        ahead = self._relays is None
        self._fleet = DeviceSide(world, initial, nothing, terms, self._trainer, shelf, retires=retires, ahead=ahead)
        self._server = ServerSide(
            initial, method.server, server_terms_of(world), scenario.server, self._checks, self._ledger, method.guard
        )
        self._initial, self._evaluate = initial, Evaluator(task, device_scores(world, task), chosen.evaluated())
        self._evaluated: tuple[Tensor, Evaluation] | None = None
        self._recalibrate = make_recalibration(scenario.learning, task, world.held, world.seed, self._compute.device)
        self._round, self._bits = 0, 0.0

    def run(self) -> Outcome:
        scenario, meets = self._world.scenario, self._world.meets
        edges = np.searchsorted(meets.round, np.arange(1, scenario.rounds + 2))
        with self._compute.numerics():
            if self._round == 0:
                self._evaluation(0)
            self._balance(self._round)
            for round_ in range(self._round + 1, scenario.rounds + 1):
                # 1. Devices in contact with each other follow the peer rule.
                if self._relays:
                    self._relayed(self._relays.exchange(round_, self._fleet.states, self._trainer))
                # 2. to 4. Devices in contact with the server exchange with it.
                if edges[round_] > edges[round_ - 1]:
                    self._contacts(round_, np.arange(edges[round_ - 1], edges[round_]))
                self._server.end_round(round_)
                # 5. Evaluate the model.
                if round_ % scenario.learning.evaluate_every_rounds == 0 or round_ == scenario.rounds:
                    self._evaluation(round_)
                    self._balance(round_)
                self._round = round_
                self._observer.on_round(round_)
            return Outcome(model=self._judged(), states=self._fleet.states)

    def _contacts(self, round_: int, rows: Ints) -> None:
        met = [int(device) for device in self._world.meets.device[rows]]
        finished, norms_sq = [], []
        # 2. Each device trains, sends what its method decides and updates its memory.
        for group in self._fleet.groups(zip(rows.tolist(), self._trainer.met(met, round_), strict=True)):
            for device, sending in self._contacts_of(group):
                norms_sq.append(sending.offer.norm_sq)
                if sending.sent is not None:
                    finished.append((device, sending.cut))
                    self._bits += sending.upload.bits
        # 3. The server rule applies the arrivals.
        self._server.use_arrivals(round_, norms_sq)
        # 4. Every device with a complete upload downloads the new global model.
        for device, cut in finished:
            self._fleet.receive(device, *self._server.hand_down(device, cut=cut), round_)
        self._fleet.retire(met)

    def _contacts_of(self, group: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Transmission]]:
        """Contacts of different devices with the server, including parcels of other devices."""
        devices = [device for _, device in group]
        states = before = [self._fleet.states[device] for device in devices]
        if self._relays:
            states = list(map(self._relays.before_upload, devices, before))
        for (row, device), state, sending in zip(group, before, self._fleet.contacts(group, states), strict=True):
            self._use(row, device, state, sending)
            yield device, sending

    def _use(self, row: int, device: int, before: DeviceState, sending: Transmission) -> None:
        """Bring what was sent to the server, and keep the new state of the device."""
        arrival = self._fleet.arrival(device, sending)
        if arrival is not None:
            self._server.arrive(arrival)
        self._fleet.keep(device, sending.state, new_memory=sending.sent is not None)
        if sending.sent is not None:
            self._trainer.delivered(device)
        if self._ledger is not None and sending.sent is not None and sending.offer.added is not None:
            self._ledger.added(device, sending.offer.added)
        events: list[RelayEvent] = []
        if self._relays:
            state, delivered, events = self._relays.after_upload(device, before, self._fleet.states[device], sending)
            self._fleet.states[device] = state
            for parcel in delivered:
                self._server.arrive(parcel)
        self._observer.on_contact(self._event(row, sending))
        self._relayed(events)

    def _event(self, row: int, sending: Transmission) -> ContactEvent:
        encounter, upload, meets = sending.offer.encounter, sending.upload, self._world.meets
        return ContactEvent(
            round=encounter.round,
            device=encounter.device,
            contact_s=float(meets.contact_s[row]),
            distance_m=float(meets.distance_m[row]),
            gain_per_watt=encounter.gain_per_watt,
            staleness_rounds=encounter.staleness_rounds,
            update_norm_sq=sending.offer.norm_sq,
            backlog_joules=encounter.backlog_joules,
            power_watts=upload.power_watts,
            entries=upload.entries,
            bits=upload.bits,
            energy_joules=upload.energy_joules,
            completed=upload.completes,
        )

    def _relayed(self, events: list[RelayEvent]) -> None:
        for event in events:
            self._bits += event.bits
            self._observer.on_relay(event)
        if self._ledger is not None:
            self._ledger.uploaded(len(events))

    def local_model(self, device: int) -> Tensor:
        """w_n, trained up to the device's last contact; received - w_n is not delivered yet."""
        return self._trainer.model(device)

    def _judged(self) -> Tensor:
        """The model for evaluation and for the end of the run. Devices never receive its recalibrated statistics."""
        judged = self._server.state.judged
        return judged if self._recalibrate is None else self._recalibrate(judged)

    def _result(self) -> Evaluation:
        """Evaluate the model; one that has not changed, or that all runs of this world begin with, is known."""
        known, judged = self._world.initial_evaluations, self._server.state.judged
        if judged is self._initial and self._compute in known:
            return known[self._compute]
        if self._evaluated is None or self._evaluated[0] is not judged:
            self._evaluated = judged, self._evaluate(self._judged())
        if judged is self._initial:
            known[self._compute] = self._evaluated[1]
        return self._evaluated[1]

    def _evaluation(self, round_: int) -> None:
        self._trainer.keep_busy(round_)
        result = self._result()
        self._checks.evaluated(result.loss, round_)
        self._observer.on_evaluation(
            EvaluationEvent(
                round=round_,
                time_s=round_ * self._world.scenario.round_s,
                score=result.score,
                loss=result.loss,
                energy_joules=sum(state.spent_joules for state in self._fleet.states),
                bits=self._bits,
            ),
            [MetricEvent(round=round_, name=name, value=value) for name, value in result.others.items()],
        )

    def _balance(self, round_: int) -> None:
        if self._ledger is not None:
            states = self._fleet.states
            local = [self._trainer.model(device) for device in range(len(states))]
            relayed = [parcel.update for parcel in self._relays.parcels()] if self._relays else []
            self._ledger.balance(self._server.state.model, self._server.taken(), states, local, relayed, round_)

    def state(self) -> SimulationState:
        """Everything that the next round needs. Its tensors are in use; do not change them."""
        return SimulationState(
            round=self._round,
            bits=self._bits,
            server=self._server.state,
            devices=list(self._fleet.states),
            trainer=self._trainer.state(),
            relays=self._relays.state() if self._relays else RelayState(),
        )

    def restore(self, state: SimulationState) -> None:
        """Resume after the round of a state; results are bit-identical. A state of another run raises ValueError."""
        state.reject_mismatch(self._initial, self._world.scenario, relays=self._relays is not None)
        state = state.copied(self._initial.device, shelved=self._fleet.on_disk)
        self._server.restore(state.server)
        self._fleet.restore(state.devices, state.trainer)
        if self._relays:
            self._relays.restore(state.relays)
        self._round, self._bits = state.round, state.bits
