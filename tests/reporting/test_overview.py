"""What the reports are made of: one row a property, the worst result first."""

from specverify.reporting.overview import (
    acceptance_rates,
    budget_said,
    errors,
    not_applicable,
    property_rows,
)
from tests.certified import certified


def test_a_property_has_its_worst_result_and_where_it_was() -> None:
    rows = {row.property: row for row in property_rows(certified("violated"))}
    assert rows["joint.round"].decision == "violated"
    assert "exact/random-V4-K3-float64" in rows["joint.round"].where
    assert "exact/equal-float64" in rows["joint.round"].cases
    assert "exact/equal-float64" not in rows["joint.round"].where
    assert rows["batch.rows_of_rule"].decision == "blocked"
    assert rows["support.impossible_tokens"].decision == "pass"
    assert list(rows) == sorted(rows)


def test_reported_tests_decide_nothing() -> None:
    rows = property_rows(certified("preserved"))
    assert {row.decision for row in rows} == {"pass"}
    assert all(row.evidence in {"sampled", "structural"} for row in rows)


def test_the_budget_in_words() -> None:
    assert budget_said(certified("preserved")) == (
        "alpha 1e-06: 50% of it over 10 tests, each rejecting from ln E 16.8, the rest for all "
        "cases together"
    )
    assert "no test of this run spends" in budget_said(certified("error"))


def test_acceptance_by_position_falls() -> None:
    case = certified("preserved").cases[0]
    rates = acceptance_rates(case)
    accepted = case.counters["first_round_accepted"]
    assert isinstance(accepted, dict)
    assert len(rates) == case.num_draft_tokens == 2
    assert rates[0] == 1 - accepted["0"] / case.runs
    assert rates[1] == accepted["2"] / case.runs
    assert acceptance_rates(certified("error").cases[0]) == []


def test_errors_and_what_was_not_checked_are_listed_once() -> None:
    ((reason, cases),) = errors(certified("error"))
    assert reason.startswith("subject 'mine' raised RuntimeError")
    assert cases == "plain"
    entries = not_applicable(certified("transform"))
    assert len(entries) == len(set(entries))
