"""The version, readable without installing the package."""

__version__ = "0.1.0"

ALGORITHM = 12
"""Increased whenever a scenario, scheme and seed give other numbers than before, so that studies never mix versions."""
