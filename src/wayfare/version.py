"""The version, where a checkout that was never installed can read it too."""

__version__ = "0.1.0"

ALGORITHM = 3
"""Raised whenever the same scenario, scheme and seed come to other numbers, so that studies do not mix old and new."""
