"""Methods composed as text, in Python and in files: their parts, invalid ones, and their runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import wayfare
from wayfare.errors import ScenarioError
from wayfare.methods import Method, is_ours, make_method, split_names
from wayfare.methods.memories import Decay, Forgetting
from wayfare.methods.published.fedbuff import Buffer
from wayfare.methods.published.random_k import RandomK
from wayfare.methods.servers import Add
from wayfare.scenario import Scenario
from wayfare.studies.keys import run_key
from wayfare.studies.single import Execution

OWN = """
from dataclasses import dataclass

import wayfare


@dataclass(frozen=True)
class Louder(wayfare.ServerRule):
    factor: float = 2.0

    def apply(self, model, state, arrivals, terms):
        model = model.clone()
        for arrival in arrivals:
            model.index_add_(0, arrival.sent.indices, arrival.sent.values, alpha=-self.factor / terms.devices)
        return model, state


louder_mads = wayfare.compose("louder-mads", "mads", Louder(3.0))
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a part and a composition; no two tests share its name, since a module is imported once."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / f"parts_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mads + random-k", "mads + random-k"),
        ("mads+random-k", "mads + random-k"),
        ("  mine =  afl-spar:paced + buffer( size = 3 ) ", "mine"),
        ("mine:fast = mads", "mine:fast"),
        ("afl:paced:fitting + decay", "afl:fitting:paced + decay"),
    ],
)
def test_a_composition_has_the_name_it_was_given_or_says_what_it_is(text: str, name: str) -> None:
    assert make_method(text, Scenario()).name == name


def test_parts_take_the_place_of_those_of_their_kind_and_leave_the_others() -> None:
    method, base = make_method("mine = mads + random-k + decay(share=0.5)", Scenario()), make_method("mads", Scenario())
    assert isinstance(method.compressor, RandomK)
    assert method.memory == Decay(share=0.5)
    assert (method.upload, method.server, method.local) == (base.upload, base.server, base.local)
    assert isinstance(method.server, Add)
    # The last one of a kind counts.
    assert isinstance(make_method("mads + decay + forgetting", Scenario()).memory, Forgetting)


def test_text_and_python_make_the_same_method() -> None:
    text = make_method("mine = afl-spar:paced + buffer(size=3, step=0.5)", Scenario())
    python = make_method(wayfare.compose("mine", "afl-spar:paced", Buffer(size=3, step=0.5)), Scenario())
    assert text == python
    assert run_key(Scenario(), text, 0, Execution()) == run_key(Scenario(), python, 0, Execution())


def test_values_of_parts_count_in_the_key_of_a_run() -> None:
    methods = [make_method(f"mine = afl + buffer(size={size})", Scenario()) for size in (3, 4)]
    assert len({run_key(Scenario(), method, 0, Execution()) for method in methods}) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mads + nosuch", r"schemes = 'mads \+ nosuch': unknown part nosuch; choose from .*random-k"),
        ("mads + decay(share=3)", r"'mads \+ decay\(share=3\)': share = 3: must be 0 to 1"),
        ("mads + decay(shore=3)", "Decay has no field shore; its fields are share"),
        ("mads + mads-power(energy_rule='paced')", "Mads has no field energy_rule; its fields are control"),
        ("afl + whole(energy_rule='foo')", "energy_rule = 'foo': must be one of unlimited, greedy, paced"),
        ("afl-spar + as-many-as-fit(energy_rule='queue')", "energy_rule = 'queue': .* queue needs a controller"),
        ("mads + decay(share=", "cannot parse 'decay.share='"),
        ("mads + decay(share=high)", "cannot parse 'share=high'"),
        ("mads + add(x=1)", r"Add has no field x; its fields are \(none\)"),
        ("mads +", "cannot parse ''"),
        ("mads = afl", "is the name of a method of Wayfare"),
        ("nosuch + random-k", "unknown scheme; choose from mads"),
        ("fedmobile + mix", "its server mixes models; relays can only carry updates"),
        ("fedmobile + forgetting", "relays need a memory rule that keeps everything"),
        ("mine = top-k", "a method needs an upload rule"),
    ],
)
def test_what_cannot_be_composed_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        make_method(text, Scenario())


def test_what_is_no_part_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"int is not a part of a method; subclass one of UploadRule"):
        wayfare.compose("mine", "mads", 5)  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match=r"server\.step = 3\.0: fedbuff has its own server rule"):
        make_method("fedbuff", wayfare.load("fashion-small", ["server.step=3.0"]))


def test_commas_within_parentheses_separate_values_and_not_methods() -> None:
    assert split_names("mads, mine = afl + buffer(size=3, step=2.0),, afl") == [
        "mads",
        "mine = afl + buffer(size=3, step=2.0)",
        "afl",
    ]


def test_what_is_in_the_package_can_be_repeated_by_anybody() -> None:
    assert is_ours("afl:paced")
    assert is_ours("mine = mads + buffer(size=5) + decay")
    assert not is_ours("mads + mine.py:Sketch")
    assert not is_ours("mine.py:Patient + decay")


def test_a_part_and_a_composition_of_a_file_run(written: Path, small: Scenario, tmp_path: Path) -> None:
    names = ["mads", f"mads + {written}:Louder(factor=3.0)", f"{written}:louder_mads"]
    done = wayfare.compare(small, names, seeds=1, jobs=2, out=tmp_path / "runs")
    plain, louder, composed = (scheme.score_mean for scheme in done.schemes)
    assert louder == composed != plain


def test_a_run_and_a_study_know_a_composition_by_its_name(small: Scenario, tmp_path: Path) -> None:
    record = wayfare.run(small, "mine = mads + decay(share=0.5)", out=tmp_path)
    assert (record.scheme, record.scheme_text) == ("mine", "mine = mads + decay(share=0.5)")
    study = tmp_path / "study.toml"
    study.write_text('scenario = "fashion-small"\nschemes = ["afl", "my-fedbuff = afl + buffer(size=2)"]\nseeds = 1\n')
    plan = wayfare.load_study(study)
    assert plan.schemes == ["afl", "my-fedbuff"]
    method = plan.scheme_at(plan.points[0], "my-fedbuff")
    assert isinstance(method, Method)
    assert method.server == Buffer(size=2)
