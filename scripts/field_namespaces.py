"""Follow docs/how-to/field.md word by word on two hosts with a slow and lossy network between them.

    sudo python scripts/field_namespaces.py [--mbps 4] [--loss 0.01] [--exchanges 5]

The hosts are network namespaces, each with its own overlay of this machine's files, so that nothing outside is changed.
The commands are those of the page, sections 2 to 5. There is no systemd in a namespace: small stand-ins for systemctl
and journalctl start the units of `wayfare field init` as they are written. The last line is a JSON object.

Linux only, as root, with iproute2, iptables and nats-server. `obstacle` says in one line what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/how-to/field.md"
SOURCE = Path(__file__).resolve().parents[1] / "src"
DEPOT, BUS = "10.0.0.7", "10.0.0.11"
_SYSTEMCTL = r"""#!/bin/bash
# Start units without systemd: user, folder, environment and command as in the unit.
[ "$1" = enable ] || exit 0
for unit in "${@:3}"; do
    file=/etc/systemd/system/$unit.service
    value() { sed -n "s/^$1=//p" "$file" | head -1; }
    state=$(value StateDirectory); user=$(value User); folder=$(value WorkingDirectory)
    install -d -o "$user" -m "$(value StateDirectoryMode)" "/var/lib/$state"
    set -a; while IFS= read -r line; do case $line in ''|\#*) ;; *) export "${line%%=*}=${line#*=}" ;; esac; done \
        < "$(value EnvironmentFile)"; set +a
    { cd "${folder:-/}"; exec setsid runuser -u "$user" -- bash -c "exec $(value ExecStart)"; } \
        > "/var/log/$unit" 2>&1 < /dev/null &
done
"""


@dataclass(frozen=True)
class Host:
    name: str
    pid: int
    root: Path

    @property
    def view(self) -> Path:
        """The files of this host, as seen from outside."""
        return Path(f"/proc/{self.pid}/root{self.root}")

    def run(self, command: str, *, check: bool = True) -> str:
        """Run commands as root on this host, in its folder /root/fleet."""
        inside = f"cd /root/fleet && export PATH=/opt/wayfare/bin:$PATH && {command}"
        done = subprocess.run(
            ["nsenter", "-t", str(self.pid), "-m", "-n", "chroot", str(self.root), "bash", "-ec", inside],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise SystemExit(f"{self.name}: {command}\n{done.stdout}{done.stderr}")
        return done.stdout


def obstacle() -> str | None:
    """Why this machine cannot do it, in one line; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces: needs root on Linux"
    for program in ("ip", "tc", "iptables", "nsenter", "nats-server", "curl"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            return f"network namespaces: {program} is not installed"
    checks = (
        "ip link add wf-a type veth peer name wf-b && tc qdisc add dev wf-a root tbf rate 1mbit burst 16kb latency 1s"
        " && iptables -A INPUT -m statistic --mode random --probability 0.5 -j ACCEPT"
        " && mkdir u w m && mount -t overlay overlay -o lowerdir=/,upperdir=u,workdir=w m"
    )
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            ["unshare", "-n", "-m", "sh", "-c", checks], cwd=folder, capture_output=True, text=True, check=False
        )
    return f"network namespaces: {tried.stderr.strip().splitlines()[-1]}" if tried.returncode else None


