"""Methods and their six parts."""

from wayfare.methods.composition import Composition, Recipe, compose, is_ours, make_method, split_names
from wayfare.methods.encounter import NOTHING, SKIPPED, Encounter, EnergyRule, Upload
from wayfare.methods.from_file import reject_edited
from wayfare.methods.parts import (
    NO_STATE,
    Arrival,
    Compressor,
    Draw,
    LocalRule,
    MemoryRule,
    Method,
    Part,
    PeerRule,
    ServerRule,
    ServerTerms,
    State,
    UploadRule,
)
from wayfare.methods.registry import choices_of, descriptions, part_descriptions, scheme_label
from wayfare.methods.uploads import power_and_allowance, send_dense, send_top_k

__all__ = [
    "NOTHING",
    "NO_STATE",
    "SKIPPED",
    "Arrival",
    "Composition",
    "Compressor",
    "Draw",
    "Encounter",
    "EnergyRule",
    "LocalRule",
    "MemoryRule",
    "Method",
    "Part",
    "PeerRule",
    "Recipe",
    "ServerRule",
    "ServerTerms",
    "State",
    "Upload",
    "UploadRule",
    "choices_of",
    "compose",
    "descriptions",
    "is_ours",
    "make_method",
    "part_descriptions",
    "power_and_allowance",
    "reject_edited",
    "scheme_label",
    "send_dense",
    "send_top_k",
    "split_names",
]
