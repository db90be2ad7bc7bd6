"""Chapter batch: rows with settings of their own, right ones and such as get another row's."""

from dataclasses import replace
from typing import Any

import pytest

from specverify.certification.registry import properties_of
from specverify.fixtures.lookalikes.settings_of_rows import LOOKALIKES
from specverify.fixtures.mutants.settings_of_rows import MUTANTS
from specverify.fixtures.parts.row_settings import by_row
from specverify.settings import SamplingSettings
from specverify.subjects.reference import GREEDY, TOKEN

OWN, LAW = "batch.own_settings", "batch.own_settings_law"

SHOWS = {
    ("transforms-of-first-row", OWN): "biases-3",
    ("transforms-of-first-row", LAW): "temperatures",
    ("stops-of-first-row", OWN): "stops-3",
    ("limit-of-longest-row", OWN): "limits-3",
    ("settings-left-in-place", OWN): "biases-9",
    ("temperatures-left-in-place", OWN): "temperatures-3",
    ("penalties-of-next-row", LAW): "penalties",
}
"""An input on which each mutant is caught by each property that must catch it."""

BY_ID = {mutant.id: mutant for mutant in MUTANTS}


def inputs_of(property: str) -> tuple[str, ...]:
    (found,) = [p for p in properties_of("decoder") if p.id == property]
    return found.inputs


@pytest.mark.parametrize(("mutant", "property"), SHOWS, ids=lambda name: name)
def test_mutants_are_caught(mutant, property, probe):
    record = probe(BY_ID[mutant].subject, property, SHOWS[mutant, property])
    assert record.verdict == "violated"


def test_every_mutant_is_tried_on_all_that_must_catch_it():
    wanted = {(mutant.id, property) for mutant in MUTANTS for property in mutant.caught_by}
    assert set(SHOWS) == wanted


@pytest.mark.parametrize("lookalike", LOOKALIKES, ids=lambda lookalike: lookalike.id)
@pytest.mark.parametrize(
    ("property", "input"),
    [*((OWN, i) for i in inputs_of(OWN)), *((LAW, i) for i in inputs_of(LAW))],
)
def test_lookalikes_pass(lookalike, property, input, probe):
    assert probe(lookalike.subject, property, input).verdict == "preserved"


@pytest.mark.parametrize("input", inputs_of(LAW))
def test_the_reference_is_computed(input, probe):
    record = probe(TOKEN, LAW, input)
    assert record.verdict == "preserved"
    assert record.tests[0].evidence == "exact"
    assert record.tests[0].exact.total_variation < 1e-12


def test_a_row_under_settings_of_another_is_shown_with_what_it_should_emit(probe):
    (test,) = probe(BY_ID["stops-of-first-row"].subject, OWN, "stops-3").tests
    assert "rows that differ in stops" in test.detail
    assert "and only [" in test.detail


def test_one_that_is_greedy_because_a_row_is_shows_by_its_distribution(probe):
    def coldest(settings: Any, mask: Any) -> list[SamplingSettings]:
        least = min(own.temperature for own in settings)
        return [own.model_copy(update={"temperature": least}) for own in settings]

    assert probe(by_row(coldest), LAW, "greedy").verdict == "violated"


def test_neither_is_asked_of_a_subject_that_takes_one_contract_a_call(probe):
    capabilities = replace(TOKEN.capabilities, row_settings=False)
    for property, input in ((OWN, "limits-3"), (LAW, "lengths")):
        said = probe(replace(TOKEN, capabilities=capabilities), property, input)
        assert said == "all rows of a call have the same settings"


def test_a_greedy_decoder_is_asked_where_it_can_answer(probe):
    assert probe(GREEDY, OWN, "limits-9").verdict == "preserved"
    assert "greedily only" in probe(GREEDY, OWN, "temperatures-9")
    assert "greedily only" in probe(GREEDY, LAW, "lengths")
