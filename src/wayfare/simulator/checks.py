"""What must hold in every run, looked at while it runs: cheap checks always, all of them when asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.values import value_width
from wayfare.device import DeviceState, Offer, Transmission
from wayfare.engine import Burst, Engine
from wayfare.errors import DivergenceError, InvariantError
from wayfare.radio import Link
from wayfare.schemes import Upload
from wayfare.sparsify import Sparse

# What a scheme is shown for the norm of an update that is infinite or none: more than any sound update has, and small
# enough to be computed with.
_BEYOND_NORM_SQ = 1e100
# Updates smaller than this cannot bring a global model to infinity in any number of rounds.
_HARMLESS_NORM_SQ = 1e60
# A decision is computed in double precision; sums of a few such numbers agree to this.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What is looked at while a run goes on.

    The cheap checks are made always: entries <= parameters, energy >= 0, backlog >= 0, delivered bits <= capacity. With
    ``paranoid`` also: every entry of an update is sent or remembered, exactly; what is sent is the largest; nothing
    that was ever computed is lost or counted twice.
    """

    allow_divergence: bool = False
    paranoid: bool = False

    def offer(self, offer: Offer, *, device: int, round_: int) -> Offer:
        """Stop at an update that is infinite or none; where that is allowed, show the scheme a very large one."""
        norm_sq = offer.encounter.update_norm_sq
        if math.isfinite(norm_sq):
            return offer
        if not self.allow_divergence:
            raise DivergenceError(
                f"training diverged: in round {round_} the update of device {device} holds a number that is "
                f"{'none (NaN)' if math.isnan(norm_sq) else 'infinite'}"
            )
        return replace(offer, encounter=replace(offer.encounter, update_norm_sq=_BEYOND_NORM_SQ))

    def upload(self, offer: Offer, upload: Upload, link: Link, *, scheme: str, device: int) -> Upload:
        """A scheme's decision as plain numbers; one that cannot be is refused."""
        encounter = offer.encounter
        try:
            plain = Upload(
                entries=int(upload.entries),
                bits=float(upload.bits),
                power_watts=float(upload.power_watts),
                energy_joules=float(upload.energy_joules),
                completes=bool(upload.completes),
                value_bits=None if upload.value_bits is None else value_width(int(upload.value_bits)),
                entries_if_it_lasts=None if upload.entries_if_it_lasts is None else int(upload.entries_if_it_lasts),
                most_joules=float(upload.most_joules),
            )
        except (AttributeError, TypeError, ValueError, OverflowError, WireError) as error:
            raise self._broken(offer, scheme, device, f"decided on {upload!r}, which is no upload: {error}") from None
        airtime_s = encounter.contact_s * (1 + _SLACK)
        most_joules = max(plain.power_watts, 0.0) * airtime_s
        capacity_bits = airtime_s * link.rate_bps(max(plain.power_watts, 0.0), encounter.gain_per_watt)
        rules = (
            ("entries", plain.entries, 0 <= plain.entries <= link.parameters, f"0 to {link.parameters} parameters"),
            ("entries", plain.entries, plain.completes or plain.entries == 0, "0 in an upload that does not complete"),
            (
                "power_watts",
                plain.power_watts,
                0 <= plain.power_watts <= link.max_power_watts * (1 + _SLACK),
                f"0 to {link.max_power_watts} W",
            ),
            (
                "energy_joules",
                plain.energy_joules,
                0 <= plain.energy_joules <= most_joules,
                f"0 to {most_joules:.6g} J, the power for the whole contact",
            ),
            (
                "bits",
                plain.bits,
                0 <= plain.bits <= capacity_bits + _SLACK,
                f"0 to {capacity_bits:.6g}, what the contact holds at that power",
            ),
            ("backlog_joules", encounter.backlog_joules, encounter.backlog_joules >= 0, "0 or more"),
        )
        for name, value, holds, rule in rules:
            if not holds:
                raise self._broken(offer, scheme, device, f"{name} = {value!r}, must be {rule}")
        return plain

    def transmitted(self, offer: Offer, sending: Transmission, *, scheme: str, device: int) -> None:
        """Every entry of the update is sent or remembered, and those sent are the largest (only if paranoid)."""
        sent, memory = sending.sent, sending.state.memory
        if not self.paranoid or sent is None or not offer.update.isfinite().all():
            return
        if len(sent) and not bool((sent.indices.diff() > 0).all()):
            raise self._broken(offer, scheme, device, "an entry was sent twice")
        if not self._adds_up(offer, memory, sent, exactly=sending.upload.value_bits is None):
            raise self._broken(offer, scheme, device, "an entry was neither sent nor remembered, or both")
        chosen = sent.indices[sent.indices < offer.parameters]
        parameters = offer.update[: offer.parameters].abs()
        left = parameters.index_fill(0, chosen, 0.0)
        # Pieces go by octaves, so what they leave may be twice as large as what they hold.
        factor = 1.0 if sending.upload.entries_if_it_lasts is None else 2.0
        if len(chosen) and factor * float(parameters[chosen].min()) < float(left.max()):
            raise self._broken(offer, scheme, device, "an entry was sent though a larger one was kept")

    def _adds_up(self, offer: Offer, memory: Tensor, sent: Sparse, *, exactly: bool) -> bool:
        """Memory and what was sent are the update; what quantisation takes off is remembered to the last digit."""
        whole = memory.index_add(0, sent.indices, sent.values)
        if exactly:
            return torch.equal(whole, offer.update)
        size = torch.maximum(offer.update.abs(), torch.zeros_like(whole).index_add(0, sent.indices, sent.values.abs()))
        return bool(((whole - offer.update).abs() <= torch.finfo(torch.float32).eps * size).all())

    def mixing_weight(self, weight: float, offer: Offer, upload: Upload, *, scheme: str, device: int) -> float:
        """The share of a model in the global one; what is not between 0 and 1, or of half a model, is refused."""
        if not 0 <= weight <= 1:
            raise self._broken(offer, scheme, device, f"mixing_weight = {weight!r}, must be 0 to 1")
        if upload.entries < offer.parameters:
            raise self._broken(
                offer, scheme, device, f"entries = {upload.entries}, must be 0 or all where models are mixed"
            )
        return float(weight)

    def aggregated(self, model: Tensor, norms_sq: Sequence[float], round_: int) -> None:
        """Stop where the global model comes to infinity; looked at when an update was large enough to do it."""
        if self.allow_divergence or not (self.paranoid or max(norms_sq, default=0.0) > _HARMLESS_NORM_SQ):
            return
        if not bool(model.isfinite().all()):
            raise DivergenceError(f"training diverged: in round {round_} the global model became infinite")

    def evaluated(self, loss: float, round_: int) -> None:
        """Stop at a loss that is infinite or none."""
        if not self.allow_divergence and not math.isfinite(loss):
            raise DivergenceError(f"training diverged: in round {round_} the loss of the global model is {loss}")

    def _broken(self, offer: Offer, scheme: str, device: int, what: str) -> InvariantError:
        return InvariantError(f"round {offer.encounter.round}, device {device}, scheme {scheme}: {what}")


