"""How training samples are divided among the devices."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from wayfare.scenario.section import Positive, Section


class DirichletPartition(Section):
    """As in the paper (Section VI): class shares of a device ~ Gamma(rho * share of the class in the whole set)."""

    kind: Literal["dirichlet"] = "dirichlet"
    # rho: a smaller value means fewer classes per device. With ten classes, 0.1 is nearly one class per device.
    concentration: Positive = 1.0
    # `shares`: every device gets exactly its drawn class shares, so samples of a popular class go to several devices.
    # `once`: every sample goes to one device, and later devices choose among the classes that still have samples.
    dealing: Literal["shares", "once"] = "shares"


class IidPartition(Section):
    """Every device gets a random share of all samples."""

    kind: Literal["iid"] = "iid"


class ShardPartition(Section):
    """Pathological (McMahan et al., 2017): sort samples by class, cut them into shards, give each device a few."""

    kind: Literal["shards"] = "shards"
    # Number of shards per device.
    shards_per_device: Annotated[int, Field(ge=1)] = 2


class GroupPartition(Section):
    """Every device gets samples of one group only: one class of images, or one city of scenes."""

    kind: Literal["by-group"] = "by-group"


class SharedPartition(Section):
    """Several devices hold the same sample, so that a fleet may have more devices than there are training samples.

    Class shares are drawn as in `dirichlet`. Devices take the samples of a class in turn, from the top once all are
    taken.
    """

    kind: Literal["shared"] = "shared"
    # Number of samples per device, for any size of the fleet.
    samples_per_device: Annotated[int, Field(ge=1)] = 500
    # rho: a smaller value means fewer classes per device, as in `dirichlet`.
    concentration: Positive = 1.0


class OwnPartition(Section):
    """The task assigns samples to devices, or to the vehicle of a trace that recorded them."""

    kind: Literal["own"] = "own"


Dealt: TypeAlias = DirichletPartition | IidPartition | ShardPartition | GroupPartition | SharedPartition
AnyPartition: TypeAlias = Dealt | OwnPartition
Partition: TypeAlias = Annotated[AnyPartition, Field(discriminator="kind")]