@contextmanager
def host(name: str, folder: Path) -> Iterator[Host]:
    """A network namespace with its own view of the files, until the end."""
    root = folder / name / "root"
    for part in ("upper", "work", "root"):
        (folder / name / part).mkdir(parents=True)
    layers = f"lowerdir=/,upperdir={folder / name / 'upper'},workdir={folder / name / 'work'}"
    script = (
        f"mount -t overlay overlay -o {layers} {root} && mount -t proc proc {root}/proc && mount --bind /dev {root}/dev"
        " && ip link set lo up && echo ready && exec sleep infinity"
    )
    holder = subprocess.Popen(["unshare", "-n", "-m", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    if holder.stdout.readline() != "ready\n":
        raise SystemExit(f"{name}: the namespace cannot be made")
    found = Host(name, holder.pid, root)
    try:
        prepare(found)
        yield found
    finally:
        # Everything that was started on this host, and nothing else: it shares the holder's network.
        ours = Path(f"/proc/{holder.pid}/ns/net").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "ns/net").readlink() == ours and int(process.name) != holder.pid:
                    os.kill(int(process.name), 9)
            except OSError:
                continue
        holder.kill()
        holder.wait()


def prepare(on: Host) -> None:
    """What the page requires: Wayfare in /opt/wayfare, a name for the broker, and a folder to work in."""
    subprocess.run(
        ["nsenter", "-t", str(on.pid), "-m", "-n", "chroot", str(on.root), "mkdir", "-p", "/root/fleet"], check=True
    )
    for name, text in (("systemctl", _SYSTEMCTL), ("journalctl", '#!/bin/bash\ncat "/var/log/$2"\n')):
        on.run(f"cat > /usr/local/bin/{name} <<'END'\n{text}END\nchmod 755 /usr/local/bin/{name}")
    on.run(f"rm -rf /opt/wayfare && ln -s {sys.prefix} /opt/wayfare && echo '{DEPOT} depot.example' >> /etc/hosts")
    # The user `wayfare` must be able to read the interpreter and this checkout.
    for path in {sys.prefix, sys.base_prefix, str(SOURCE)}:
        for folder in (Path(path), *Path(path).parents):
            on.run(f"chmod o+x {folder}")


def connect(depot: Host, bus: Host, mbps: float, loss: float) -> None:
    subprocess.run(["ip", "link", "add", "wf-depot", "type", "veth", "peer", "name", "wf-bus"], check=True)
    for on, link, address in ((depot, "wf-depot", DEPOT), (bus, "wf-bus", BUS)):
        subprocess.run(["ip", "link", "set", link, "netns", str(on.pid)], check=True)
        on.run(
            f"export PATH=$PATH:/usr/sbin:/sbin; ip addr add {address}/24 dev {link} && ip link set {link} up"
            f" && tc qdisc add dev {link} root tbf rate {mbps}mbit burst 32kb latency 500ms"
            f" && iptables -A INPUT -i {link} -m statistic --mode random --probability {loss} -j DROP"
        )


def blocks() -> dict[int, list[str]]:
    """The indented commands of the page, by the number of their section."""
    found: dict[int, list[str]] = {}
    section, begun = 0, False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = int(line[3]) if line[3].isdigit() else 0
        elif line.startswith("### "):
            section = 0
        if section and line.startswith("    "):
            found.setdefault(section, [])
            if begun:
                found[section][-1] += "\n" + line[4:]
            else:
                found[section].append(line[4:])
            begun = True
        else:
            begun = False
    return found


def follow(folder: Path, mbps: float, loss: float, exchanges: int) -> dict[str, object]:
    page = blocks()
    with ExitStack() as ending:
        depot, bus = (ending.enter_context(host(name, folder)) for name in ("depot", "bus-1"))
        connect(depot, bus, mbps, loss)
        depot.run("wayfare field example EXAMPLE")
        for command in page[2]:
            depot.run(command)
        depot.run(page[3][0])
        began_s = time.monotonic()
        shutil.copytree(depot.view / "root/fleet/vehicles/bus-1", bus.view / "root/fleet", dirs_exist_ok=True)
        bus.run(page[4][0])
        first_s = None
        while time.monotonic() < began_s + 180:
            row = _status(depot)
            if row["exchanges"] and first_s is None:
                first_s = time.monotonic() - began_s
            if row["exchanges"] >= exchanges:
                break
            time.sleep(1)
        shown = [depot.run(command.partition("#")[0]) for command in page[5][0].splitlines()]
        dropped = depot.run("PATH=$PATH:/usr/sbin iptables -nvxL INPUT | grep statistic | awk '{print $1}'")
        return {
            "mbps": mbps,
            "loss": loss,
            "first_exchange_s": first_s,
            "seconds": time.monotonic() - began_s,
            "packets_dropped_at_the_depot": int(dropped),
            "status": row,
            "lines_of_section_5": [len(text.splitlines()) for text in shown],
        }


def _status(depot: Host) -> dict[str, int]:
    try:
        devices = json.loads(depot.run("wayfare field status --json", check=False))["devices"]
    except ValueError:
        return {"exchanges": 0}
    return next((row for row in devices if row["name"] == "bus-1"), {"exchanges": 0})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbps", type=float, default=4.0)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--exchanges", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if (reason := obstacle()) is not None:
        raise SystemExit(f"skipped: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(follow(Path(folder), arguments.mbps, arguments.loss, arguments.exchanges)))


if __name__ == "__main__":
    main()
