"""The trainer of a device: it takes local steps while the guide lets it, and knows of no network."""

from __future__ import annotations

import threading
import time

from wayfare.engine import Burst, Engine
from wayfare.field.runtime.guide import Guide
from wayfare.field.runtime.outbox import Outbox
from wayfare.methods import LocalRule

# What a kill may cost: steps since the local model was last kept.
_KEEP_EVERY_S = 2.0
_IDLE_S = 0.005


class LocalTrainer:
    """Runs in a thread of its own. Only complete bursts are kept, so a device that was killed repeats its steps."""

    def __init__(
        self,
        outbox: Outbox,
        engine: Engine,
        device: int,
        guide: Guide,
        rule: LocalRule,
        *,
        step_every_s: float = 0.0,
    ) -> None:
        self._outbox, self._engine, self._device, self._guide = outbox, engine, device, guide
        self._rule, self._step_every_s = rule, step_every_s
        self._steps = 8 if step_every_s == 0 else 1
        self.error: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Until told to stop; an error ends it and is kept for whoever started it."""
        try:
            while not stop.is_set():
                if not self._burst():
                    stop.wait(_IDLE_S)
                elif self._step_every_s:
                    stop.wait(self._step_every_s)
        except BaseException as error:
            self.error = error
            stop.set()

    def _burst(self) -> bool:
        """Some steps; False when there is none to take now."""
        with self._outbox.holding():
            progress, start, received = self._outbox.progress, self._outbox.local, self._outbox.model
            correction = self._rule.correction(self._outbox.state.local_state)
            velocity = None if self._outbox.velocity is None else self._outbox.velocity.clone()
        done, until = progress.trained_round, self._guide.trains_until(progress)
        if until is not None and until <= done:
            return False
        if until is not None and not self._rule.trains_between_contacts:
            # Rounds without a contact pass without a step.
            done = until - 1
        # To a known end in one go; on an open road as many steps as fit between two savings.
        steps = until - done if until is not None and not self._step_every_s else self._steps
        began_s, vector = time.monotonic(), start.clone()
        # A pull leads back to the model that was received last, not to where learning counts from.
        burst = Burst(self._device, done + 1, steps, received, correction, velocity)
        self._engine.run([vector], [burst])
        took_s = time.monotonic() - began_s
        self._outbox.trained(start, vector, done + steps, velocity)
        if until is None and not self._step_every_s:
            self._steps = max(min(int(steps * _KEEP_EVERY_S / max(took_s, 1e-3)), 2 * steps), 1)
        return True
