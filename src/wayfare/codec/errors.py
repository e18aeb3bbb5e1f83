"""What is wrong with a message."""

from __future__ import annotations

from wayfare.errors import InputError


class WireError(InputError):
    """A message that no encoder of ours has written, or not for this model."""
