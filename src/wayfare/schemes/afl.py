"""AFL: Algorithm 1 without sparsification, all or nothing in every contact."""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.schemes.dense import Dense


@dataclass(frozen=True)
class Afl(Dense):
    """AFL (Avdiukhin and Kasiviswanathan 2021): asynchronous with dense uploads, each all or nothing."""

    name: str = "afl"
