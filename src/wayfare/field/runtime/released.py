"""Released versions: the models that devices use for inference, apart from the newest one, with which they train.

Without a release, every device uses the model that it received last. The operator's orders release a version to all
devices or to some, such as a canary group, or withdraw it. The server keeps the file of a released version, however
old, because compaction does not keep its history.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.errors import InputError
from wayfare.field.fleet.subjects import check_name
from wayfare.field.runtime.database import Database
from wayfare.field.runtime.messages import Released
from wayfare.field.runtime.model_encoding import model_digest, packed, unpacked
from wayfare.field.runtime.orders import Order
from wayfare.files import write_atomically

_log = logging.getLogger("wayfare.field")
ALL = "all"
# Different versions at a time, which bounds the disk.
MAX_VERSIONS = 4
ORDERS = ("release", "withdraw", "group")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseState:
    """Which version each device uses for inference. A device's own version comes before that of all devices."""

    of_all: int | None = None  # None: the model received last
    of_devices: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    before: int | None = None  # the version of all devices before the present one: kept, to return to it
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by version: the fields of `Released`

    def of(self, device: str) -> int | None:
        return self.of_devices.get(device, self.of_all)

    @property
    def needed(self) -> set[int]:
        return {version for version in (self.of_all, *self.of_devices.values()) if version is not None}

    def released(self, version: int, devices: Sequence[str] | None) -> ReleaseState:
        """After a release to some devices, or to all of them, which ends all canaries."""
        if devices is not None:
            return replace(self, of_devices={**self.of_devices, **dict.fromkeys(devices, version)})
        before = self.before if self.of_all in (None, version) else self.of_all
        return replace(self, of_all=version, of_devices={}, before=before)

    def withdrawn(self, devices: Sequence[str] | None) -> ReleaseState:
        """After a withdrawal: some devices use the version of all again, or all the model received last."""
        if devices is None:
            return replace(self, of_all=None, of_devices={}, before=self.before if self.of_all is None else self.of_all)
        kept = {name: version for name, version in self.of_devices.items() if name not in devices}
        return replace(self, of_devices=kept)


class ReleasedVersions:
    """The state in a row of the ledger, and a file for each version. Orders change both in one transaction."""

    def __init__(self, database: Database, folder: Path, layout: Layout) -> None:
        self._database, self._folder, self._layout = database, folder / "released", layout
        self.state = ReleaseState()
        self._running: dict[str, int | None] = {}
        self._valid: dict[int, bool] = {}

    def load(self) -> None:
        facts = dict(self._database.rows("SELECT name, value FROM facts WHERE name IN ('released', 'running')"))
        self.state = ReleaseState(**json.loads(facts.get("released", "{}")))
        self._running = json.loads(facts.get("running", "{}"))

    def wanted(self, device: str) -> Released | None:
        """The version that a device uses for inference; None: the model received last."""
        version = self.state.of(device)
        return None if version is None else Released(version=version, **self.state.files[str(version)])

    def running(self, device: str) -> int | None:
        """The version that a device has reported last."""
        return self._running.get(device)

    def report(self, device: str, version: int | None) -> None:
        """Note the version that a device uses for inference."""
        if version is not None and version != self._running.get(device):
            with self._database.transaction():
                self._running[device] = version
                self._keep("running", self._running)

    def part(self, version: int, begin: int, end: int) -> bytes:
        """Bytes of a released version; none of a damaged or deleted file."""
        if version not in self._valid:
            self._valid[version] = self._is_valid(version)
        if not self._valid[version]:
            return b""
        try:
            with self._file(version).open("rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        except OSError:
            return b""

    def obey(self, order: Order, names: Sequence[str], model_at: Callable[[int], Tensor]) -> str:
        """Carry out a release, a withdrawal or the definition of a group; return what was done."""
        content, state = order.content, self.state
        if order.kind == "group":
            return self._define(str(content["name"]), [*content["devices"]], names)
        target = str(content["to"])
        devices = None if target == ALL else self._devices(target, names)
        whom = "all devices" if devices is None else ", ".join(devices)
        if order.kind == "withdraw":
            if devices is not None and not set(devices) & set(state.of_devices):
                raise InputError(f"to = {target}: no version is released to these devices alone")
            if devices is None and not state.needed:
                raise InputError(f"to = {target}: no version is released")
            self._change(state.withdrawn(devices))
            return f"{whom}: {_text(self.state.of_all)}"
        version = int(content["version"])
        after = state.released(version, devices)
        if len(after.needed) > MAX_VERSIONS:
            raise InputError(f"version = {version}: at most {MAX_VERSIONS} versions at a time; withdraw one first")
        self._change(replace(after, files={**after.files, str(version): self._described(version, model_at)}))
        return f"{whom}: {_text(version)}"

    def _devices(self, target: str, names: Sequence[str]) -> list[str]:
        """The devices of a group, or those in a list."""
        chosen = self.state.groups.get(target) or [name.strip() for name in target.split(",")]
        unknown = [name for name in chosen if name not in names]
        if unknown:
            rule = f"must be {ALL}, devices of this fleet, or a group"
            raise InputError(f"to = {target}: {rule}; unknown: {', '.join(unknown)}")
        return [*chosen]

    def _define(self, group: str, devices: Sequence[str], names: Sequence[str]) -> str:
        check_name("group", group)
        if group == ALL or group in names:
            raise InputError(f"group = {group}: must not be {ALL} or the name of a device")
        unknown = [name for name in devices if name not in names]
        if unknown:
            raise InputError(f"group = {group}: unknown devices: {', '.join(unknown)}")
        others = {name: members for name, members in self.state.groups.items() if name != group}
        self._change(replace(self.state, groups={**others, group: devices} if devices else others))
        return f"{group}: {', '.join(devices)}" if devices else f"{group}: deleted"

    def _described(self, version: int, model_at: Callable[[int], Tensor]) -> Mapping[str, Any]:
        """Write the file of a version, unless there is one."""
        known = self.state.files.get(str(version))
        if known is not None and self._is_valid(version):
            return known
        model = model_at(version)
        data = packed(model, None, self._layout)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file(version), data)
        self._valid[version] = True
        return {"size_bytes": len(data), "digest": model_digest(model)}

    def _change(self, after: ReleaseState) -> None:
        kept = after.needed | ({after.before} if after.before is not None else set())
        files = {version: about for version, about in after.files.items() if int(version) in kept}
        with self._database.transaction():
            self.state = replace(after, files=files)
            self._keep("released", asdict(self.state))

    def delete_unused(self) -> None:
        """Delete files that no device needs. Only after the commit: an order may fail."""
        for file in self._folder.glob("*.model"):
            if file.stem not in self.state.files:
                file.unlink(missing_ok=True)

    def _is_valid(self, version: int) -> bool:
        about = self.state.files.get(str(version))
        try:
            if about is not None:
                unpacked(self._file(version).read_bytes(), self._layout, base=None, digest=about["digest"])
                return True
        except (OSError, WireError) as error:
            _log.error("%s is invalid (%s); release the version again", self._file(version), error)
        return False

    def _file(self, version: int) -> Path:
        return self._folder / f"{version}.model"

    def _keep(self, name: str, value: object) -> None:
        row = (name, json.dumps(value))
        self._database.connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", row)


def released_files(facts: Mapping[str, str]) -> list[str]:
    """The files, relative to the server's state, that rows of a ledger name."""
    return [f"released/{version}.model" for version in json.loads(facts.get("released", "{}")).get("files", {})]


def _text(version: int | None) -> str:
    return "the model received last" if version is None else f"version {version}"
