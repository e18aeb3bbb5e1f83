"""Named methods: a table from name to composition.

A name may carry choices in any order: an energy rule (``afl-spar:paced``), ``:fitting`` for methods that send whole
models (``afl:fitting:paced``), FedAsync's staleness function (``fedasync:hinge``), billed relays of FedMobile
(``fedmobile:billed``), the step of MADS-RD (``mads-rd:index``). `composition` parses everything beyond these
names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeAlias, cast, get_args

from wayfare.errors import ScenarioError
from wayfare.methods.collection import CLASSIFIERS, PILOT, Classifier
from wayfare.methods.compatibility import reject_incompatible
from wayfare.methods.encounter import EnergyRule
from wayfare.methods.guard import Guard
from wayfare.methods.mads_rd import MadsRd, Step
from wayfare.methods.parts import Compressor, LocalRule, MemoryRule, Method, Part, PeerRule, ServerRule, UploadRule
from wayfare.methods.privacy import Private
from wayfare.methods.servers import Add, Mix, Optimise, StalenessFunction
from wayfare.methods.statistics import AddSums, ClassStatistics, SumsFirst
from wayfare.methods.uploads import Fitting, Mads, Whole
from wayfare.scenario import Scenario

RULES: tuple[EnergyRule, ...] = ("greedy", "paced", "unlimited")
"""The energy rules to choose from; the first is the default."""
GROUP = "wayfare.schemes"
"""The entry-point group in which other packages register methods."""

# The choices that a name may carry, one from each group, in canonical order. The first of a group is the default and
# is left out of the name.
Choices: TypeAlias = tuple[tuple[str, ...], ...]
_FITTING = ("", "fitting")
_WHOLE: Choices = (_FITTING, RULES)
# Statistics are few, and a joule carries most of them at low power.
_PACED_FIRST = ("paced", "greedy", "unlimited")
_BILLED: dict[str, str] = {"energy": "budget", "attempts": "all", "delivery": "separate"}
"""`:billed` treats a relay like any upload: devices make and pay for every attempt."""


@dataclass(frozen=True, slots=True)
class Row:
    """A method of the table: its label, its description, the choices of its name, and its parts."""

    label: str
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


def _statistics(scenario: Scenario, classifier: str, pilot: str, rule: str) -> tuple[Part, ...]:
    collected = ClassStatistics(classifier=cast(Classifier, classifier), **(PILOT if pilot else {}))
    return SumsFirst(cast(EnergyRule, rule)), collected, AddSums()


def _mads_rd(scenario: Scenario, step: str, begin: str) -> tuple[Part, ...]:
    rule = MadsRd(scenario.control, step=cast(Step, step))
    if not begin:
        return (rule,)
    pilot = begin == "from-pilot"
    server = AddSums(scenario.server.step_size) if scenario.server.optimizer == "sgd" else AddSums()
    collected = ClassStatistics(classifier="lda", trains=True, **(PILOT if pilot else {}))
    return SumsFirst(rule.energy_rule, then=rule), collected, server


def _published(base: str, *names: str) -> Callable[..., tuple[Part, ...]]:
    """The parts of another row, some replaced by those named in `PARTS`."""

    def parts(scenario: Scenario, *picked: str) -> tuple[Part, ...]:
        first = picked or tuple(group[0] for group in TABLE[base].choices)
        return (*TABLE[base].parts(scenario, *first), *(part_class(name)() for name in names))

    return parts


TABLE: Mapping[str, Row] = {
    "mads": Row(
        "MADS",
        "MADS: power by drift plus penalty on an energy queue, then as many entries as fit at that power.",
        (),
        lambda scenario: (Mads(scenario.control),),
    ),
    "mads-rd": Row(
        "MADS-RD",
        "MADS-RD: MADS with the rate-distortion curve of the device's own update; indices and values are coded.",
        (get_args(Step), ("", "from-statistics", "from-pilot")),
        _mads_rd,
    ),
    "optimal": Row(
        "Optimal",
        "Optimal: full power in every contact at any cost; an ideal reference.",
        (),
        lambda scenario: (Fitting("unlimited"),),
    ),
    "afl-spar": Row(
        "AFL-Spar",
        "AFL-Spar: asynchronous uploads with top-k and error feedback, without a controller.",
        (RULES,),
        lambda scenario, rule: (_fitting(rule),),
    ),
    "afl": Row(
        "AFL",
        "AFL (Avdiukhin and Kasiviswanathan 2021): asynchronous dense uploads, all or nothing.",
        _WHOLE,
        lambda scenario, fitting, rule: (_whole(fitting, rule),),
    ),
    "fedmobile": Row(
        "FedMobile",
        "FedMobile (Bian and Xu 2022): AFL; devices in contact relay updates and newer models for each other.",
        (("", "billed"), *_WHOLE),
        _fedmobile,
    ),
    "fedasync": Row(
        "FedAsync",
        "FedAsync (Xie, Koyejo and Gupta 2019): the server mixes whole models, with weights that fall with staleness.",
        (get_args(StalenessFunction), *_WHOLE),
        _fedasync,
    ),
    "sfl-spar": Row(
        "SFL-Spar",
        "SFL-Spar: devices train only in rounds with a contact; uploads with top-k and error feedback.",
        (RULES,),
        lambda scenario, rule: (_fitting(rule), LocalRule(trains_between_contacts=False)),
    ),
    "statistics": Row(
        "Statistics",
        "Class statistics instead of training: sums that the server turns into a classifier; inputs must be vectors.",
        (CLASSIFIERS, ("", "pilot"), _PACED_FIRST),
        _statistics,
    ),
    "fedbuff": Row(
        "FedBuff",
        "FedBuff (Nguyen et al. 2022): AFL; the server steps along the mean of every full buffer of updates.",
        _WHOLE,
        _published("afl", "buffer"),
    ),
    "staleness-weighted": Row(
        "Staleness-weighted",
        "Staleness-weighted updates (Zhang et al. 2016): AFL with weights that fall with staleness.",
        _WHOLE,
        _published("afl", "staleness-weights"),
    ),
    "ca2fl": Row(
        "CA2FL",
        "CA2FL (Wang, Cao et al. 2024): FedBuff, calibrated by the last update of every device.",
        _WHOLE,
        _published("afl", "calibrated-buffer"),
    ),
    "fadas": Row(
        "FADAS",
        "FADAS (Wang, Wang et al. 2024): FedBuff with an AMSGrad step, which shrinks after long delays.",
        _WHOLE,
        _published("afl", "adaptive-buffer"),
    ),
    "scaffold": Row(
        "SCAFFOLD",
        "SCAFFOLD (Karimireddy et al. 2020): AFL; control variates correct the gradients of local steps.",
        _WHOLE,
        _published("afl", "control-variates", "corrected"),
    ),
    "feddyn": Row(
        "FedDyn",
        "FedDyn (Acar et al. 2021): AFL; a dynamic regulariser aligns each device with the fleet.",
        _WHOLE,
        _published("afl", "dynamic-server", "dynamic-regulariser"),
    ),
    "ef21-sgdm": Row(
        "EF21-SGDM",
        "EF21-SGDM (Fatkhullin, Tyurin and Richtarik 2023): the server keeps an estimate of every device's update.",
        (RULES,),
        _published("afl-spar", "ef21", "estimates"),
    ),
    "dgc": Row(
        "DGC",
        "DGC (Lin et al. 2018): AFL-Spar with momentum correction and momentum factor masking.",
        (RULES,),
        _published("afl-spar", "momentum-correction"),
    ),
    "random-k": Row(
        "Random-k",
        "Random-k (Stich, Cordonnier and Jaggi 2018): AFL-Spar with random entries, sent without indices.",
        (RULES,),
        _published("afl-spar", "random-k"),
    ),
    "threshold": Row(
        "Threshold",
        "Hard threshold (Sahu et al. 2021): AFL-Spar with all entries above a multiple of the root mean square.",
        (RULES,),
        _published("afl-spar", "threshold"),
    ),
    "qsgd": Row(
        "QSGD",
        "QSGD (Alistarh et al. 2017): AFL with values rounded at random to a few levels, without memory.",
        _WHOLE,
        _published("afl", "qsgd", "forgetting"),
    ),
    "mobility-aware": Row(
        "Mobility-aware",
        "Mobility-aware (after Ballotta et al. 2025): AFL-Spar in the best contacts that the budget pays for.",
        (),
        _published("afl-spar", "mobility-aware"),
    ),
}

# Parts by name, imported on first use. A part replaces the part of the same kind.
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
    "private": "privacy:Private",
    "sums-first": "statistics:SumsFirst",
    "class-statistics": "statistics:ClassStatistics",
    "add-sums": "statistics:AddSums",
    "guard": "guard:Guard",
    "trimmed-mean": "robust:TrimmedMean",
    "geometric-median": "robust:GeometricMedian",
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
    "privacy": Private,
    "guard": Guard,
}


def part_class(name: str) -> type[Part]:
    module, _, title = PARTS[name].partition(":")
    return cast(type[Part], getattr(import_module(f"wayfare.methods.{module}"), title))


def kind_of(part: Part) -> str:
    return next(kind for kind, base in KINDS.items() if isinstance(part, base))


def named_parts(text: str, scenario: Scenario) -> tuple[str, tuple[Part, ...]]:
    """The canonical name and the parts of a name with choices."""
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
    raise ScenarioError("schemes", text, f"unknown scheme; choose from {known}, or give your own as FILE.py:CLASS")


def checked_part(part: object, text: str) -> Part:
    if not isinstance(part, Part):
        bases = ", ".join(base.__name__ for base in KINDS.values())
        raise ScenarioError(
            "schemes", text, f"{type(part).__name__} is not a part of a method; subclass one of {bases}"
        )
    return part


def assemble(name: str, parts: tuple[Part, ...], scenario: Scenario, text: str) -> Method:
    """Build a method. Later parts replace earlier ones of the same kind; Algorithm 1 supplies missing parts."""
    from wayfare.methods.compressors import TopK
    from wayfare.methods.memories import ErrorFeedback

    chosen: dict[str, Any] = {"compressor": TopK(), "memory": ErrorFeedback()}
    chosen |= {kind_of(part): part for part in parts}
    if "upload" not in chosen:
        raise ScenarioError("schemes", text, "a method needs an upload rule; name one, or start from a named method")
    if "server" not in chosen:
        chosen["server"] = Add() if scenario.server.is_plain else Optimise(scenario.server)
    method = Method(name=name, text=text, **chosen)
    reject_incompatible(method, scenario)
    return method


def _pick(text: str, chosen: list[str], groups: Choices) -> list[str]:
    """One choice per group: the one in the name, or the default."""
    picked = [group[0] for group in groups]
    taken: set[int] = set()
    for choice in chosen:
        index = next((number for number, group in enumerate(groups) if choice and choice in group), None)
        if index is None or index in taken:
            rule = "; ".join(f"one of {_listed(group)}" if len(group) > 2 else _listed(group) for group in groups)
            raise ScenarioError("schemes", text, f"takes {rule}" if groups else "takes no choices after its name")
        taken.add(index)
        picked[index] = choice
    return picked


def _listed(group: tuple[str, ...]) -> str:
    return ", ".join(f":{choice}" for choice in group if choice)


_BEHIND = frozenset(("ridge", "lda", "gaussian", "means", "pilot", "from-statistics", "from-pilot"))


def scheme_label(name: str) -> str:
    """The label of a method in figures, tables and pages: ``afl-spar:paced`` is paced AFL-Spar. Other names stay.

    Choices that are no adjectives stand behind it: ``statistics:means`` is Statistics (means). Commands and
    machine-readable files use the name itself.
    """
    first, plus, parts = name.partition(" + ")
    base, *choices = first.split(":")
    if base not in TABLE:
        return name
    behind = [choice.replace("-", " ") for choice in choices if choice in _BEHIND]
    before = [choice for choice in reversed(choices) if choice not in _BEHIND]
    return " ".join([*before, TABLE[base].label, *([f"({', '.join(behind)})"] if behind else [])]) + plus + parts


def choices_of(name: str) -> list[list[str]]:
    """The choices that may follow a method's name, by group."""
    groups = TABLE[name].choices if name in TABLE else ()
    return [[choice for choice in group if choice] for group in groups]


def descriptions() -> dict[str, str]:
    offered = {name: (made.__doc__ or "").strip().split("\n")[0] for name, made in _offered().items()}
    return {name: row.about for name, row in TABLE.items()} | offered


def part_descriptions() -> dict[str, tuple[str, str]]:
    """Kind and description of every named part."""
    found = {}
    for name in PARTS:
        part = part_class(name)
        kind = next(kind for kind, base in KINDS.items() if issubclass(part, base))
        found[name] = kind, (part.__doc__ or "").strip().split("\n")[0]
    return found


def _offered() -> dict[str, Callable[[], object]]:
    return {entry.name: entry.load() for entry in entry_points(group=GROUP) if entry.name not in TABLE}
