"""Version, changelog and citation agree."""

from __future__ import annotations

from pathlib import Path

import yaml

from wayfare import __version__

ROOT = Path(__file__).parent.parent


def test_the_changelog_has_a_section_for_the_version() -> None:
    assert f"\n## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_citation_names_the_version_the_licence_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert citation["license"] == "Apache-2.0"
    (paper,) = citation["references"]
    assert paper["title"] == "Mobility-Aware Asynchronous Federated Learning with Dynamic Sparsification"
    assert all({"family-names", "given-names"} == set(author) for author in paper["authors"])


def test_continuous_integration_calls_the_one_script() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": ".ci/run"}


def test_issue_forms_and_hooks_are_yaml() -> None:
    for file in [*(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"), ROOT / ".pre-commit-config.yaml"]:
        assert yaml.safe_load(file.read_text(encoding="utf-8"))
