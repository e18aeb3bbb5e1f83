"""What the sections of a scenario have in common."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of a scenario: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


Positive: TypeAlias = Annotated[float, Field(gt=0)]
NonNegative: TypeAlias = Annotated[float, Field(ge=0)]
