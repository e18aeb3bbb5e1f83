"""Translate fields, settings and calls in the library's messages into options and commands."""

from __future__ import annotations

import re

from wayfare.errors import ScenarioError, WayfareError

_SAME_NAME = (
    *("active_days", "allow_divergence", "checkpoint_every_rounds", "checkpoint_every_s", "data", "device"),
    *("device_state", "discount_days", "duration_s", "engine", "fresh", "jobs", "keep_checkpoint", "keep_days"),
    *("keep_mb", "least_devices", "like", "outdated_days", "precision", "scheme", "seed", "spacing_m", "step_s"),
    "vehicles",
)
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _SAME_NAME} | {
    "address": "--ray",
    "grid_crossings": "--grid",
    "local": "--from",
    "needs": "--cpus-per-run, --gpus-per-run",
    "net_file": "--net",
    "override": "--set",
}
_COMMANDS = (
    (re.compile(r"`wayfare\.resume\((['\"])(.*?)\1\)`"), r"`wayfare resume \2`"),
    (re.compile(r"`fetch_images\(IMAGE_SETS\['(\w+)'\]\)`"), r"`wayfare data fetch \1`"),
)
_SETTING = re.compile(rf"`({'|'.join(_OPTIONS)})=(\w+)`")


def error_text(error: WayfareError) -> str:
    """The message of an error: `engine = 'steam': ...` begins with `--engine`."""
    message = with_options(str(error))
    if isinstance(error, ScenarioError) and error.field in _OPTIONS:
        return _OPTIONS[error.field] + message.removeprefix(error.field)
    return message


def with_options(text: str) -> str:
    """Replace settings and calls in backquotes, such as `fresh=True`, by options and commands."""
    for call, command in _COMMANDS:
        text = call.sub(command, text)
    return _SETTING.sub(lambda found: f"{_OPTIONS[found[1]]} {found[2]}".removesuffix(" True"), text)
