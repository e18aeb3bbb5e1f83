"""The trainer of a device: it takes local steps as the guide allows, without a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wayfare.device import Terms, delivers_first
from wayfare.engine import Burst, Engine
from wayfare.field.runtime.guide import Guide
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.permission import Permission, always

# The most work a kill may cost: steps since the local model was last saved.
_KEEP_EVERY_S = 2.0
_IDLE_S = 0.005


def always_ready() -> bool:
    """The default, for data that are complete."""
    return True


class LocalTrainer:
    """Runs in its own thread. Only complete bursts are saved, so a killed device repeats its steps."""

    def __init__(
        self,
        outbox: Outbox,
        engine: Engine,
        device: int,
        guide: Guide,
        terms: Terms,
        *,
        step_every_s: float = 0.0,
        ready: Callable[[], bool] = always_ready,
        may_train: Callable[[], bool] = always,
    ) -> None:
        """``ready`` says whether there are data to train on."""
        self._may_train = Permission(may_train)
        self._outbox, self._engine, self._device, self._guide = outbox, engine, device, guide
        self._terms, self._rule = terms, terms.method.local
        self._step_every_s, self._ready = step_every_s, ready
        self._steps = 64 if step_every_s == 0 else 1
        self.error: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Train until ``stop`` is set. An error ends the thread and is kept for the caller."""
        try:
            while not stop.is_set():
                if not self._may_train() or not self._burst():
                    stop.wait(_IDLE_S)
                elif self._step_every_s:
                    stop.wait(self._step_every_s)
        except BaseException as error:
            self.error = error
            stop.set()

    def _burst(self) -> bool:
        """Run some steps; False if there are none now."""
        with self._outbox.holding():
            progress, state = self._outbox.progress, self._outbox.state
            start, received = self._outbox.local, self._outbox.model
            correction = self._rule.correction(state.local_state)
            velocity = None if self._outbox.velocity is None else self._outbox.velocity.clone()
        # Without training, every exchange is a round of its own.
        done, until = max(progress.trained_round, state.received_round), self._guide.trains_until(progress, state)
        if until <= done or not self._ready():
            return False
        if not self._rule.trains_between_contacts:
            # No steps in rounds without a contact.
            done = until - 1
        steps = min(until - done, self._steps)
        began_s, vector = time.monotonic(), start.clone()
        # A pull leads to the last received model, not to the base of the update.
        waits = delivers_first(state, self._terms.link)
        burst = Burst(self._device, done + 1, steps, received, correction, velocity, waits=waits)
        self._engine.run([vector], [burst])
        took_s = time.monotonic() - began_s
        self._outbox.trained(start, vector, done + steps, velocity)
        if not self._step_every_s and steps == self._steps:
            self._steps = max(min(int(steps * _KEEP_EVERY_S / max(took_s, 1e-3)), 2 * steps), 1)
        return True
