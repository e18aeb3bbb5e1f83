"""Settings of a scenario that a method would ignore or misread."""

from __future__ import annotations

from wayfare.errors import ScenarioError
from wayfare.methods.parts import Method
from wayfare.methods.servers import Optimise
from wayfare.scenario import Scenario

# Networks that class statistics can start.
_ONE_LAYER = ("auto", "linear")


def reject_incompatible(method: Method, scenario: Scenario) -> None:
    """Reject server rules that ignore the scenario's server settings or do not work with its local loss.

    Reject networks that the method would replace.
    """
    server, own = scenario.server, method.server
    collected = method.local.collects()
    # Statistics leave nothing to optimise, and their server rule has a step for what is trained after them.
    is_used = isinstance(own, Optimise) or (
        collected is not None and (not collected.trains or server.optimizer == "sgd")
    )
    if not server.is_plain and not is_used:
        field, value = ("step", server.step) if server.optimizer == "sgd" else ("optimizer", server.optimizer)
        what = "mixes models and has no updates to optimise" if own.takes == "models" else "has its own server rule"
        rule = f"{method.name} {what}; drop the scheme, or use sgd with a step of 1"
        raise ScenarioError(f"server.{field}", value, rule)
    network = scenario.learning.network
    if collected is not None and collected.trains and network not in _ONE_LAYER:
        rule = f"{method.name} starts from class statistics, which give one layer; must be {' or '.join(_ONE_LAYER)}"
        raise ScenarioError("learning.network", network, rule)
    if server.weighting == "samples":
        _reject_unweightable(method)
    if own.uses_reach and scenario.learning.local_loss == "prox":
        rule = f"{method.name} derives gradients from updates; choose another loss"
        raise ScenarioError("learning.local_loss", scenario.learning.local_loss, rule)


def _reject_unweightable(method: Method) -> None:
    """Reject methods without single updates to weight."""
    if method.server.takes == "models":
        why = "mixes models and has no updates to weight"
    elif method.privacy is not None:
        why = "would reveal how many samples a private device holds"
    elif method.peers is not None:
        why = "relays sums of several devices' updates and has no single updates to weight"
    elif method.local.corrects:
        why = "corrects gradients with equal weights"
    elif (collected := method.local.collects()) is not None and collected.trains:
        why = "adds up statistics and updates, with one weight for both"
    else:
        return
    raise ScenarioError("server.weighting", "samples", f"{method.name} {why}; must be equal")
