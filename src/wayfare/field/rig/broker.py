"""The broker as a process: start, wait, stop, kill and restart."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from wayfare.errors import FieldError
from wayfare.field.fleet import Fleet
from wayfare.field.fleet.broker_config import CONFIG_NAME, STORE_VARIABLE
from wayfare.field.fleet.needs import need_broker_program

# Keep room for other files: a full disk hangs the broker.
_SPARE = 1.25
_TAIL_BYTES = 4000


class Broker:
    """The nats-server of a fleet. Restarts keep its port, even one chosen by the system (``port=0``)."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        store: Path | None = None,
        port: int | None = None,
        host: str = "127.0.0.1",
        ready_s: float = 20.0,
    ) -> None:
        self._program = need_broker_program()
        self._folder = fleet.broker_folder.resolve()
        self._store = (store or self._folder / "store").resolve()
        self._host, self._asked_port, self._ready_s = host, port, ready_s
        self._port = port or None
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self._store / "broker.log"

    @property
    def port(self) -> int:
        if self._port is None:
            raise FieldError("the broker has not been started")
        return self._port

    @property
    def url(self) -> str:
        return f"tls://{self._host}:{self.port}"

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Broker:
        """Start the broker and wait until it accepts connections."""
        if self.running:
            return self
        self._check_disk()
        self._store.mkdir(parents=True, exist_ok=True)
        for left in self._store.glob("*.ports"):
            left.unlink()
        port = [] if self._asked_port is None else ["-p", str(self._port or -1)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-c", CONFIG_NAME, "-a", self._host, *port, "--ports_file_dir", str(self._store)],
                env={**os.environ, STORE_VARIABLE: str(self._store)},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # An interrupt at the terminal reaches the parent process, which then stops the broker.
                process_group=0,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def reload(self) -> None:
        """Reload the users. The broker closes connections of revoked users.

        NATS 2.9 connects the account of a new device with the server's only at the second reload.
        """
        for _ in range(2):
            self._reload_once()

    def _reload_once(self) -> None:
        if not self.running:
            raise FieldError("the broker is not running, so it cannot reload its users")
        before = self._log.stat().st_size
        self._signal(signal.SIGHUP)
        until = time.monotonic() + self._ready_s
        while time.monotonic() < until:
            with self._log.open("rb") as log:
                log.seek(before)
                said = log.read()
            if b"Failed to reload" in said:
                raise FieldError(f"the broker keeps its old users: {self._reason()}")
            if b"Reloaded server configuration" in said:
                return
            time.sleep(0.01)
        raise FieldError(f"the broker did not reload its users within {self._ready_s:g} s")

    def stop(self, timeout_s: float = 10.0) -> None:
        self._signal(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        if self.running and self._process is not None:
            self._process.send_signal(number)

    def _check_disk(self) -> None:
        config = (self._folder / CONFIG_NAME).read_text(encoding="utf-8")
        found = re.search(r"max_file_store:\s*(\d+)", config)
        if found is None:
            return
        there = self._store if self._store.is_dir() else self._store.parent
        used = sum(file.stat().st_size for file in self._store.rglob("*") if file.is_file())
        room, limit = shutil.disk_usage(there).free + used, int(found[1])
        if limit * _SPARE > room:
            raise FieldError(
                f"max_file_store = {limit:,} bytes in {self._folder / CONFIG_NAME}: must be well below the "
                f"{room:,} bytes that are free for {self._store}, because a full disk hangs the broker"
            )

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + self._ready_s
        while time.monotonic() < until:
            if not self.running:
                raise FieldError(f"the broker exited at once: {self._reason()}")
            # The broker writes this file when it listens.
            for written in self._store.glob("*.ports"):
                if found := re.search(rb"(?:nats|tls)://[^\"]*:(\d+)\"", written.read_bytes()):
                    self._port = int(found[1])
                    return
            time.sleep(0.02)
        raise FieldError(f"the broker did not answer within {self._ready_s:g} s: {self._reason()}")

    def _reason(self) -> str:
        """The last error in its log, or its last line."""
        with self._log.open("rb") as log:
            log.seek(max(self._log.stat().st_size - _TAIL_BYTES, 0))
            lines = log.read().decode(errors="replace").splitlines()
        complaints = [line for line in lines if "[FTL]" in line or "[ERR]" in line or "nats-server:" in line]
        return (complaints or lines or ["it wrote nothing"])[-1]
