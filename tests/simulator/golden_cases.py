"""The runs whose records are kept as goldens: one small world, and every case changes one thing in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

import wayfare
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks import Classification
from wayfare.world import World, draw_world

ENGINES = ("reference", "stacked")
# Contacts are neither too short nor too long for a whole model, and the budget is a fraction of what full power takes:
# dense uploads complete and fail, top-k sends some, all or nothing, and budgets run out.
BASE = (
    "rounds=60",
    "fleet.devices=6",
    "fleet.energy_total_joules=25",
    "mobility.width_m=480",
    "mobility.height_m=480",
    "radio.bandwidth_hz=300",
    "learning.hidden=[8]",
    "learning.batch_size=8",
    "learning.evaluate_every_rounds=20",
)
IMAGES = (
    "mobility.width_m=300",
    "mobility.height_m=300",
    "rounds=12",
    "fleet.devices=3",
    "fleet.energy_total_joules=4",
    "radio.bandwidth_hz=2000",
    "learning.evaluate_every_rounds=6",
)

AUTO, PRINTED, UNSURE = "control.weight=auto", "control.variant=printed", "contacts.forecast_error=0.3"
STEP, MOMENTUM, ADAM = "server.step=5 server.average_rounds=10", "server.optimizer=momentum", "server.optimizer=adam"
LOGITS, PROX = "learning.local_loss=logit-adjusted", "learning.local_loss=prox"
RATE_DISTORTION = ("mads-rd", "mads-rd:index", "mads-rd:values", "mads-rd:progressive")
RELAYS = (
    "upload_after_rounds=2",
    "upload_window_rounds=1",
    "uploads_per_interval=3",
    "download_after_rounds=1",
    "download_window_rounds=1",
    "downloads_per_interval=3",
    "energy=budget",
    "attempts=all",
    "delivery=separate",
    "parcels_per_relay=1",
)
# A scheme and what it changes in the scenario.
RUNS: tuple[tuple[str, str], ...] = (
    *(("mads", changes) for changes in ("", AUTO, PRINTED, "control.update_norm=scaled")),
    *((scheme, changes) for scheme in RATE_DISTORTION for changes in ("", AUTO)),
    ("optimal", ""),
    *((f"afl-spar{rule}", "") for rule in ("", ":paced", ":unlimited")),
    *((f"sfl-spar{rule}", "") for rule in ("", ":paced", ":unlimited")),
    *((f"afl{rule}", "") for rule in ("", ":paced", ":unlimited")),
    *((f"afl:fitting{rule}", "") for rule in ("", ":paced", ":unlimited")),
    *((f"fedmobile{choice}", "") for choice in ("", ":paced", ":unlimited", ":fitting", ":fitting:paced")),
    *((f"fedmobile:billed{choice}", "") for choice in ("", ":paced", ":fitting")),
    *(("fedmobile:paced", f"relays.{setting}") for setting in RELAYS),
    *((f"fedasync{choice}", "") for choice in ("", ":constant", ":hinge", ":fitting", ":paced", ":hinge:unlimited")),
    ("fedasync:paced", "mixing.weight=0.3 mixing.polynomial_exponent=1"),
    # The server.
    *((scheme, server) for scheme in ("mads", "afl-spar:paced") for server in (STEP, MOMENTUM, ADAM)),
    ("mads-rd", ADAM),
    ("sfl-spar:paced", MOMENTUM),
    ("fedmobile:paced", MOMENTUM),
    ("fedasync:paced", "server.average_rounds=10"),
    # Local training.
    *((scheme, loss) for scheme in ("mads", "afl-spar:paced") for loss in (LOGITS, PROX)),
    *((scheme, PROX) for scheme in ("fedmobile:paced", "fedasync:paced")),
    ("mads", "learning.schedule=cosine"),
    # Contacts that last longer or shorter than devices think.
    *((scheme, UNSURE) for scheme in ("mads", "mads-rd", "mads-rd:progressive", "afl:fitting", "afl:fitting:paced")),
    *((scheme, f"{UNSURE} {AUTO}") for scheme in ("mads", "mads-rd", "mads-rd:progressive")),
    ("fedmobile:fitting:paced", UNSURE),
)
# With normalisation statistics, which travel with every upload.
IMAGE_RUNS: tuple[tuple[str, str], ...] = (
    *((scheme, "") for scheme in ("mads", "afl", "afl:paced", "mads-rd", "fedmobile:paced", "fedasync:paced")),
    ("mads-rd:progressive", UNSURE),
    ("mads", f"{ADAM} server.average_rounds=4 learning.recalibrate_statistics=40"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A scheme in a scenario, and the engine that trains."""

    scheme: str
    changes: str
    engine: str
    images: bool = False

    @property
    def title(self) -> str:
        """What it is with any engine."""
        return " ".join(filter(None, (self.scheme, self.changes, "resnet9" if self.images else "")))

    @property
    def name(self) -> str:
        """As the goldens and the test know it."""
        return f"{self.title} {self.engine}"

    def world(self) -> World:
        """The world of seed 0."""
        overrides = [*BASE, *(IMAGES if self.images else ()), *self.changes.split()]
        return draw_world(wayfare.load("fashion-small", overrides), 0, _images() if self.images else None)

    def shaken_world(self, shake: int) -> World:
        """The same world with an initial model that is off by far more than rounding, and by far less than a change."""
        world = self.world()
        noise = np.random.default_rng(shake).standard_normal(len(world.initial_model)).astype(np.float32)
        return replace(world, initial_model=world.initial_model * (1 + 1e-5 * torch.from_numpy(noise)))


@cache
def _images() -> Classification:
    """Noise in colour for a network with batch normalisation."""
    rng, network = np.random.default_rng(0), Resnet9(width=2)
    inputs = torch.from_numpy(rng.standard_normal((120, 3, 32, 32)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 10, 120))
    return Classification(
        name="noise",
        model=network,
        classes=10,
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs,
        test_labels=labels,
    )


CASES = {
    case.name: case
    for case in (
        *(Case(scheme, changes, engine) for scheme, changes in RUNS for engine in ENGINES),
        *(Case(scheme, changes, engine, images=True) for scheme, changes in IMAGE_RUNS for engine in ENGINES),
    )
}
