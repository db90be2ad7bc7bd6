"""The registry finds the whole suite, once."""

import ast
from pathlib import Path

import pytest

import specverify.properties
from specverify.certification import registry
from specverify.certification.registry import Outcome, properties_of, register
from specverify.subjects.protocols import KINDS


@pytest.fixture
def own(monkeypatch):
    properties_of("decoder")  # fills the registry before it is replaced
    monkeypatch.setattr(registry, "_PROPERTIES", dict(registry._PROPERTIES))


def ids_in_the_source() -> list[str]:
    found = []
    for folder in specverify.properties.__path__:
        for path in sorted(Path(folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "register":
                    found.append(ast.literal_eval(node.args[0]))
    return found


def test_every_property_of_the_suite_is_registered_under_an_id_of_its_own():
    source = ids_in_the_source()
    assert len(source) == len(set(source)) >= 7
    assert {p.id for kind in KINDS for p in properties_of(kind)} == set(source)


def test_properties_come_by_id_and_by_kind():
    for kind in KINDS:
        found = [p.id for p in properties_of(kind)]
        assert found == sorted(found)
    assert [p.id for p in properties_of("transform")] == [
        "exact.transformed_round",
        "transforms.equals_reference",
    ]
    rule, decoder = ({p.id for p in properties_of(kind)} for kind in ("rule", "decoder"))
    assert rule ^ decoder == {"exact.round", "exact.acceptance", "exact.edge_coins", "exact.run"}
    assert {p.id for p in properties_of("rule") if p.evidence == "exact"} == {
        id for id in rule if id.startswith("exact.")
    }


def test_each_claims_something_and_says_what_breaks_it():
    for kind in KINDS:
        for found in properties_of(kind):
            assert found.claim.endswith(".")
            doc = found.check.__doc__ or ""
            for part in ("Why it holds:", "What breaks it:", "Error rate:"):
                assert part in doc, f"{found.id} does not say: {part}"


def test_registering_again_replaces(own):
    for number in (1, 2):

        @register("own.property", kinds=frozenset({"rule"}), tests=number)
        def check(evidence: object, alpha: float) -> Outcome:
            """It holds.

            More words.
            """
            return Outcome()

    (found,) = [p for p in properties_of("rule") if p.id == "own.property"]
    assert (found.tests, found.claim) == (2, "It holds.")
    assert found.needs(None) is None  # type: ignore[arg-type]
    assert all(p.id != "own.property" for p in properties_of("decoder"))
