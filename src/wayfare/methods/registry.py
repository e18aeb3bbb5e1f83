"""Methods by name: a table from name to composition, and names that users compose themselves.

A name may carry choices, in any order: an energy rule (``afl-spar:paced``), ``:fitting`` for methods that send whole
models (``afl:fitting:paced``), how FedAsync's weights fall with age (``fedasync:hinge``), who pays for FedMobile's
relays (``fedmobile:billed``), how far MADS-RD goes (``mads-rd:index``). What `composition` reads may stand
wherever a name may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeAlias, cast, get_args

from wayfare.errors import ScenarioError
from wayfare.methods.encounter import EnergyRule
from wayfare.methods.parts import Compressor, LocalRule, MemoryRule, Method, Part, PeerRule, ServerRule, UploadRule
from wayfare.methods.servers import Add, Mix, Optimise, StalenessFunction
from wayfare.methods.uploads import Fitting, Mads, MadsRd, Step, Whole
from wayfare.scenario import Scenario

RULES: tuple[EnergyRule, ...] = ("greedy", "paced", "unlimited")
"""The energy rules that can be chosen; the first is the default."""
GROUP = "wayfare.schemes"
"""Entry points of this group are methods that other packages offer."""

# What a name may carry, each choice from one group, in the order in which a name has them; the first of a group is the
# default and is not written out.
Choices: TypeAlias = tuple[tuple[str, ...], ...]
_FITTING = ("", "fitting")
_WHOLE: Choices = (_FITTING, RULES)
_BILLED: dict[str, str] = {"energy": "budget", "attempts": "all", "delivery": "separate"}
"""The reading of `:billed`: a relay is an upload like any other. Every attempt is made and paid for."""


@dataclass(frozen=True, slots=True)
class Row:
    """A method of the table: one line about it, what its name may carry, and its parts."""

    about: str
    choices: Choices
    parts: Callable[..., tuple[Part, ...]]


def _whole(fitting: str, rule: str) -> Whole:
    return Whole(cast(EnergyRule, rule), bool(fitting))


def _fitting(rule: str) -> Fitting:
    return Fitting(cast(EnergyRule, rule))


def _fedasync(scenario: Scenario, staleness: str, fitting: str, rule: str) -> tuple[Part, ...]:
    return _whole(fitting, rule), Mix(cast(StalenessFunction, staleness), scenario.mixing)


def _fedmobile(scenario: Scenario, billed: str, fitting: str, rule: str) -> tuple[Part, ...]:
    relays = scenario.relays.model_copy(update=_BILLED) if billed else scenario.relays
    return _whole(fitting, rule), PeerRule(relays)


def _published(base: str, *names: str) -> Callable[..., tuple[Part, ...]]:
    """The parts of another row, with some of `PARTS` in the place of its own."""

    def parts(scenario: Scenario, *picked: str) -> tuple[Part, ...]:
        first = picked or tuple(group[0] for group in TABLE[base].choices)
        return (*TABLE[base].parts(scenario, *first), *(part_class(name)() for name in names))

    return parts


TABLE: Mapping[str, Row] = {
    "mads": Row(
        "MADS: power by drift plus penalty on an energy queue, and as many entries as that power gets through.",
        (),
        lambda scenario: (Mads(scenario.control),),
    ),
    "mads-rd": Row(
        "MADS-RD: MADS by what each bit of the device's own update captures; entries and value widths are coded.",
        (get_args(Step),),
        lambda scenario, step: (MadsRd(scenario.control, step=step),),
    ),
    "optimal": Row(
        "Optimal: full power in every contact whatever it costs, an ideal to measure against.",
        (),
        lambda scenario: (Fitting("unlimited"),),
    ),
    "afl-spar": Row(
        "AFL-Spar: asynchronous with top-k and error feedback, without a controller.",
        (RULES,),
        lambda scenario, rule: (_fitting(rule),),
    ),
    "afl": Row(
        "AFL (Avdiukhin and Kasiviswanathan 2021): asynchronous with dense uploads, each all or nothing.",
        _WHOLE,
        lambda scenario, fitting, rule: (_whole(fitting, rule),),
    ),
    "fedmobile": Row(
        "FedMobile (Bian and Xu 2022): AFL, and devices that meet carry updates and newer models for each other.",
        (("", "billed"), *_WHOLE),
        _fedmobile,
    ),
    "fedasync": Row(
        "FedAsync (Xie, Koyejo and Gupta 2019): whole models, mixed by the server with a weight that falls with age.",
        (get_args(StalenessFunction), *_WHOLE),
        _fedasync,
    ),
    "sfl-spar": Row(
        "SFL-Spar: trains only in rounds with a contact, uploads with top-k and error feedback.",
        (RULES,),
        lambda scenario, rule: (_fitting(rule), LocalRule(trains_between_contacts=False)),
    ),
    "fedbuff": Row(
        "FedBuff (Nguyen et al. 2022): AFL, and the server steps along the mean of every full buffer of updates.",
        _WHOLE,
        _published("afl", "buffer"),
    ),
    "staleness-weighted": Row(
        "Staleness-weighted updates (Zhang et al. 2016): AFL, and the older an update, the less of it is added.",
        _WHOLE,
        _published("afl", "staleness-weights"),
    ),
    "ca2fl": Row(
        "CA2FL (Wang, Cao et al. 2024): FedBuff, calibrated by the last update of every device.",
        _WHOLE,
        _published("afl", "calibrated-buffer"),
    ),
    "fadas": Row(
        "FADAS (Wang, Wang et al. 2024): FedBuff with an AMSGrad step, which shrinks after long delays.",
        _WHOLE,
        _published("afl", "adaptive-buffer"),
    ),
    "scaffold": Row(
        "SCAFFOLD (Karimireddy et al. 2020): AFL, and control variates correct the gradients of local steps.",
        _WHOLE,
        _published("afl", "control-variates", "corrected"),
    ),
    "feddyn": Row(
        "FedDyn (Acar et al. 2021): AFL, and a dynamic regulariser aligns each device with the fleet.",
        _WHOLE,
        _published("afl", "dynamic-server", "dynamic-regulariser"),
    ),
    "ef21-sgdm": Row(
        "EF21-SGDM (Fatkhullin, Tyurin and Richtarik 2023): the server keeps an estimate of every device's update.",
        (RULES,),
        _published("afl-spar", "ef21", "estimates"),
    ),
    "dgc": Row(
        "DGC (Lin et al. 2018): AFL-Spar with momentum correction and momentum factor masking.",
        (RULES,),
        _published("afl-spar", "momentum-correction"),
    ),
    "random-k": Row(
        "Random-k (Stich, Cordonnier and Jaggi 2018): AFL-Spar with entries drawn at random, which need no indices.",
        (RULES,),
        _published("afl-spar", "random-k"),
    ),
    "threshold": Row(
        "Hard threshold (Sahu et al. 2021): AFL-Spar with the entries far above the root mean square.",
        (RULES,),
        _published("afl-spar", "threshold"),
    ),
    "qsgd": Row(
        "QSGD (Alistarh et al. 2017): AFL with values rounded at random to a few levels, and no memory.",
        _WHOLE,
        _published("afl", "qsgd", "forgetting"),
    ),
    "mobility-aware": Row(
        "Mobility-aware (after Ballotta et al. 2025): AFL-Spar in the best contacts that the energy pays for.",
        (),
        _published("afl-spar", "mobility-aware"),
    ),
}

# Parts by name, imported when they are first asked for. A part takes the place of the one of its kind.
PARTS: Mapping[str, str] = {
    "mads-power": "uploads:Mads",
    "as-many-as-fit": "uploads:Fitting",
    "whole": "uploads:Whole",
    "top-k": "compressors:TopK",
    "error-feedback": "memories:ErrorFeedback",
    "forgetting": "memories:Forgetting",
    "decay": "memories:Decay",
    "sgd": "parts:LocalRule",
    "add": "servers:Add",
    "mix": "servers:Mix",
    "relays": "parts:PeerRule",
    "buffer": "published.fedbuff:Buffer",
    "staleness-weights": "published.staleness_weighted:StalenessWeights",
    "calibrated-buffer": "published.ca2fl:CalibratedBuffer",
    "adaptive-buffer": "published.fadas:AdaptiveBuffer",
    "control-variates": "published.scaffold:ControlVariates",
    "corrected": "published.scaffold:Corrected",
    "dynamic-server": "published.feddyn:DynamicServer",
    "dynamic-regulariser": "published.feddyn:DynamicRegulariser",
    "ef21": "published.ef21_sgdm:Ef21",
    "estimates": "published.ef21_sgdm:Estimates",
    "momentum-correction": "published.dgc:MomentumCorrection",
    "random-k": "published.random_k:RandomK",
    "threshold": "published.threshold:Threshold",
    "qsgd": "published.qsgd:Qsgd",
    "mobility-aware": "published.mobility_aware:MobilityAware",
}
KINDS: Mapping[str, type[Part]] = {
    "upload": UploadRule,
    "compressor": Compressor,
    "memory": MemoryRule,
    "local": LocalRule,
    "server": ServerRule,
    "peers": PeerRule,
}


def part_class(name: str) -> type[Part]:
    module, _, title = PARTS[name].partition(":")
    return cast(type[Part], getattr(import_module(f"wayfare.methods.{module}"), title))


def kind_of(part: Part) -> str:
    return next(kind for kind, base in KINDS.items() if isinstance(part, base))


def named_parts(text: str, scenario: Scenario) -> tuple[str, tuple[Part, ...]]:
    """The parts of a name with its choices, and the name as tables write it."""
    base, *chosen = text.split(":")
    if base in TABLE:
        groups = TABLE[base].choices
        picked = _pick(text, chosen, groups)
        written = [choice for choice, group in zip(picked, groups, strict=True) if choice != group[0]]
        return ":".join([base, *written]), TABLE[base].parts(scenario, *picked)
    offered = _offered()
    if text in offered:
        made = offered[text]()
        if isinstance(made, Method):
            return text, tuple(made.parts.values())
        return text, (checked_part(made, text),)
    known = ", ".join([*TABLE, *sorted(offered)])
    raise ScenarioError("schemes", text, f"unknown; known are {known}; one of your own is given as FILE.py:CLASS")


def checked_part(part: object, text: str) -> Part:
    if not isinstance(part, Part):
        bases = ", ".join(base.__name__ for base in KINDS.values())
        raise ScenarioError("schemes", text, f"{type(part).__name__} is no part of a method; subclass one of {bases}")
    return part


def assemble(name: str, parts: tuple[Part, ...], scenario: Scenario, text: str) -> Method:
    """A method of its parts, the later ones in the place of earlier ones, and Algorithm 1 for the rest."""
    from wayfare.methods.compressors import TopK
    from wayfare.methods.memories import ErrorFeedback

    chosen: dict[str, Any] = {"compressor": TopK(), "memory": ErrorFeedback()}
    chosen |= {kind_of(part): part for part in parts}
    if "upload" not in chosen:
        raise ScenarioError("schemes", text, "a method needs an upload rule; name one, or a method to begin with")
    if "server" not in chosen:
        chosen["server"] = Add() if scenario.server.is_plain else Optimise(scenario.server)
    method = Method(name=name, text=text, **chosen)
    _refuse_unfit(method, scenario)
    return method


def _refuse_unfit(method: Method, scenario: Scenario) -> None:
    """Server rules that leave the scenario's nothing to do, or that its local loss would mislead."""
    server, own = scenario.server, method.server
    if not server.is_plain and not isinstance(own, Optimise):
        field, value = ("step", server.step) if server.optimizer == "sgd" else ("optimizer", server.optimizer)
        what = "mixes models, and has no updates to optimise" if own.takes == "models" else "has a rule of its own"
        rule = f"{method.name} {what}; leave it out, or keep sgd with a step of 1"
        raise ScenarioError(f"server.{field}", value, rule)
    if server.weighting == "samples":
        _refuse_unweighable(method)
    if own.uses_reach and scenario.learning.local_loss == "prox":
        rule = f"{method.name} derives gradients from updates; take another loss"
        raise ScenarioError("learning.local_loss", scenario.learning.local_loss, rule)