class Ledger:
    """An engine that keeps account of everything it computes, so that mass can be balanced.

    What devices computed since the last balance must be in the global model, in a memory, in a local model or with a
    relay. An optimiser of the server makes of updates what it likes; then what it was given takes the place of the
    model. Where the server mixes models instead of adding updates there is no such balance.
    """

    def __init__(self, engine: Engine, entries: int, device: torch.device, *, server_adds: bool = True) -> None:
        self._engine = engine
        self._given = None if server_adds else torch.zeros(entries, dtype=torch.float64, device=device)
        self._computed = torch.zeros(entries, dtype=torch.float64, device=device)
        self._before: Tensor | None = None
        self._uploads = 0

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        """Advance the models, and add what that changed to the account."""
        before = [model.double() for model in models]
        self._engine.run(models, bursts)
        for was, model in zip(before, models, strict=True):
            self._computed += was - model

    def uploaded(self, uploads: int) -> None:
        """So many uploads were added to the global model, or relayed, each with its rounding."""
        self._uploads += uploads

    def given(self, update: Tensor) -> None:
        """The server's optimiser was given a mean update."""
        if self._given is not None:
            self._given += update.double()

    def balance(
        self,
        model: Tensor,
        states: Sequence[DeviceState],
        local: Sequence[Tensor],
        relayed: Iterable[Tensor],
        round_: int,
    ) -> None:
        """Compare with the balance before; a difference beyond rounding is a fault."""
        devices = len(states)
        holdings = devices * (-model.double() if self._given is None else self._given)
        for state, own in zip(states, local, strict=True):
            holdings += state.memory.double() + (state.received.double() - own.double())
        for update in relayed:
            holdings += update.double()
        if self._before is not None:
            missing = float((holdings - self._before - self._computed).norm())
            # Single precision rounds every upload into the model, and every update where it is formed.
            rounding = torch.finfo(torch.float32).eps * devices * float(model.double().norm())
            if math.isfinite(missing) and missing > rounding * math.sqrt(1 + self._uploads):
                raise InvariantError(
                    f"round {round_}: updates of norm {missing:.3g} were lost or counted twice, of "
                    f"{float(self._computed.norm()):.3g} computed since the last balance"
                )
        self._before, self._uploads = holdings, 0
        self._computed.zero_()
