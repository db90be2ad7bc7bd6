"""Pages of the properties: complete, and those of the documentation up to date."""

import inspect
from pathlib import Path

import pytest

from specverify.certification.registry import all_properties
from specverify.cli import main
from specverify.reporting.property_pages import CHAPTERS, by_chapter, page

DOCS = Path(__file__).parents[2] / "docs" / "properties"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_documentation_says_what_the_properties_say(chapter: str) -> None:
    """If not: specverify properties --write docs/properties."""
    expected = page(chapter, by_chapter()[chapter])
    assert (DOCS / f"{chapter}.md").read_text(encoding="utf-8") == expected


def test_every_chapter_of_the_contract_has_properties_and_a_page() -> None:
    assert all(by_chapter().values())
    assert sorted(path.stem for path in DOCS.glob("*.md")) == sorted(CHAPTERS)


@pytest.mark.parametrize("property", all_properties(), ids=lambda property: property.id)
def test_a_property_says_why_it_holds_what_breaks_it_and_how_often_it_errs(property) -> None:
    text = inspect.getdoc(property.check) or ""
    for heading in ("Why it holds:", "What breaks it:", "Error rate:"):
        assert f"\n\n{heading}" in text, heading
    assert property.claim.endswith(".")
    assert bool(property.inputs) == (property.evidence == "probed")


def test_what_a_property_builds_on_is_there() -> None:
    known = {property.id for property in all_properties()}
    for property in all_properties():
        assert {name.partition(" in ")[0] for name in property.after} <= known


def test_the_command_lists_by_pattern(capsys) -> None:
    assert main(["properties", "joint.r*"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["joint.round", "joint.run"]
    assert main(["properties", "nothing.*"]) == 4
    assert "no property matches 'nothing.*'" in capsys.readouterr().err
