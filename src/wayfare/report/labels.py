"""Names of fields and measures as an axis shows them: words and a unit."""

from __future__ import annotations

from wayfare.learning.tasks import Metric

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
# Words that are letters.
_SHORT = ("ade", "fde", "mse", "rmse")


def words_and_unit(name: str) -> tuple[str, str]:
    """``mobility.speed_mps`` is a speed in m/s; a name without a unit has an empty one."""
    last = name.rpartition(".")[2]
    words, _, suffix = last.rpartition("_")
    if words and suffix in _UNITS:
        return words.replace("_", " "), _UNITS[suffix]
    return last.replace("_", " "), ""


def metric_words_and_unit(metric: Metric) -> tuple[str, str]:
    """What a score is called: ``ade_m`` is an ADE in m, accuracy a share in %."""
    words, unit = (metric.name.replace("_", " "), "%") if metric.percent else words_and_unit(metric.name)
    return " ".join(word.upper() if word in _SHORT else word for word in words.split()), unit


def axis_label(name: str) -> str:
    """For a figure: ``speed (m/s)``."""
    words, unit = words_and_unit(name)
    return f"{words} ({unit})" if unit else words
