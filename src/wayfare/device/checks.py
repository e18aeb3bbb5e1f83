"""Invariants of a run: cheap checks always, all checks with ``paranoid``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.steps import WHOLE
from wayfare.codec.values import value_width
from wayfare.errors import DivergenceError, InvariantError
from wayfare.methods import Encounter, Method, Upload
from wayfare.radio import Link
from wayfare.sparsify import Sparse

if TYPE_CHECKING:
    from wayfare.device.contact import Transmission

# The squared norm that a method sees for an update with NaN or infinity: larger than that of any finite update, and
# small enough to compute with.
_DIVERGED_NORM_SQ = 1e100
# Smaller updates cannot make a global model infinite in any number of rounds.
_HARMLESS_NORM_SQ = 1e60
# Relative tolerance for sums of a few double-precision numbers.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The checks of a run.

    Cheap checks always run: entries <= parameters, energy >= 0, backlog >= 0, cost of the entries <= bits <=
    capacity, energy >= cost of the bits. ``paranoid`` adds: every entry of an update is either sent or kept in
    memory; the sent entries are the largest; no part of an update is lost or counted twice.
    """

    allow_divergence: bool = False
    paranoid: bool = False

    def encounter(self, encounter: Encounter) -> Encounter:
        """Stop if the update has NaN or infinity. If divergence is allowed, show the method a very large norm."""
        norm_sq = encounter.update_norm_sq
        if math.isfinite(norm_sq):
            return encounter
        if not self.allow_divergence:
            raise DivergenceError(
                f"training diverged in round {encounter.round}: the update of device {encounter.device} contains "
                f"{'NaN' if math.isnan(norm_sq) else 'infinity'}"
            )
        return replace(encounter, update_norm_sq=_DIVERGED_NORM_SQ)

    def upload(self, encounter: Encounter, upload: Upload, link: Link, method: Method) -> Upload:
        """Convert a decision to plain numbers and reject invalid ones."""
        try:
            plain = Upload(
                entries=_whole("entries", upload.entries),
                bits=float(upload.bits),
                power_watts=float(upload.power_watts),
                energy_joules=float(upload.energy_joules),
                completes=bool(upload.completes),
                value_bits=None if upload.value_bits is None else value_width(_whole("value_bits", upload.value_bits)),
                max_entries=None if upload.max_entries is None else _whole("max_entries", upload.max_entries),
                max_joules=float(upload.max_joules),
            )
        except (AttributeError, TypeError, ValueError, OverflowError, WireError) as error:
            raise _violation(encounter, method, f"decided on {upload!r}, not a valid upload: {error}") from None
        for problem in _problems(plain, encounter, link, method):
            raise _violation(encounter, method, problem)
        return plain

    def transmitted(self, sending: Transmission, method: Method) -> None:
        """With ``paranoid``: every entry is sent or kept in memory, and the sent entries are the largest."""
        offer, sent, memory = sending.offer, sending.sent, sending.state.memory
        if not self.paranoid or sent is None or not offer.update.isfinite().all():
            return
        if len(sent) and not bool((sent.indices.diff() > 0).all()):
            raise _violation(offer.encounter, method, "an entry was sent twice")
        are_sums = sending.upload.value_bits == WHOLE
        is_exact = are_sums or (method.compressor.sends_largest and sending.upload.value_bits is None)
        if method.memory.conserves and not _adds_up(offer.update, memory, sent, exactly=is_exact):
            raise _violation(offer.encounter, method, "an entry was neither sent nor kept in memory, or both")
        if are_sums or not method.compressor.sends_largest:
            return
        chosen = sent.indices[sent.indices < offer.parameters]
        parameters = offer.update[: offer.parameters].abs()
        left = parameters.index_fill(0, chosen, 0.0)
        # Pieces go by octaves, so an entry left behind may be twice as large as a sent one.
        factor = 1.0 if sending.upload.max_entries is None else 2.0
        if len(chosen) and factor * float(parameters[chosen].min()) < float(left.max()):
            raise _violation(offer.encounter, method, "an entry was sent although a larger one was not")

    def aggregated(self, model: Tensor, norms_sq: Sequence[float], round_: int) -> None:
        """Stop if the global model becomes infinite. Checked only after updates large enough to cause it."""
        if self.allow_divergence or not (self.paranoid or max(norms_sq, default=0.0) > _HARMLESS_NORM_SQ):
            return
        if not bool(model.isfinite().all()):
            raise DivergenceError(f"training diverged in round {round_}: the global model contains NaN or infinity")

    def evaluated(self, loss: float, round_: int) -> None:
        """Stop if the loss is NaN or infinity."""
        if not self.allow_divergence and not math.isfinite(loss):
            raise DivergenceError(f"training diverged in round {round_}: the loss of the global model is {loss}")


