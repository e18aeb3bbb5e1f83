"""Which contacts count and how they are foreseen; how schemes other than the paper's exchange models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wayfare.scenario.section import NonNegative, Positive, Section

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Contacts(Section):
    """Which contacts count, what an exchange is, and what devices know of a contact when it begins."""

    # Shorter contacts are dropped, with the server and between devices.
    min_contact_s: NonNegative = 0.0
    # A longer contact is split into exchanges of this length, the remainder last; each then counts as a contact of its
    # own. None: a contact is one exchange, however long it lasts.
    max_exchange_s: Positive | None = None

    # How long they think it will last: its true length times a log-normal factor of mean 1 with this relative
    # deviation. 0: they know. Who plans an upload longer than the contact loses all of it.
    forecast_error: Annotated[float, Field(ge=0, le=10)] = 0.0


class Mixing(Section):
    """FedAsync: w <- (1 - a s(theta)) w + a s(theta) w_n, theta the rounds since the device received its model.

    The values are those of its authors' experiments.
    """

    weight: Share = 0.6  # a
    # s = (theta + 1)^-exponent
    polynomial_exponent: NonNegative = 0.5
    # s = 1 up to so many rounds, then 1 / (slope (theta - rounds) + 1)
    hinge_rounds: Count = 4
    # How fast the weight falls beyond `hinge_rounds`.
    hinge_slope: NonNegative = 10.0


class Relays(Section):
    """FedMobile: what devices carry for each other between their contacts with the server.

    An interval of a device runs from one contact with the server to its next. Relays of it are looked for in a window
    of so many rounds, which opens so many rounds after the interval began.
    """

    # When the window for handing over an update opens.
    upload_after_rounds: Count = 0
    # How long that window stays open.
    upload_window_rounds: Count = 20
    # How often a device may hand over its update in an interval.
    uploads_per_interval: Count = 1
    # When the window for taking a newer model from another device opens.
    download_after_rounds: Count = 0
    # How long that window stays open.
    download_window_rounds: Count = 20
    # How often a device may take a newer model in an interval.
    downloads_per_interval: Count = 1
    # `free`: transfers between devices use full power and no energy of the budget, which the paper defines for the
    # upload to the server only; `budget`: they are paid for like an upload, under the energy rule of the scheme.
    energy: Literal["free", "budget"] = "free"
    # `fitting`: a device knows beforehand which contacts with others are too short, and skips them; `all`: it sends
    # whenever it may, and a contact that ends too soon is lost.
    attempts: Literal["fitting", "all"] = "fitting"
    # `merged`: a relay adds what it carries to its own update, and one upload delivers both; `separate`: after its own
    # upload it sends what it carries, each by itself, as far as time and energy reach.
    delivery: Literal["merged", "separate"] = "merged"
    # Updates of others that a device keeps at a time, each as large as a model.
    parcels_per_relay: Annotated[int, Field(ge=1)] = 4
