"""Names of fields and measures as an axis shows them: words and a unit."""

from __future__ import annotations

_UNITS = {
    "mps": "m/s",
    "s": "s",
    "m": "m",
    "hz": "Hz",
    "bps": "bit/s",
    "joules": "J",
    "watts": "W",
    "db": "dB",
    "bits": "bit",
    "rounds": "rounds",
}


def words_and_unit(name: str) -> tuple[str, str]:
    """``mobility.speed_mps`` is a speed in m/s; a name without a unit has an empty one."""
    last = name.rpartition(".")[2]
    words, _, suffix = last.rpartition("_")
    if words and suffix in _UNITS:
        return words.replace("_", " "), _UNITS[suffix]
    return last.replace("_", " "), ""


def axis_label(name: str) -> str:
    """For a figure: ``speed (m/s)``."""
    words, unit = words_and_unit(name)
    return f"{words} ({unit})" if unit else words
