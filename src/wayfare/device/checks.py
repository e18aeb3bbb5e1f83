"""What must hold in every run, looked at while it runs: cheap checks always, all of them when asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.values import value_width
from wayfare.errors import DivergenceError, InvariantError
from wayfare.methods import Encounter, Method, Upload
from wayfare.radio import Link
from wayfare.sparsify import Sparse

if TYPE_CHECKING:
    from wayfare.device.contact import Transmission

# What a method is shown for the norm of an update that is infinite or none: more than any sound update has, and small
# enough to be computed with.
_BEYOND_NORM_SQ = 1e100
# Updates smaller than this cannot bring a global model to infinity in any number of rounds.
_HARMLESS_NORM_SQ = 1e60
# A decision is computed in double precision; sums of a few such numbers agree to this.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The checks of a run.

    The cheap checks are made always: entries <= parameters, energy >= 0, backlog >= 0, cost of the entries <= bits <=
    capacity, energy >= that of the bits. With ``paranoid`` also: every entry of an update is sent or remembered,
    exactly; what is sent is the largest; nothing that was ever computed is lost or counted twice.
    """

    allow_divergence: bool = False
    paranoid: bool = False

    def encounter(self, encounter: Encounter) -> Encounter:
        """Stop at an update that is infinite or none; where that is allowed, show the method a very large one."""
        norm_sq = encounter.update_norm_sq
        if math.isfinite(norm_sq):
            return encounter
        if not self.allow_divergence:
            raise DivergenceError(
                f"training diverged: in round {encounter.round} the update of device {encounter.device} holds a number "
                f"that is {'none (NaN)' if math.isnan(norm_sq) else 'infinite'}"
            )
        return replace(encounter, update_norm_sq=_BEYOND_NORM_SQ)

    def upload(self, encounter: Encounter, upload: Upload, link: Link, method: Method) -> Upload:
        """A decision as plain numbers; one that cannot be is refused."""
        try:
            plain = Upload(
                entries=_whole(upload.entries),
                bits=float(upload.bits),
                power_watts=float(upload.power_watts),
                energy_joules=float(upload.energy_joules),
                completes=bool(upload.completes),
                value_bits=None if upload.value_bits is None else value_width(_whole(upload.value_bits)),
                max_entries=None if upload.max_entries is None else _whole(upload.max_entries),
                max_joules=float(upload.max_joules),
            )
        except (AttributeError, TypeError, ValueError, OverflowError, WireError) as error:
            raise _broken(encounter, method, f"decided on {upload!r}, which is no upload: {error}") from None
        for problem in _problems(plain, encounter, link, method):
            raise _broken(encounter, method, problem)
        return plain

    def transmitted(self, sending: Transmission, method: Method) -> None:
        """Every entry of the update is sent or remembered, and those sent are the largest (only if paranoid)."""
        offer, sent, memory = sending.offer, sending.sent, sending.state.memory
        if not self.paranoid or sent is None or not offer.update.isfinite().all():
            return
        if len(sent) and not bool((sent.indices.diff() > 0).all()):
            raise _broken(offer.encounter, method, "an entry was sent twice")
        as_it_is = method.compressor.sends_largest and sending.upload.value_bits is None
        if method.memory.conserves and not _adds_up(offer.update, memory, sent, exactly=as_it_is):
            raise _broken(offer.encounter, method, "an entry was neither sent nor remembered, or both")
        if not method.compressor.sends_largest:
            return
        chosen = sent.indices[sent.indices < offer.parameters]
        parameters = offer.update[: offer.parameters].abs()
        left = parameters.index_fill(0, chosen, 0.0)
        # Pieces go by octaves, so what they leave may be twice as large as what they hold.
        factor = 1.0 if sending.upload.max_entries is None else 2.0
        if len(chosen) and factor * float(parameters[chosen].min()) < float(left.max()):
            raise _broken(offer.encounter, method, "an entry was sent though a larger one was kept")

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


def _whole(number: float) -> int:
    """A whole number of whatever type; any other is refused, not rounded."""
    whole = int(number)
    if whole != number:
        raise ValueError(f"{number!r} is not a whole number")
    return whole


def _problems(upload: Upload, encounter: Encounter, link: Link, method: Method) -> Iterator[str]:
    entries, bits, power_watts, joules = upload.entries, upload.bits, upload.power_watts, upload.energy_joules
    airtime_s = encounter.contact_s * (1 + _SLACK)
    # A negative power is refused below; until then it has neither rate nor energy.
    usable_watts = max(power_watts, 0.0)
    max_joules = usable_watts * airtime_s
    capacity_bits = airtime_s * link.rate_bps(usable_watts, encounter.gain_per_watt)
    least_bits = _least_bits(upload, link)
    least_joules = link.energy_joules(least_bits, usable_watts, encounter.gain_per_watt)
    if not 0 <= entries <= link.parameters:
        yield f"entries = {entries!r}, must be 0 to {link.parameters} parameters"
    if entries != 0 and not upload.completes:
        yield f"entries = {entries!r}, must be 0 in an upload that does not complete"
    if entries not in (0, link.parameters) and method.server.takes != "updates":
        yield f"entries = {entries!r}, must be 0 or all where models are mixed"
    if not 0 <= power_watts <= link.max_power_watts * (1 + _SLACK):
        yield f"power_watts = {power_watts!r}, must be 0 to {link.max_power_watts} W"
    if not 0 <= joules <= max_joules:
        yield f"energy_joules = {joules!r}, must be 0 to {max_joules:.6g} J, the power for the whole contact"
    if not 0 <= bits <= capacity_bits + _SLACK:
        yield f"bits = {bits!r}, must be 0 to {capacity_bits:.6g}, what the contact holds at that power"
    if not bits >= least_bits * (1 - _SLACK):
        yield f"bits = {bits!r}, must be at least {least_bits:.6g}, what {entries} entries cost on this link"
    if not joules >= least_joules * (1 - _SLACK):
        cost = f"what {least_bits:.6g} bits cost at {power_watts:.6g} W"
        yield f"energy_joules = {joules!r}, must be at least {least_joules:.6g} J, {cost}"
    if not encounter.backlog_joules >= 0:
        yield f"backlog_joules = {encounter.backlog_joules!r}, must be 0 or more"


def _least_bits(upload: Upload, link: Link) -> float:
    """What the entries of an upload cost at least: value and index of each, or all values without indices.

    The bits of a coded upload are an estimate: it is billed by its encoding.
    """
    if upload.entries == 0 or upload.value_bits is not None:
        return 0.0
    return min(upload.entries * link.bits_per_entry + link.statistics_bits, link.dense_bits)


def _adds_up(update: Tensor, memory: Tensor, sent: Sparse, *, exactly: bool) -> bool:
    """Memory and what was sent are the update; what quantisation takes off is remembered to the last digit."""
    whole = memory.index_add(0, sent.indices, sent.values)
    if exactly:
        return torch.equal(whole, update)
    size = torch.maximum(update.abs(), torch.zeros_like(whole).index_add(0, sent.indices, sent.values.abs()))
    return bool(((whole - update).abs() <= torch.finfo(torch.float32).eps * size).all())


def _broken(encounter: Encounter, method: Method, what: str) -> InvariantError:
    return InvariantError(f"round {encounter.round}, device {encounter.device}, scheme {method.name}: {what}")
