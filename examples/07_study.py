"""Run a study from Python: two schemes at two speeds, with intervals over seeds and rows for other programs."""

import tempfile
from pathlib import Path

import wayfare

STUDY = """
schemes = ["mads", "afl"]
seeds = 2
targets = ["30 %"]

[set]
rounds = 100
fleet = { devices = 8, energy_total_joules = 20.0 }

[grid]
mobility.speed_mps = [10.0, 40.0]
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "speeds.toml"
        file.write_text(STUDY, encoding="utf-8")
        done = wayfare.sweep(wayfare.load_study(file), out=folder, jobs=1)
        for row in done.results.rows:
            speed = done.results.manifest.points[row.point]["mobility.speed_mps"]
            score, target = row.estimates["score"], row.rounds_to[0]
            print(
                f"{speed:4.0f} m/s  {row.scheme:5} {100 * score.mean:5.1f} % (sd {100 * (score.sd or 0):.1f}),"
                f" 30 % reached by {target.reached} of {target.seeds} seeds"
            )


if __name__ == "__main__":
    main()
