"""Time and memory to read a large trace: the goals for a 37 MB FCD file are 10 s and 300 MB.

    python benchmarks/traces.py [--json] [--megabytes 37]

The file is generated with the attributes that SUMO writes. Each reading runs in its own process, to measure its peak
memory. A pass over the same bytes that only counts lines shows the speed of the machine.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S, LIMIT_MB = 10.0, 300.0

READ = """
import json, resource, sys, time
from wayfare.mobility.traces import read_recording, select
begun = time.perf_counter()
recording = read_recording(sys.argv[1])
read_s = time.perf_counter() - begun
begun = time.perf_counter()
select(recording, devices=None, server=None, range_m=100.0)
print(json.dumps({
    "read_s": read_s,
    "choose_server_s": time.perf_counter() - begun,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "nodes": len(recording.names),
    "legs": len(recording.content.node),
}))
"""
COUNT = """
import json, lzma, resource, sys, time
begun = time.perf_counter()
with (lzma.open if sys.argv[1].endswith("xz") else open)(sys.argv[1], "rb") as file:
    lines = sum(1 for _ in file)
print(json.dumps({
    "read_s": time.perf_counter() - begun,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "legs": lines,
}))
"""


def write_fcd(file: Path, size_bytes: int, vehicles: int = 300) -> None:
    """Write vehicles that drive in circles, until the file has the requested size."""
    with file.open("w", encoding="utf-8") as out:
        out.write('<?xml version="1.0" encoding="UTF-8"?>\n\n<fcd-export>\n')
        step = 0
        while out.tell() < size_bytes:
            out.write(f'    <timestep time="{step:.2f}">\n')
            for vehicle in range(vehicles):
                angle = 0.01 * step + vehicle
                x, y = 2000 + 900 * math.cos(angle) + vehicle, 2000 + 900 * math.sin(angle)
                out.write(
                    f'        <vehicle id="veh{vehicle}" x="{x:.2f}" y="{y:.2f}" angle="{angle % 360:.2f}" '
                    f'type="DEFAULT_VEHTYPE" speed="9.00" pos="{step % 200:.2f}" lane="D{vehicle}D3_0" slope="0.00"/>\n'
                )
            out.write("    </timestep>\n")
            step += 1
        out.write("</fcd-export>\n")


def measured(code: str, file: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--megabytes", type=float, default=37.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder) / "fcd.xml", Path(folder) / "fcd.xml.xz"
        write_fcd(plain, int(options.megabytes * 1e6))
        with plain.open("rb") as whole, lzma.open(packed, "wb", preset=1) as small:
            shutil.copyfileobj(whole, small)
        size_mb = plain.stat().st_size / 1e6
        rows = {
            "fcd.xml": measured(READ, plain),
            "fcd.xml.xz": measured(READ, packed),
            "lines of fcd.xml": measured(COUNT, plain),
        }
    within = all(row["read_s"] < LIMIT_S and row["peak_mb"] < LIMIT_MB for row in rows.values())
    if options.json:
        print(
            json.dumps({"size_mb": size_mb, "limit_s": LIMIT_S, "limit_mb": LIMIT_MB, "within": within, "rows": rows})
        )
    else:
        print(f"{size_mb:.1f} MB of floating car data; at most {LIMIT_S:g} s and {LIMIT_MB:g} MB")
        print(f"{'':18}{'read s':>8}{'MB/s':>8}{'peak MB':>9}{'server s':>10}{'legs or lines':>15}")
        for name, row in rows.items():
            chosen = f"{row['choose_server_s']:.2f}" if "choose_server_s" in row else "-"
            speed = size_mb / row["read_s"]
            print(f"{name:18}{row['read_s']:8.2f}{speed:8.1f}{row['peak_mb']:9.0f}{chosen:>10}{row['legs']:15,.0f}")
        print("within the limits" if within else "OVER THE LIMITS")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
