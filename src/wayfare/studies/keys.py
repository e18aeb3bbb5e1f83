"""The key of a run: a hash of everything that its results depend on."""

from __future__ import annotations

import hashlib
import json
from functools import reduce
from typing import Any

from wayfare.identity import identity_of, without_parts
from wayfare.learning.tasks import Task
from wayfare.methods import Method
from wayfare.scenario import Scenario
from wayfare.studies.single import Execution
from wayfare.version import ALGORITHM

_CHARACTERS = 16


def run_key(scenario: Scenario, scheme: Method, seed: int, execution: Execution, task: Task | None = None) -> str:
    """Scenario, scheme with its parameters, seed, the version of the algorithm, and the precision of its numbers.

    Scheme, task, backbone and files count by `identity_of`: by code and content, not by path. Settings of the
    controller, of mixing and of relays count only for the schemes that use them, as values of their parts. The name of
    a scenario and its list of schemes do not count, nor do engine and device, which affect only speed and rounding.
    """
    identity = identity_of(scenario, scheme, task)
    content = without_parts(scenario.model_dump(mode="json", exclude={"name", "schemes"}))
    for field, found in identity["files"].items():
        *sections, last = field.split(".")
        reduce(dict.__getitem__, sections, content)[last] = found
    everything: dict[str, Any] = {
        "algorithm": ALGORITHM,
        "scenario": content,
        "scheme": {"name": scheme.name, **identity["scheme"]},
        "seed": seed,
        "precision": execution.precision,
        "fast": execution.fast,
        **{name: identity[name] for name in ("task", "backbone") if name in identity},
    }
    text = json.dumps(everything, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_CHARACTERS]
