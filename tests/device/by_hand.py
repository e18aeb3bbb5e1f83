"""One contact in numbers that can be computed by hand: 1 kHz and a signal of 3 to 1 carry 2,000 bits a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from wayfare.device import DeviceState, Meeting, Terms
from wayfare.methods import Compressor, Encounter, Method, Upload, UploadRule
from wayfare.methods.compressors import TopK
from wayfare.methods.memories import ErrorFeedback
from wayfare.methods.servers import Add
from wayfare.radio import Link
from wayfare.sparsify import Sparse, top_k

LINK = Link(
    bandwidth_hz=1e3, max_power_watts=0.2, parameters=8, bits_per_entry=35.0, dense_bits=288.0, statistics_bits=32.0
)
POWER_WATTS, GAIN_PER_WATT, RATE_BPS = 0.2, 15.0, 2000.0


@dataclass(frozen=True)
class Decided(UploadRule):
    """Makes a given decision and records the encounters it saw."""

    upload: Upload
    seen: list[Encounter] = field(default_factory=list, compare=False)
    name = "decided"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        self.seen.append(encounter)
        return self.upload


@dataclass(frozen=True)
class AtMost(Compressor):
    """Has at most so many entries to send."""

    most: int

    def select(self, vector: Tensor, entries: int, draw: Callable[[], np.random.Generator]) -> Sparse:
        return top_k(vector, min(entries, self.most))


def sending(entries: int, bits: float, **changes: object) -> Upload:
    energy_joules = POWER_WATTS * bits / RATE_BPS
    upload = Upload(entries=entries, bits=bits, power_watts=POWER_WATTS, energy_joules=energy_joules)
    return replace(upload, **changes)  # type: ignore[arg-type]


def made_of(rule: UploadRule, compressor: Compressor | None = None, server: object = None) -> Method:
    return Method(
        name="by hand", upload=rule, compressor=compressor or TopK(), memory=ErrorFeedback(), server=server or Add()
    )


def terms(rule: UploadRule, compressor: Compressor | None = None, link: Link = LINK, **changes: object) -> Terms:
    return Terms(method=made_of(rule, compressor), link=link, rounds=100, **changes)  # type: ignore[arg-type]


STATE = DeviceState(
    received=torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0]),
    received_round=2,
    memory=torch.tensor([0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, -6.0, 0.0]),
    budget_joules=10.0,
    spent_joules=4.0,
    backlog_joules=0.75,
    backlog_round=4,
    met_s=3.0,
    contacts=4,
)
LOCAL = torch.tensor([0.0, 1.0, 3.0, 1.0, 5.0, 1.0, 1.0, 1.0, 8.0])
UPDATE = torch.tensor([1.0, 0.5, -2.0, 0.0, -4.0, 0.0, 0.0, -6.0, 1.0])  # e + received - local
MEETING = Meeting(round=7, contact_s=5.0, gain_per_watt=GAIN_PER_WATT, device=3, samples=11)