def _whole(field: str, number: float) -> int:
    """Convert a whole number of any type to int; reject fractions."""
    whole = int(number)
    if whole != number:
        raise ValueError(f"{field} = {number!r} is not an integer")
    return whole


def _problems(upload: Upload, encounter: Encounter, link: Link, method: Method) -> Iterator[str]:
    entries, bits, power_watts, joules = upload.entries, upload.bits, upload.power_watts, upload.energy_joules
    airtime_s = encounter.contact_s * (1 + _SLACK)
    # A negative power is rejected below.
    usable_watts = max(power_watts, 0.0)
    max_joules = usable_watts * airtime_s
    capacity_bits = airtime_s * link.rate_bps(usable_watts, encounter.gain_per_watt)
    min_bits = _min_bits(upload, link)
    min_joules = link.energy_joules(min_bits, usable_watts, encounter.gain_per_watt)
    if not 0 <= entries <= link.parameters:
        yield f"entries = {entries!r}, must be 0 to {link.parameters} parameters"
    if entries != 0 and not upload.completes:
        yield f"entries = {entries!r}, must be 0 in an upload that does not complete"
    if entries not in (0, link.parameters) and method.server.takes != "updates":
        yield f"entries = {entries!r}, must be 0 or all if the server mixes models"
    if upload.value_bits == WHOLE and entries > link.sums:
        yield f"entries = {entries!r}, must be at most {link.sums}, because only statistics are whole numbers"
    if not 0 <= power_watts <= link.max_power_watts * (1 + _SLACK):
        yield f"power_watts = {power_watts!r}, must be 0 to {link.max_power_watts} W"
    if not 0 <= joules <= max_joules:
        yield f"energy_joules = {joules!r}, must be 0 to {max_joules:.6g} J, the energy of the contact at that power"
    if not 0 <= bits <= capacity_bits + _SLACK:
        yield f"bits = {bits!r}, must be 0 to {capacity_bits:.6g}, the capacity of the contact at that power"
    if not bits >= min_bits * (1 - _SLACK):
        yield f"bits = {bits!r}, must be at least {min_bits:.6g}, the cost of {entries} entries on this link"
    if not joules >= min_joules * (1 - _SLACK):
        cost = f"the cost of {min_bits:.6g} bits at {power_watts:.6g} W"
        yield f"energy_joules = {joules!r}, must be at least {min_joules:.6g} J, {cost}"
    if not encounter.backlog_joules >= 0:
        yield f"backlog_joules = {encounter.backlog_joules!r}, must be 0 or more"


def _min_bits(upload: Upload, link: Link) -> float:
    """The lower bound on the bits of an upload: value and index of each entry, or all values without indices.

    It is 0 for a coded upload, whose bits are an estimate: the encoding sets its cost.
    """
    if upload.entries == 0 or upload.value_bits is not None:
        return 0.0
    return min(upload.entries * link.bits_per_entry + link.statistics_bits, link.dense_bits)


def _adds_up(update: Tensor, memory: Tensor, sent: Sparse, *, exactly: bool) -> bool:
    """Whether memory plus sent entries equal the update, up to rounding if values were quantised."""
    whole = memory.index_add(0, sent.indices, sent.values)
    if exactly:
        return torch.equal(whole, update)
    size = torch.maximum(update.abs(), torch.zeros_like(whole).index_add(0, sent.indices, sent.values.abs()))
    return bool(((whole - update).abs() <= torch.finfo(torch.float32).eps * size).all())


def _violation(encounter: Encounter, method: Method, problem: str) -> InvariantError:
    return InvariantError(f"round {encounter.round}, device {encounter.device}, scheme {method.name}: {problem}")
