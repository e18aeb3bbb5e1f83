"""Who holds which training samples: the ways to deal them out."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from wayfare.scenario.section import Positive, Section


class DirichletPartition(Section):
    """As in the paper (Section VI): class shares of a device ~ Gamma(rho * share of the class in the whole set)."""

    kind: Literal["dirichlet"] = "dirichlet"
    # rho: the smaller, the fewer classes a device holds. On ten classes 0.1 is nearly one class a device.
    concentration: Positive = 1.0
    # shares: every device has the shares drawn for it, so samples of a class that many ask for are dealt again, and the
    # fleet as a whole may hold more of one class than of another. once: the set is divided, every sample goes to one
    # device, and a device's shares are those drawn among the classes of which samples are left.
    dealing: Literal["shares", "once"] = "shares"


class IidPartition(Section):
    """Every device a random share of everything."""

    kind: Literal["iid"] = "iid"


class ShardPartition(Section):
    """Pathological (McMahan et al., 2017): samples sorted by class, cut into equal shards, a few shards a device."""

    kind: Literal["shards"] = "shards"
    # How many shards each device gets.
    shards_per_device: Annotated[int, Field(ge=1)] = 2


class GroupPartition(Section):
    """Every device samples of one group only: one class of images, one city of scenes."""

    kind: Literal["by-group"] = "by-group"


class OwnPartition(Section):
    """Samples are where the task says: with a device, or with the vehicle of a trace that recorded them."""

    kind: Literal["own"] = "own"


Dealt: TypeAlias = DirichletPartition | IidPartition | ShardPartition | GroupPartition
AnyPartition: TypeAlias = Dealt | OwnPartition
Partition: TypeAlias = Annotated[AnyPartition, Field(discriminator="kind")]
