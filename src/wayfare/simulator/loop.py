"""The simulator: rounds of contacts between a fleet and its server (Algorithm 1)."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from wayfare import device as devices
from wayfare import server as servers
from wayfare.arrays import Ints
from wayfare.device import DeviceState, Meeting, Offer
from wayfare.engine import (
    AHEAD_STEPS,
    Compute,
    InMemory,
    LocalTraining,
    Policy,
    Shelf,
    Trainer,
    engine_name,
    make_engine,
)
from wayfare.errors import ScenarioError
from wayfare.learning.descent import descent_of
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.local_loss import make_local_loss
from wayfare.learning.recalibrate import make_recalibration
from wayfare.learning.schedule import Schedule
from wayfare.scenario.exchange import Relays as RelayRules
from wayfare.schemes import Scheme, Upload, mixes_models
from wayfare.schemes.sending import MOST_BPS_PER_HZ
from wayfare.simulator.checkpoint import SimulationState
from wayfare.simulator.checks import Checks, Ledger
from wayfare.simulator.events import ContactEvent, EvaluationEvent, MetricEvent, Observer, RelayEvent
from wayfare.simulator.peers import draw_peers
from wayfare.simulator.relays import Relays, RelayState
from wayfare.simulator.world import World
from wayfare.sparsify import Sparse

_log = logging.getLogger("wayfare")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: the model that was judged last, and every device."""

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
        checks: Checks | None = None,
    ) -> None:
        scenario = world.scenario
        self._world, self._scheme, self._observer = world, scheme, observer
        self._compute, self._shelf, self._checks = compute or Compute(), shelf or InMemory(), checks or Checks()
        # Vectors and data lie where the local steps are computed, from the first round to the last.
        task, initial = world.task.to(self._compute.device), world.initial_model.to(self._compute.device)
        servers.refuse_unfit(scenario.server, scheme)
        self._initial = initial
        self._server = servers.begin_server(initial, scenario.fleet.devices, task.model.statistics, scenario.server)
        # Devices that have not met the server share its first model and one zero.
        self._nothing = initial.new_zeros(()).expand(len(initial))
        self._states = [
            DeviceState(received=initial, received_round=0, memory=self._nothing, budget_joules=float(budget))
            for budget in world.budgets_joules
        ]
        training = LocalTraining(
            task=task,
            batches=world.batches,
            learning_rate=scenario.learning.learning_rate,
            compute=self._compute,
            schedule=Schedule(scenario.learning.schedule, scenario.rounds),
            local_loss=make_local_loss(scenario.learning, task, world.held, self._compute.device),
            descent=descent_of(scenario.learning),
        )
        self.engine = engine_name(engine, training)
        chosen = make_engine(self.engine, training)
        self._mixes = mixes_models(scheme)
        self._ledger = None
        if self._checks.paranoid and self._mixes:
            _log.warning(
                "%s mixes models at the server: mass is not conserved, and not balanced; all else is", scheme.name
            )
        elif self._checks.paranoid:
            self._ledger = Ledger(chosen, len(initial), initial.device, server_adds=scenario.server.is_plain)
        self._terms = devices.terms_of(scenario, scheme, world.link)
        self._forecasts = getattr(scheme, "forecasts", True)
        self._relays = self._make_relays(getattr(scheme, "relays", False))
        self._trainer = Trainer(
            self._ledger or chosen,
            initial,
            _observed_rounds(world, self._relays),
            training="always" if getattr(scheme, "trains_between_contacts", True) else "in-contact",
            policy=policy,
            ahead_steps=getattr(chosen, "ahead_steps", AHEAD_STEPS),
            descent=training.descent,
        )
        self._least_joules = self._what_anything_takes()
        self._evaluate = Evaluator(task)
        self._recalibrate = make_recalibration(scenario.learning, task, world.held, world.seed, self._compute.device)
        self._bits = 0.0
        self._round = 0

    def _make_relays(self, rules: bool | RelayRules) -> Relays | None:
        if rules is False:
            return None
        if self._mixes:
            raise ScenarioError("schemes", self._scheme.name, "a scheme that mixes models cannot relay updates")
        return Relays(
            self._world,
            draw_peers(self._world.scenario, self._world.seed),
            self._scheme,
            self._world.scenario.relays if rules is True else rules,
            nothing=self._nothing,
            terms=self._terms,
            checks=self._checks,
            shelf=self._shelf,
        )

    def _what_anything_takes(self) -> float:
        """Devices with less energy than this never send again, and stop training: nobody could ever tell."""
        if self._relays is not None and self._relays.free:
            return 0.0  # a device without energy still hands its updates to others
        link, asked = self._world.link, getattr(self._scheme, "least_joules", None)
        best = float(self._world.gains_per_watt.max(initial=0.0)) * link.max_power_watts
        believable = math.log2(1 + best) < MOST_BPS_PER_HZ
        return float(asked(link)) if asked is not None and believable else 0.0

    def state(self) -> SimulationState:
        """Everything that is carried into the next round; its tensors are at work and not to be changed."""
        return SimulationState(
            round=self._round,
            bits=self._bits,
            model=self._server.model,
            moments=self._server.moments,
            averaged=self._server.averaged,
            devices=list(self._states),
            trainer=self._trainer.state(),
            relays=self._relays.state() if self._relays else RelayState(),
        )

    def restore(self, state: SimulationState) -> None:
        """Go on after the round of a state, as if there had been no break; ValueError when it is of another run."""
        initial, fleet = self._server.model, len(self._states)
        vectors = [state.model, *([] if state.averaged is None else [state.averaged]), *state.trainer.underway.values()]
        vectors += state.trainer.velocities.values()
        vectors += [vector for device in state.devices for vector in (device.received, device.memory)]
        vectors += [parcel.update for parcel in state.relays.parcels]
        if len(state.devices) != fleet or len(state.trainer.done) != fleet:
            raise ValueError(f"a state of {len(state.devices)} devices, here are {fleet}")
        if len(state.relays.turns) != (fleet if self._relays else 0):
            raise ValueError("the state of a scheme that relays, or of one that does not")
        expected = [(moment.shape, moment.dtype) for moment in self._server.moments]
        if [(moment.shape, moment.dtype) for moment in state.moments] != expected:
            raise ValueError("the state of another optimiser of the server")
        if (state.averaged is None) != (self._server.averaged is None):
            raise ValueError("the state of a server that averages its model, or of one that does not")
        if any(vector.shape != initial.shape or vector.dtype != initial.dtype for vector in vectors):
            raise ValueError("the state of another model")
        if not 0 <= state.round <= self._world.scenario.rounds:
            raise ValueError(f"the state after round {state.round} of {self._world.scenario.rounds}")
        owned: dict[int, Tensor] = {}

        def own(vector: Tensor) -> Tensor:
            """A copy where the vectors of this run lie, one for all who share it: what was read may go away."""
            if id(vector) not in owned:
                owned[id(vector)] = vector.to(initial.device, copy=True)
            return owned[id(vector)]

        # A device that never met the server remembers the one zero again, and takes no memory.
        self._states = [
            replace(
                device,
                received=own(device.received),
                memory=self._nothing
                if device.memory.stride() == (0,)
                else self._shelf.keep(number, device.memory.to(initial.device, copy=True)),
            )
            for number, device in enumerate(state.devices)
        ]
        self._server = replace(
            self._server,
            model=own(state.model),
            moments=tuple(map(own, state.moments)),
            averaged=None if state.averaged is None else own(state.averaged),
        )
        underway, velocities = (
            {device: own(vector) for device, vector in held.items()}
            for held in (state.trainer.underway, state.trainer.velocities)
        )
        trainer = replace(state.trainer, underway=underway, velocities=velocities)
        self._trainer.restore(trainer, [device.received for device in self._states])
        if self._relays:
            parcels = [replace(parcel, update=own(parcel.update)) for parcel in state.relays.parcels]
            self._relays.restore(replace(state.relays, parcels=parcels))
        self._round, self._bits = state.round, state.bits

    def run(self) -> Outcome:
        """All rounds that are left, to the last."""
        with self._compute.numerics():
            return self._run()

    def _run(self) -> Outcome:
        scenario = self._world.scenario
        edges = np.searchsorted(self._world.meets.round, np.arange(1, scenario.rounds + 2))
        if self._round == 0:
            self._evaluation(0)
        self._balance(self._round)
        for round_ in range(self._round + 1, scenario.rounds + 1):
            if self._relays:
                self._relayed(self._relays.exchange(round_, self._states, self._trainer))
            rows = np.arange(edges[round_ - 1], edges[round_])
            if len(rows):
                self._contacts(round_, rows)
            self._server = servers.average(self._server, round_, scenario.server)
            if round_ % scenario.learning.evaluate_every_rounds == 0 or round_ == scenario.rounds:
                self._evaluation(round_)
                self._balance(round_)
            self._round = round_
            self._observer.on_round(round_)
        return Outcome(model=self._judged(), states=self._states)

    def local_model(self, device: int) -> Tensor:
        """w_n, as far as the device trained by its last contact; received - w_n is what it has not delivered yet."""
        return self._trainer.model(device)

    def _contacts(self, round_: int, rows: Ints) -> None:
        """The contacts that count in one round."""
        meets, link, checks, name = self._world.meets, self._world.link, self._checks, self._scheme.name
        met = [int(device) for device in meets.device[rows]]
        # 1. Bring the local models of the devices met up to date.
        self._trainer.meet(met, round_)
        uploads: list[Sparse] = []
        mixed: list[tuple[Tensor, float]] = []
        finished, norms_sq = [], []
        for row, device in zip(rows, met, strict=True):
            # 2. Each device adds its memory to its cumulative update, and its scheme decides.
            before, lasts_s = self._states[device], float(meets.contact_s[row])
            offer = devices.begin_contact(
                self._relays.before_upload(device, before) if self._relays else before,
                self._trainer.model(device),
                Meeting(
                    round=round_,
                    contact_s=float(self._world.forecast_s[row]) if self._forecasts else lasts_s,
                    gain_per_watt=float(self._world.gains_per_watt[row]),
                ),
                self._terms,
            )
            norms_sq.append(offer.encounter.update_norm_sq)
            offer = checks.offer(offer, device=device, round_=round_)
            upload = checks.upload(offer, self._scheme.decide(offer.encounter, link), link, scheme=name, device=device)
            # 3. It sends the largest entries and remembers the rest.
            sending = devices.transmit(offer, upload, link, lasts_s)
            checks.transmitted(offer, sending, scheme=name, device=device)
            state, upload, sent = sending.state, sending.upload, sending.sent
            if sent is not None:
                state = replace(state, memory=self._shelf.keep(device, state.memory))
                finished.append((device, sending.cut))
                self._bits += upload.bits
                if self._mixes and len(sent):
                    mixed.append((self._trainer.model(device), self._mixing_weight(offer, upload, device)))
                else:
                    uploads.append(sent)
            events: list[RelayEvent] = []
            if self._relays:
                state, delivered, events = self._relays.after_upload(device, before, state, offer, upload)
                uploads += delivered
            self._states[device] = state
            self._observer.on_contact(
                ContactEvent(
                    round=round_,
                    device=device,
                    contact_s=lasts_s,
                    distance_m=float(meets.distance_m[row]),
                    gain_per_watt=offer.encounter.gain_per_watt,
                    staleness_rounds=offer.encounter.staleness_rounds,
                    update_norm_sq=norms_sq[-1],
                    backlog_joules=offer.encounter.backlog_joules,
                    power_watts=upload.power_watts,
                    entries=upload.entries,
                    bits=upload.bits,
                    energy_joules=upload.energy_joules,
                    completed=upload.completes,
                )
            )
            self._relayed(events)
        # 4. The server aggregates what arrived.
        begun_with = self._server.model
        self._server = servers.mix(self._server, mixed)
        self._aggregate(uploads)
        checks.aggregated(self._server.model, norms_sq, round_)
        if self._ledger is not None:
            self._ledger.uploaded(len(uploads))
        # 5. Every device whose exchange completed receives the new global model and starts from it. A device that was
        #    still sending pieces when the contact ended has the model that the server had when it began.
        for device, cut in finished:
            model = begun_with if cut else self._server.model
            self._states[device] = devices.receive(self._states[device], model, round_)
            self._trainer.receive(device, model)
        for device in met:
            # Who has no limit has overdrawn a budget long ago.
            if self._least_joules > 0 and self._states[device].left_joules < self._least_joules:
                self._trainer.retire(device)

    def _aggregate(self, uploads: list[Sparse]) -> None:
        """Updates are added to the global model, or the server's optimiser takes a step along their mean."""
        server = self._world.scenario.server
        if server.is_plain:
            self._server = servers.aggregate(self._server, uploads)
            return
        update = servers.mean_update(self._server, uploads)
        if update is not None:
            self._server = servers.optimise(self._server, update, server)
            if self._ledger is not None:
                self._ledger.given(update)

    def _relayed(self, events: list[RelayEvent]) -> None:
        """Count and tell what devices sent for each other."""
        for event in events:
            self._bits += event.bits
            self._observer.on_relay(event)
        if self._ledger is not None:
            self._ledger.uploaded(len(events))

    def _mixing_weight(self, offer: Offer, upload: Upload, device: int) -> float:
        weight = self._scheme.mixing_weight(offer.encounter.staleness_rounds)
        name = self._scheme.name
        return self._checks.mixing_weight(weight or 0.0, offer, upload, scheme=name, device=device)

    def _judged(self) -> Tensor:
        """The model that is evaluated, and with which a run ends; no device receives its recalibrated statistics."""
        judged = self._server.judged
        return judged if self._recalibrate is None else self._recalibrate(judged)

    def _evaluation(self, round_: int) -> None:
        known, initial = self._world.initial_evaluations, self._server.judged is self._initial
        result = known.get(self._compute) if initial else None
        if result is None:
            result = self._evaluate(self._judged())
        if initial:
            known[self._compute] = result
        self._checks.evaluated(result.loss, round_)
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

    def _balance(self, round_: int) -> None:
        """Mass is conserved, if that is looked at."""
        if self._ledger is not None:
            local = [self._trainer.model(device) for device in range(len(self._states))]
            relayed = [parcel.update for parcel in self._relays.parcels()] if self._relays else []
            self._ledger.balance(self._server.model, self._states, local, relayed, round_)


def _observed_rounds(world: World, relays: Relays | None) -> list[Ints]:
    """The rounds of every device, in order, in which its local model may be looked at or replaced.

    Those are the rounds of its contacts with the server, and those in which it may use a relay.
    """
    contacts = _contact_rounds(world)
    if relays is None:
        return contacts
    return [np.union1d(rounds, relays.timetable.rounds_of(device)) for device, rounds in enumerate(contacts)]


def _contact_rounds(world: World) -> list[Ints]:
    """The rounds of every device's contacts with the server, in order."""
    meets = world.meets
    # A stable sort keeps the order of rounds within a device.
    order = np.argsort(meets.device, kind="stable")
    edges = np.searchsorted(meets.device[order], np.arange(1, world.scenario.fleet.devices))
    return np.split(meets.round[order], edges)
