"""Methods and their six parts.

Design decisions:

- A method is six parts, and a part is a value. Its state is a tree of tensors and numbers in the device or the server,
  which checkpoints, workers, the ledger and paranoid checks carry without knowing its meaning. Parts declare their
  needs (`uses_forecast`, `needs_position`, `takes`, `hands_down`, `conserves`).
- The energy rule is part of a scheme's name, because it matters more than the scheme. So is a reading: where the paper
  is ambiguous and the answer changes accuracy, each reading has a name (`afl:fitting`, `fedmobile:billed`).
- `paced` is causal. It spreads the remaining budget over the contact time that the device expects from its own past.
  Without learning, it keeps as many entries as a constant power that knows the future (k/s .245 against .246).
- A scheme sees an update through a function. `Encounter.profile` works only when called, so other schemes pay nothing
  and schemes stay free of PyTorch.
- A server optimiser sees one vector per round, the mean of the arrivals. Mass is balanced up to that vector, and
  normalisation statistics bypass the optimiser.
- A scheme in a file is imported, not executed. Its folder joins the end of the search path, which worker processes
  inherit.
"""

from wayfare.methods.collection import Collection
from wayfare.methods.composition import Composition, Recipe, compose, is_ours, make_method, split_names
from wayfare.methods.encounter import NOTHING, SKIPPED, Encounter, EnergyRule, Upload
from wayfare.methods.from_file import reject_edited
from wayfare.methods.parts import (
    NO_STATE,
    UNKNOWN_REACH,
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
    "UNKNOWN_REACH",
    "Arrival",
    "Collection",
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
