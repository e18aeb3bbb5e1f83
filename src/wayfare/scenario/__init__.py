"""Scenarios: what an experiment is made of, and how it is written down."""

from wayfare.scenario.load import DEFAULT_PRESET, FIELD_PRESET, load, parse, preset_names
from wayfare.scenario.model import Scenario

__all__ = ["DEFAULT_PRESET", "FIELD_PRESET", "Scenario", "load", "parse", "preset_names"]
