"""Errors of encoded messages."""

from __future__ import annotations

from wayfare.errors import InputError


class WireError(InputError):
    """A message that Wayfare's encoder did not write, or that is for another model."""
