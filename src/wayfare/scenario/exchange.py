"""The scenario sections for contacts, for FedAsync (`mixing`) and for FedMobile (`relays`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wayfare.scenario.section import NonNegative, Positive, Section

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Contacts(Section):
    """Which contacts count, the length of an exchange, and how well devices predict the length of a contact."""

    # Drop shorter contacts, both with the server and between devices.
    min_contact_s: NonNegative = 0.0
    # Split longer contacts into exchanges of this length; the last one is shorter. Each exchange then counts as a
    # contact. None: every contact is one exchange.
    max_exchange_s: Positive | None = None

    # A device predicts the length of a contact with this relative error: it sees the true length times a log-normal
    # factor of mean 1 and this standard deviation. An upload that is longer than the contact is lost. 0: no error.
    forecast_error: Annotated[float, Field(ge=0, le=10)] = 0.0


class Mixing(Section):
    """FedAsync: w <- (1 - a s(theta)) w + a s(theta) w_n, with theta the staleness in rounds.

    The defaults are those of its authors' experiments.
    """

    weight: Share = 0.6  # a
    # s = (theta + 1)^-exponent
    polynomial_exponent: NonNegative = 0.5
    # s = 1 up to this many rounds, then 1 / (slope (theta - rounds) + 1)
    hinge_rounds: Count = 4
    # How fast the weight falls beyond `hinge_rounds`.
    hinge_slope: NonNegative = 10.0


class Relays(Section):
    """FedMobile: devices relay updates and models for each other between their contacts with the server.

    An interval of a device runs from one contact with the server to the next. Relays are allowed in a window within
    the interval: it opens `..._after_rounds` after the start and stays open for `..._window_rounds`.
    """

    # Rounds from the start of an interval until a device may give its update to a relay.
    upload_after_rounds: Count = 0
    # Length of this window.
    upload_window_rounds: Count = 20
    # Maximum number of relays that take a device's update in an interval.
    uploads_per_interval: Count = 1
    # Rounds from the start of an interval until a device may take a newer model from another device.
    download_after_rounds: Count = 0
    # Length of this window.
    download_window_rounds: Count = 20
    # Maximum number of newer models that a device takes in an interval.
    downloads_per_interval: Count = 1
    # `free`: transfers between devices use full power and do not count against the budget, which the paper defines
    # only for uploads to the server. `budget`: they cost energy like an upload, under the scheme's energy rule.
    energy: Literal["free", "budget"] = "free"
    # `fitting`: devices skip contacts that are too short for a transfer. `all`: they always try, and a transfer is lost
    # if the contact ends too early.
    attempts: Literal["fitting", "all"] = "fitting"
    # `merged`: a relay adds carried updates to its own and sends one upload. `separate`: after its own upload, it sends
    # each carried update separately while time and energy last.
    delivery: Literal["merged", "separate"] = "merged"
    # Maximum number of updates that a relay carries; each is as large as a model.
    parcels_per_relay: Annotated[int, Field(ge=1)] = 4
