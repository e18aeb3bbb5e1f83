"""Velocities and corrections in the trainer: burst order makes no difference, and resumed bursts are bit-identical."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.jobs import Job, job, starts
from tests.engine.test_descent import EVERY, PERCEPTRON
from tests.engine.test_engines import CPU_ENGINES
from torch import Tensor

from wayfare.engine import Burst, Engine, Policy, Trainer, TrainerState, make_engine
from wayfare.engine.base import Idling, Overlapping, Ready
from wayfare.learning.descent import Descent


def trainer_of(engine: str, local: Job, initial: Tensor, contacts: list[np.ndarray], policy: Policy) -> Trainer:
    made = make_engine(engine, local.training)
    return Trainer(made, initial, contacts, training="always", policy=policy, descent=local.training.descent)


PLAN = {3: [0], 5: [1, 2], 6: [0], 11: [4, 5], 12: [2], 20: [0, 1, 2, 3], 33: [5, 0], 40: [1]}


def visits(engine: str, policy: Policy, descent: Descent, restored_after: Sequence[int] = ()) -> list[Tensor]:
    """Train a fleet through a contact plan; after some contacts another trainer resumes from the saved state."""
    local = job(PERCEPTRON, descent=descent)
    initial = starts(local, torch.float32)[0]
    contacts = [np.array([r for r, met in PLAN.items() if device in met]) for device in range(local.devices)]
    trainer = trainer_of(engine, local, initial, contacts, policy)
    received, corrections = [initial] * local.devices, list[Tensor | None]([None] * local.devices)
    seen, shared = [], initial.clone()
    for round_, met in PLAN.items():
        trainer.meet(met, round_)
        for device in met:
            trainer.keep_going()
            seen.append(trainer.model(device).clone())
            shared = 0.5 * shared + 0.5 * seen[-1]
        for device in met:
            received[device], corrections[device] = shared, 0.1 * shared if descent.corrected else None
            trainer.receive(device, shared, corrections[device])
        if round_ in restored_after:
            saved = trainer.state()
            assert set(saved.velocities) == (set(saved.underway) if descent.momentum else set())
            copies = ({n: vector.clone() for n, vector in held.items()} for held in (saved.underway, saved.velocities))
            underway, velocities = copies
            trainer = trainer_of(engine, local, initial, contacts, policy)
            trainer.restore(replace(saved, underway=underway, velocities=velocities), received, corrections)
    return seen


@EVERY
@pytest.mark.parametrize("engine", ["reference", "stacked"])
def test_when_a_burst_runs_makes_no_difference(engine: str, descent: Descent) -> None:
    stepwise = visits(engine, "stepwise", descent)
    for policy in ("lazy", "ahead"):
        for found, expected in zip(visits(engine, policy, descent), stepwise, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert engine != "reference" or torch.equal(found, expected)


@EVERY
@pytest.mark.parametrize("engine", CPU_ENGINES)
def test_a_restored_trainer_goes_on_to_the_same_bits(engine: str, descent: Descent) -> None:
    expected = visits(engine, "ahead", descent)
    found = visits(engine, "ahead", descent, restored_after=list(PLAN))
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


class Deferred(Overlapping):
    """An engine whose bursts run only when something waits for their end, as late as a GPU may run them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        raise AssertionError("a trainer lets bursts of this engine overlap")

    def launch(
        self,
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> list[DeferredBurst]:
        return [
            DeferredBurst(self._engine, model, burst, before)
            for model, burst, before in zip(models, bursts, after, strict=True)
        ]


class NeedsMore(Deferred, Idling):
    """Also tells when it has little left to do, which here is always."""

    has_more = True

    def has_little_left(self) -> bool:
        return self.has_more


class DeferredBurst:
    def __init__(self, engine: Engine, model: Tensor, burst: Burst, after: Ready | None) -> None:
        self._engine, self._model, self._burst, self._after = engine, model, burst, after
        self._is_done = False

    def query(self) -> bool:
        return self._is_done

    def wait(self) -> None:
        if self._is_done:
            return
        if self._after is not None:
            self._after.wait()
        if self._burst.is_empty and self._burst.received is not None:
            self._model.copy_(self._burst.received)
        self._engine.run([self._model], [self._burst])
        self._is_done = True


@EVERY
@pytest.mark.parametrize("late", [Deferred, NeedsMore])
def test_a_burst_that_ends_late_gives_the_same_bits(
    late: type[Deferred], descent: Descent, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = visits("reference", "ahead", descent)
    monkeypatch.setattr("tests.engine.test_trainer.make_engine", lambda *given, made=make_engine: late(made(*given)))
    for restored_after in ([], list(PLAN)):
        found = visits("reference", "ahead", descent, restored_after)
        assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def test_an_overlapping_engine_that_is_run_waits_for_every_burst() -> None:
    class Runs(Overlapping):
        launch = Deferred(Recorded()).launch

    models = [torch.zeros(2), torch.zeros(2)]
    Runs().run(models, [Burst(0, 1, 1), Burst(1, 1, 3)])
    assert all(torch.equal(model, torch.ones(2)) for model in models)


class Launched(Deferred):
    """Notes the bursts: device, first round and number of rounds."""

    def __init__(self) -> None:
        super().__init__(Recorded())
        self.bursts: list[tuple[int, int, int]] = []

    def launch(
        self,
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> list[DeferredBurst]:
        self.bursts += [(burst.device, burst.first_round, burst.rounds) for burst in bursts]
        return super().launch(models, bursts, after)


def test_a_gpu_has_work_while_the_host_waits_for_an_evaluation() -> None:
    engine, contacts = Launched(), [np.array([9]), np.array([1, 4]), np.array([3])]
    trainer = Trainer(engine, torch.zeros(2), contacts, training="always")
    trainer.keep_busy(3)
    # By a few steps. The third device has no further contact.
    assert engine.bursts == [(1, 1, 2), (0, 1, 2)]
    Trainer(Recorded(), torch.zeros(2), contacts, training="always").keep_busy(3)


def test_a_gpu_has_the_next_step_of_all_devices_while_the_host_handles_contacts() -> None:
    engine, contacts = Launched(), [np.array([9]), np.array([2, 3, 4]), np.array([5])]
    engine.ahead_steps = 1
    trainer = Trainer(engine, torch.zeros(2), contacts, training="always")
    trainer.meet([1], 2)
    assert engine.bursts == [(1, 1, 2), (2, 1, 3), (0, 1, 3)]
    trainer.receive(1, torch.zeros(2))
    engine.bursts.clear()
    trainer.meet([1], 3)
    assert engine.bursts == [(1, 3, 1), (2, 4, 2), (0, 4, 2)]
    engine.bursts.clear()
    # Nobody needs a step in this round, and all others are already beyond it.
    trainer.meet([1], 3)
    assert engine.bursts == []
    # Now one that needs none is not beyond it.
    trainer.receive(1, torch.zeros(2))
    trainer.meet([2], 5)
    assert engine.bursts == [(0, 6, 1)]


def test_a_gpu_with_little_work_goes_on_with_devices_out_of_contact() -> None:
    class NotedNeeds(Launched, NeedsMore):
        pass

    engine, contacts = NotedNeeds(), [np.array([19]), np.array([2, 3, 4]), np.array([5]), np.array([3])]
    engine.ahead_steps = 1
    trainer = Trainer(engine, torch.zeros(2), contacts, training="always")
    trainer.meet([1], 2)
    assert engine.bursts == [(1, 1, 2), (3, 1, 2), (2, 1, 2), (0, 1, 2)]
    # Not the one in contact, nor one that has reached its next contact; the next contact comes first. A device that is
    # left alone takes two steps at once.
    for expected in ([(3, 3, 1), (2, 3, 1), (0, 3, 1)], [(2, 4, 1), (0, 4, 1)], [(2, 5, 1), (0, 5, 1)], [(0, 6, 2)]):
        engine.bursts.clear()
        trainer.keep_going()
        assert engine.bursts == expected
    assert trainer._done[3] == 3
    # Nobody goes too far, and nobody goes on while there is work.
    for _ in range(9):
        trainer.keep_going()
    assert trainer._done == [10, 2, 5, 3]
    trainer.receive(1, torch.zeros(2))
    engine.has_more, engine.bursts = False, []
    trainer.meet([1, 3], 3)
    trainer.keep_going()
    assert engine.bursts == [(1, 3, 1), (0, 11, 1)]


def test_a_device_has_reached_a_round_when_its_burst_has_ended() -> None:
    trainer = Trainer(Launched(), torch.zeros(2), [np.array([2, 5])], training="always", policy="lazy")
    assert not trainer.has_reached(0, 2)
    trainer.meet([0], 2)
    assert not trainer.has_reached(0, 2)
    trainer.model(0)
    assert trainer.has_reached(0, 2)
    assert not trainer.has_reached(0, 3)


class Recorded(Engine):
    """An engine that remembers the bursts and moves models and velocities by one."""

    def __init__(self) -> None:
        self.bursts: list[Burst] = []

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        for model, burst in zip(models, bursts, strict=True):
            model.add_(1)
            if burst.velocity is not None:
                self.bursts.append(replace(burst, velocity=burst.velocity.clone()))
                burst.velocity.add_(1)


def test_a_velocity_begins_at_zero_with_every_model_and_is_freed_with_it() -> None:
    engine, initial = Recorded(), torch.zeros(3)
    correction = torch.ones(3)
    trainer = Trainer(
        engine, initial, [np.arange(1, 9)], training="always", policy="lazy", descent=Descent(momentum=0.5)
    )
    begun = []
    for round_ in range(1, 7):
        trainer.meet([0], round_)
        velocity = engine.bursts[-1].velocity
        assert velocity is not None
        begun.append(float(velocity[0]))
        assert trainer.vectors == 2
        if round_ == 2:
            trainer.receive(0, initial, correction)
        if round_ == 4:
            trainer.restart(0, initial, initial + 7)
    assert begun == [0, 1, 0, 1, 0, 1]
    # A correction stays until the next model, and across a restart.
    assert [burst.correction is not None for burst in engine.bursts] == [False, False, True, True, True, True]
    assert float(trainer.model(0)[0]) == 9


def test_a_state_with_momentum_is_not_one_without() -> None:
    initial = torch.zeros(3)
    state = TrainerState(done=[1], underway={0: torch.ones(3)}, velocities={0: torch.ones(3)})
    for descent, given in ((Descent(), state), (Descent(momentum=0.5), replace(state, velocities={}))):
        trainer = Trainer(Recorded(), initial, [np.arange(1, 9)], training="always", descent=descent)
        with pytest.raises(ValueError, match="the state is from a descent with"):
            trainer.restore(given, [initial])
