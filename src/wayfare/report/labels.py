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
# Schemes as their authors write them.
_SCHEMES = {
    "mads": "MADS",
    "mads-rd": "MADS-RD",
    "optimal": "Optimal",
    "afl-spar": "AFL-Spar",
    "afl": "AFL",
    "fedmobile": "FedMobile",
    "fedasync": "FedAsync",
    "sfl-spar": "SFL-Spar",
    "fedbuff": "FedBuff",
    "staleness-weighted": "Staleness-weighted",
    "ca2fl": "CA2FL",
    "fadas": "FADAS",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "ef21-sgdm": "EF21-SGDM",
    "dgc": "DGC",
    "random-k": "Random-k",
    "threshold": "Threshold",
    "qsgd": "QSGD",
    "mobility-aware": "Mobility-aware",
}
ASSUMED = "free downlink, free computing, the full band for every device"
"""What all results share (docs/assumptions.md), for the notes below a table."""

# Words that are letters.
_SHORT = ("ade", "fde", "mse", "rmse")


def words_and_unit(name: str) -> tuple[str, str]:
    """``mobility.speed_mps`` is a speed in m/s; a name without a unit has an empty one."""
    last = name.rpartition(".")[2]
    words, _, suffix = last.rpartition("_")
    if words and suffix in _UNITS:
        return _words(words), _UNITS[suffix]
    return _words(last), ""


def _words(name: str) -> str:
    return name.replace("inter_contact", "inter-contact").replace("_", " ")


def scheme_label(name: str) -> str:
    """``afl-spar:paced`` is AFL-Spar, paced; a name that is not known stays as it is."""
    scheme, *choices = name.split(":")
    return ", ".join([_SCHEMES.get(scheme, scheme), *choices])


def value_label(name: str, value: str) -> str:
    """One value of a field: ``contact_s`` and 4 is contact 4 s."""
    words, unit = words_and_unit(name)
    return " ".join(part for part in (words, value, unit) if part)


def metric_words_and_unit(metric: Metric) -> tuple[str, str]:
    """What a score is called: ``ade_m`` is an ADE in m, accuracy a share in %."""
    words, unit = (metric.name.replace("_", " "), "%") if metric.percent else words_and_unit(metric.name)
    return " ".join(word.upper() if word in _SHORT else word for word in words.split()), unit


def metric_heading(metric: Metric) -> str:
    """For the head of a column: the unit below the name."""
    return "\n".join(part for part in metric_words_and_unit(metric) if part)


def axis_label(name: str) -> str:
    """For a figure: ``speed (m/s)``."""
    return _labelled(*words_and_unit(name))


def metric_label(metric: Metric) -> str:
    """For a figure: ``accuracy (%)``."""
    return _labelled(*metric_words_and_unit(metric))


def _labelled(words: str, unit: str) -> str:
    return f"{words} ({unit})" if unit else words


def named_with_task(name: str, task: str) -> str:
    """A scenario or study with its task, unless its name tells it."""
    return name if task.split("-")[0] in name else f"{name}, task {task}"
