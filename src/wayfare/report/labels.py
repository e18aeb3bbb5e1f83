"""Display names of schemes, fields and metrics: words and a unit."""

from __future__ import annotations

from pathlib import PurePath

from wayfare.learning.known import KNOWN
from wayfare.learning.tasks import Metric
from wayfare.methods import scheme_label
from wayfare.scenario.load import names_python_file

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
ASSUMED = "free downlink, free computing, the full band for every device"
"""The assumptions of all results (docs/assumptions.md), for the notes below a table."""

# Abbreviations in upper case.
_SHORT = ("ade", "fde", "mse", "rmse")


def words_and_unit(name: str) -> tuple[str, str]:
    """Words and unit of a field: ``mobility.speed_mps`` is `speed` in `m/s`; the unit may be empty."""
    last = name.rpartition(".")[2]
    words, _, suffix = last.rpartition("_")
    if words and suffix in _UNITS:
        return _words(words), _UNITS[suffix]
    return _words(last), ""


def _words(name: str) -> str:
    return name.replace("inter_contact", "inter-contact").replace("_", " ")


def figure_label(scheme: str) -> str:
    """The label of a scheme for matplotlib, which omits labels that begin with an underscore."""
    label = scheme_label(scheme)
    return f"\u200b{label}" if label.startswith("_") else label


def value_label(name: str, value: str) -> str:
    """The label of a value: ``contact_s`` and 4 is `contact 4 s`."""
    words, unit = words_and_unit(name)
    return " ".join(part for part in (words, value, unit) if part)


def metric_words_and_unit(metric: Metric) -> tuple[str, str]:
    """Words and unit of a score: ``ade_m`` is `ADE` in `m`, accuracy is in `%`."""
    words, unit = (metric.name.replace("_", " "), "%") if metric.percent else words_and_unit(metric.name)
    return " ".join(word.upper() if word in _SHORT else word for word in words.split()), unit


def metric_heading(metric: Metric) -> str:
    """The heading of a column, with the unit below the name."""
    return "\n".join(part for part in metric_words_and_unit(metric) if part)


def is_of_devices(name: str, metric: Metric) -> bool:
    """Whether a further metric is a score over devices: ``accuracy_worst_tenth``."""
    return name.startswith(f"{metric.name}_")


def other_heading(name: str, metric: Metric) -> str:
    """The heading of the column of a further metric."""
    if not is_of_devices(name, metric):
        return name.replace("_", "\n", 1)
    _, _, which = name.removeprefix(metric.name).partition("_")
    return f"{which.replace('_', ' ')}\n{metric_words_and_unit(metric)[1]}".rstrip()


def other_text(name: str, value: float, metric: Metric) -> str:
    """The value of a further metric, in the unit of its heading."""
    if is_of_devices(name, metric):
        return f"{100 * value:.1f}" if metric.percent else f"{value:.3f}"
    return number_text(value)


def number_text(value: float) -> str:
    """Three digits, or all digits of a larger whole number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def axis_label(name: str) -> str:
    """The label of an axis: ``speed (m/s)``."""
    return _labelled(*words_and_unit(name))


def metric_label(metric: Metric) -> str:
    """The label of a score: ``accuracy (%)``."""
    return _labelled(*metric_words_and_unit(metric))


def _labelled(words: str, unit: str) -> str:
    return f"{words} ({unit})" if unit else words


def task_label(task: str) -> str:
    """A task in a file without the folder of the file: ``mine.py:task``."""
    return PurePath(task).name if names_python_file(task) else task


def backbone_label(backbone: str) -> str:
    """A backbone without the folders of its files: ``mine.py:net``, ``timm:resnet18@weights.pth``."""
    library, at, weights = backbone.partition("@")
    return task_label(backbone) if not at else f"{library}@{PurePath(weights).name}"


def named_with_task(name: str, task: str) -> str:
    """The name of a scenario or study with its task, unless the name contains one of Wayfare's tasks."""
    named = task in KNOWN and task.split("-")[0] in name
    return name if named else f"{name}, task {task_label(task)}"