def _refuse_unweighable(method: Method) -> None:
    """Weights are those of updates, each of one device, that are only added up."""
    if method.server.takes == "models":
        why = "mixes models, and has no updates to weigh"
    elif method.peers is not None:
        why = "has no updates of single devices to weigh: relays add up updates of several devices"
    elif method.local.corrects:
        why = "corrects gradients by equal weights"
    else:
        return
    raise ScenarioError("server.weighting", "samples", f"{method.name} {why}; must be equal")


def _pick(text: str, chosen: list[str], groups: Choices) -> list[str]:
    """One choice of each group: the one that a name carries, or the first."""
    picked = [group[0] for group in groups]
    taken: set[int] = set()
    for choice in chosen:
        place = next((number for number, group in enumerate(groups) if choice and choice in group), None)
        if place is None or place in taken:
            rule = "; ".join(f"one of {_listed(group)}" if len(group) > 2 else _listed(group) for group in groups)
            raise ScenarioError("schemes", text, f"takes {rule}" if groups else "takes nothing after its name")
        taken.add(place)
        picked[place] = choice
    return picked


def _listed(group: tuple[str, ...]) -> str:
    return ", ".join(f":{choice}" for choice in group if choice)


def choices_of(name: str) -> list[list[str]]:
    """What may follow a method's name: one choice of each group."""
    groups = TABLE[name].choices if name in TABLE else ()
    return [[choice for choice in group if choice] for group in groups]


def descriptions() -> dict[str, str]:
    offered = {name: (made.__doc__ or "").strip().split("\n")[0] for name, made in _offered().items()}
    return {name: row.about for name, row in TABLE.items()} | offered


def part_descriptions() -> dict[str, tuple[str, str]]:
    """The kind of every part of the table, and one line about it."""
    found = {}
    for name in PARTS:
        part = part_class(name)
        kind = next(kind for kind, base in KINDS.items() if issubclass(part, base))
        found[name] = kind, (part.__doc__ or "").strip().split("\n")[0]
    return found


def _offered() -> dict[str, Callable[[], object]]:
    return {entry.name: entry.load() for entry in entry_points(group=GROUP) if entry.name not in TABLE}
