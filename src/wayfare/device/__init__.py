"""A device and its contacts (Algorithm 1, "on each mobile device"), as pure functions of a frozen state."""

from wayfare.device.checks import Checks
from wayfare.device.contact import (
    Offer,
    Terms,
    Transmission,
    coded_pieces,
    contact,
    contact_in_steps,
    decide,
    is_whole,
    make_offer,
    payload,
    terms_of,
    transmit,
)
from wayfare.device.state import (
    DeviceState,
    begin_device,
    delivers_first,
    first_trained,
    hand_over,
    receive,
    take_model,
    undelivered,
)
from wayfare.methods.account import Meeting, pay

__all__ = [
    "Checks",
    "DeviceState",
    "Meeting",
    "Offer",
    "Terms",
    "Transmission",
    "begin_device",
    "coded_pieces",
    "contact",
    "contact_in_steps",
    "decide",
    "delivers_first",
    "first_trained",
    "hand_over",
    "is_whole",
    "make_offer",
    "pay",
    "payload",
    "receive",
    "take_model",
    "terms_of",
    "transmit",
    "undelivered",
]
