"""The server without its network: messages in, answers out.

No message of a device can raise an error here, or change anything except through its own valid chunks.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from wayfare.arrays import Buffer
from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.field.runtime.downloads import Downloads
from wayfare.field.runtime.gathering import Gathering
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.messages import Agreement, Ask, Finish, Manifest, Mark, Part, Standing, parse

_log = logging.getLogger("wayfare.field")


@dataclass(slots=True)
class Counts:
    """Traffic from and to one device since the server was started."""

    chunks: int = 0
    repeated: int = 0
    refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    exchanges: int = 0
    version: int | None = None
    loss: float | None = None  # of its local model on its own data, as it reports it
    # Of a private device, as it reports them.
    releases: int | None = None
    epsilon: float | None = None


@dataclass(slots=True)
class Intake:
    """Connects the ledger with the network."""

    ledger: Ledger
    gathering: Gathering
    layout: Layout
    work: Agreement = field(default_factory=dict)  # what a device must have as well; empty: anything
    downloads: Downloads = field(init=False)
    counts: defaultdict[int, Counts] = field(init=False)

    def __post_init__(self) -> None:
        self.downloads = Downloads(self.layout, self.ledger.folder / "downloads")
        self.counts = defaultdict(Counts)
        # Resume after a kill between recording and applying.
        with self.ledger.transaction():
            self.gathering.apply_due(self.ledger)

    @property
    def names(self) -> Sequence[str]:
        """All known devices, by number."""
        return self.ledger.roster.names

    def chunks(self, batch: Sequence[tuple[int, bytes]]) -> list[tuple[int, Mark]]:
        """Record and apply valid chunks in one transaction; return the marks for the devices."""
        marks: list[tuple[int, Mark]] = []
        recorded: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        with self.ledger.transaction():
            for device, data in batch:
                counts = self.counts[device]
                counts.received_bytes += len(data)
                self.ledger.heard(device, up_bytes=len(data))
                try:
                    chunk, new = self.ledger.record(device, data)
                except WireError as error:
                    counts.refused += 1
                    _log.warning("chunk rejected", extra={"device": self.names[device], "reason": str(error)})
                    marks.append((device, Mark(update=0, refused=str(error)[:500])))
                    continue
                counts.chunks += new
                counts.repeated += not new
                recorded[device, chunk.update].append(chunk.chunk)
            self.gathering.apply_due(self.ledger)
        marks += [(device, Mark(update=number, recorded=some)) for (device, number), some in recorded.items()]
        return marks

    def ask(self, device: int, data: bytes) -> Standing | None:
        """The recorded chunks of a device's update; None for an invalid request."""
        self.ledger.heard(device)
        try:
            asked = parse(Ask, data)
            differing = [name for name, digest in self.work.items() if asked.work.get(name) != digest]
            # Devices say it when they begin an exchange.
            if asked.work and differing:
                return self._disagree(device, differing)
            self.ledger.roster.hold(device, asked.samples)
            self.ledger.released.report(self.names[device], asked.running)
            if asked.loss is not None:
                self.counts[device].loss = asked.loss
            if asked.fresh:
                self.ledger.reset_device(device)
            if asked.seal and asked.update is not None:
                self.ledger.seal(device, asked.update)
            if asked.fresh or asked.seal:
                # A rule that waited for the rest of this update can apply it now.
                self.gathering.apply_due(self.ledger)
        except WireError as error:
            self._refuse(device, "question", error)
            return None
        next_update, recorded, sealed = self.ledger.standing(device, asked.update)
        return Standing(
            next_update=next_update,
            recorded=recorded,
            sealed=sealed,
            version=self.ledger.version,
            wait_s=self.ledger.roster.uploads.wait_s(device),
            outdated=asked.version is not None and self.ledger.roster.is_outdated(asked.version),
        )

    def finish(self, device: int, data: bytes) -> Manifest:
        """End an exchange: offer a model, or let the device wait for others."""
        self.ledger.heard(device)
        try:
            asked = parse(Finish, data)
            refusal = self.gathering.refusal(device, asked.round)
            if refusal is None and asked.update is not None and not self.ledger.is_delivered(device, asked.update):
                refusal = f"update {asked.update} is incomplete"
            if refusal is not None:
                raise WireError(refusal)
            with self.ledger.transaction():
                if self.gathering.by_round:
                    self.ledger.finish(device, asked.round)
                self.gathering.apply_due(self.ledger)
        except WireError as error:
            self._refuse(device, "end of an exchange", error)
            return Manifest(state="refused", reason=str(error)[:500])
        self.counts[device].releases, self.counts[device].epsilon = asked.releases, asked.epsilon
        released = self.ledger.released.wanted(self.names[device])
        if not asked.take:
            return Manifest(state="ready", version=self.ledger.version, released=released)
        version = self.gathering.version_for(self.ledger, asked.round, cut_short=asked.cut_short)
        if version is None:
            return Manifest(state="wait")
        # A plan fixes the version; otherwise a begun download continues.
        begun = None if self.gathering.by_round else asked.begun
        offered = self.downloads.resume(self.ledger, device, begun, version, asked.have_version) if begun else None
        if offered is None:
            offered = self.downloads.offer(self.ledger, version, asked.have_version)
            # A device whose contact was cut short gets the previous model, but the state that its own upload led to.
            counted = self.gathering.version_for(self.ledger, asked.round, cut_short=False)
            handed = self.downloads.hand_down(self.ledger, device, version if counted is None else counted)
        else:
            handed = self.downloads.handed(device)
        self.downloads.begin(device, offered)
        self.counts[device].exchanges += 1
        self.counts[device].version = offered.version
        return Manifest(
            state="ready",
            version=offered.version,
            base_version=offered.base_version,
            size_bytes=len(offered.data),
            digest=offered.digest,
            handed_bytes=len(handed.data),
            handed_digest=handed.digest,
            released=released,
            settings=self.ledger.aggregation.settings_at(offered.version),
        )

    def part(self, device: int, data: bytes) -> Buffer:
        """Some bytes of an offered model; fewer if it is no longer kept, so that the device must ask again."""
        try:
            asked = parse(Part, data)
        except WireError as error:
            self._refuse(device, "request", error)
            return b""
        end = asked.offset + asked.size_bytes
        if asked.released:
            piece: Buffer = self.ledger.released.part(asked.version, asked.offset, end)
        else:
            piece = self.downloads.part(device, asked.version, asked.base_version, asked.offset, end)
        self.counts[device].sent_bytes += len(piece)
        self.ledger.heard(device, down_bytes=len(piece))
        return piece

    def close(self) -> None:
        """Keep begun downloads and close the ledger."""
        self.downloads.store_begun()
        self.ledger.contacts.flush(everything=True)
        self.ledger.save_model()
        self.ledger.close()

    def _disagree(self, device: int, names: Sequence[str]) -> Standing:
        """The answer to a device that was started with other options than the server, or is of an earlier version."""
        reason = f"{' and '.join(names)}: must be the same on this device and on the server"
        if "wire format" in names:
            reason += "; install the same version of Wayfare on both"
        self._refuse(device, "question", WireError(reason))
        return Standing(next_update=0, version=self.ledger.version, refused=reason)

    def _refuse(self, device: int, what: str, error: WireError) -> None:
        self.counts[device].refused += 1
        _log.warning("%s rejected", what, extra={"device": self.names[device], "reason": str(error)})
