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


REGISTER = ("register", "_on")
"""Decorators of properties: that of the registry, and one of `properties/stopping.py`."""


def ids_in_the_source() -> list[str]:
    found = []
    for folder in specverify.properties.__path__:
        for path in sorted(Path(folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                registers = isinstance(node, ast.Call) and getattr(node.func, "id", "") in REGISTER
                if registers and isinstance(node.args[0], ast.Constant):
                    found.append(node.args[0].value)
    return found


def test_every_property_of_the_suite_is_registered_under_an_id_of_its_own():
    source = ids_in_the_source()
    assert len(source) == len(set(source)) >= 7
    assert {p.id for kind in KINDS for p in properties_of(kind)} == set(source)


def test_properties_come_by_id_and_by_kind():
    for kind in KINDS:
        found = [p.id for p in properties_of(kind)]
        assert found == sorted(found)
    transform, rule, decoder = (
        {p.id for p in properties_of(kind)} for kind in ("transform", "rule", "decoder")
    )
    assert {"transforms.round", "transforms.equals_reference"} <= transform
    assert not transform & (rule | decoder)
    assert {"joint.round", "acceptance.closed_form", "support.edge_coins"} <= rule - decoder
    assert "joint.run" in decoder - rule


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
