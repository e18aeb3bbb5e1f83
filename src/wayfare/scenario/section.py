"""The base class and number types of all scenario sections."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A section of a scenario: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


def _not_tiny(value: float) -> float:
    if value < SMALLEST:
        raise ValueError(f"must be at least {SMALLEST:g}")
    return value


# Beyond these bounds, sums overflow or loops do not end, in every unit of a scenario.
SMALLEST, LARGEST = 1e-9, 1e15
Positive: TypeAlias = Annotated[float, Field(gt=0, le=LARGEST), AfterValidator(_not_tiny)]
NonNegative: TypeAlias = Annotated[float, Field(ge=0, le=LARGEST)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=10_000_000)]
