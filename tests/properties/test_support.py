"""Chapter support: impossible tokens against the rate that coins of exactly 0 explain."""

from dataclasses import replace
from typing import Any

import pytest

from specverify.certification.exact_edges import EdgeCoins
from specverify.exact.edge_coins import EdgeOutcome, EdgeSummary
from specverify.properties.support import edge_coins, impossible_tokens, support
from specverify.statistics.support import floor_rate
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN
from tests.properties.by_hand import evidence as exact_evidence

ALPHA = 1e-6


@pytest.mark.parametrize(
    ("mutant", "settings"),
    [
        ("bonus-untransformed", "filtered"),
        ("block-untransformed", "filtered"),
        ("history-frozen", "history"),
    ],
)
def test_mutants_are_caught(mutant, settings, evidence, rejects):
    outcome = impossible_tokens(evidence(mutant, settings), ALPHA)
    assert rejects(outcome)
    assert "tokens have probability 0, e.g. {'prompt': [" in outcome.findings[0]
    assert outcome.details["examples"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("reference", "filtered"),
        ("reference", "greedy"),
        ("reference-match", "history"),
        ("target-only-transforms", "filtered"),
        ("draft-ignores-constraints", "history"),
    ],
)
def test_right_ones_pass_without_a_hit(name, settings, evidence, calm):
    outcome = impossible_tokens(evidence(name, settings), ALPHA)
    assert calm(outcome)
    assert outcome.tests[0].statistic <= 0, "no hit speaks against the coins"
    assert not outcome.findings


def subject_with_hits(hits: int, coin_dtype: str) -> Subject:
    """Right but for the first token of a few runs of its first call."""
    left = [hits]

    def call(target, draft, ids, mask, settings, k, generator):
        tokens = TOKEN.call(target, draft, ids, mask, settings, k, generator).tokens
        forbidden = next(iter(settings.logit_bias))
        tokens[: left[0], 0] = forbidden
        left[0] = 0
        return tokens

    capabilities = Capabilities(models=frozenset({"language_model"}), coin_dtype=coin_dtype)
    return Subject(f"{hits}-{coin_dtype}", "decoder", call, capabilities)


BANNED = '{"logit_bias": {"2": "-Infinity"}}'


@pytest.mark.parametrize(
    ("hits", "coin_dtype", "violated"),
    [
        (1, "float32", False),
        (20, "float32", True),
        (1, "float64", True),
        (100, "bfloat16", False),
        (900, "bfloat16", True),
    ],
)
def test_hits_are_held_against_what_the_coins_explain(
    hits, coin_dtype, violated, evidence, rejects
):
    made = evidence(subject_with_hits(hits, coin_dtype), BANNED)
    outcome = impossible_tokens(made, ALPHA)
    assert f"{hits} of " in outcome.findings[0]
    assert rejects(outcome) is violated
    assert outcome.findings, "hits below the floor are a finding"
    if not violated:
        assert hits < 10 + 3 * floor_rate(coin_dtype) * made.tokens


def test_the_example_is_the_run_up_to_the_impossible_token(evidence):
    made = evidence(subject_with_hits(3, "float32"), BANNED, tokens=6_000)
    outcome = impossible_tokens(made, ALPHA)
    assert outcome.details["examples"][0] == {"prompt": [3], "emitted": [2]}


def test_an_impossible_start_makes_nothing_else_impossible(evidence):
    """One hit is one hit, not every token after it."""
    made = evidence(subject_with_hits(1, "float64"), BANNED, tokens=6_000)
    assert sum(tally.impossible for tally in made.tallies) == 1


OUTSIDE = {(0, 0, 0): 2e-16, (1,): 1e-16}


class TestNothingOutside:
    @staticmethod
    def outside(masses: dict[tuple[int, ...], float], **fields: Any) -> Any:
        compared = replace(exact_evidence().comparison, outside_support=masses)
        return support(exact_evidence(comparison=compared, **fields), 0.0)

    def test_nothing_outside_is_a_pass(self) -> None:
        outcome = support(exact_evidence(), 0.0)
        assert (outcome.violations, outcome.findings) == ((), ())

    def test_mass_within_the_tolerance_is_a_finding_with_its_cause(self) -> None:
        outcome = self.outside(OUTSIDE)
        assert outcome.violations == ()
        (finding,) = outcome.findings
        assert "with probability 3e-16, such as [0, 0, 0] with 2e-16" in finding
        assert "where a coin is exactly 0" in finding

    def test_more_than_coins_of_zero_explain_has_another_cause(self) -> None:
        (finding,) = self.outside({(0,): 1e-13}).findings
        assert "coin" not in finding

    def test_mass_above_the_tolerance_violates(self) -> None:
        outcome = self.outside({(0,): 1e-9})
        assert outcome.findings == ()
        (said,) = outcome.violations
        assert "1e-09" in said


class TestEdgeCoins:
    @staticmethod
    def entry(
        kind: Any, mass: float, coin: str = "u = 0", detail: str = "emits 1, wrongly"
    ) -> EdgeSummary:
        line = "" if coin in ("inside", "any") else "a.py:3: rand"
        element = None if coin in ("inside", "any") else 2
        example = EdgeOutcome(kind, (0, 1), coin, element, 0.0, mass, (1,), detail, line)
        return EdgeSummary(kind, coin, element, line, 1, mass, example)

    def judged(self, *entries: EdgeSummary) -> tuple[tuple[str, ...], tuple[str, ...]]:
        outcome = edge_coins(exact_evidence(edges=EdgeCoins(entries)), 0.0)
        assert outcome.asked
        return outcome.violations, outcome.findings

    def test_right_coins_pass(self) -> None:
        assert self.judged(self.entry("right", 0.5)) == ((), ())

    def test_a_finding_has_its_mass_and_line(self) -> None:
        violations, (said,) = self.judged(self.entry("finding", 3e-17))
        assert violations == ()
        assert said == (
            "with u = 0 as coin 2, with probability 3e-17: emits 1, wrongly, after the draft "
            "tokens [0, 1], drawn at a.py:3: rand"
        )

    def test_what_is_wrong_inside_violates_and_its_ends_are_no_news(self) -> None:
        inside = self.entry("violation", 0.25, "inside")
        (said,), findings = self.judged(inside, self.entry("finding", 3e-17))
        assert said.startswith("with its coins inside their intervals, with probability 0.25: ")
        assert findings == ()

    def test_a_crash_counts_by_its_mass(self) -> None:
        error = "SubjectError: subject 'mine' raised IndexError: 4\n  a.py:9 in rule"
        violations, (said,) = self.judged(self.entry("crash", 1e-16, detail=error))
        assert violations == ()
        assert ": subject 'mine' raised IndexError: 4, after" in said
        (said,), findings = self.judged(self.entry("crash", 1e-9, detail=error))
        assert "raised IndexError: 4" in said
        assert findings == ()

    def test_paths_that_raise_for_any_coin_are_told_elsewhere(self) -> None:
        assert self.judged(self.entry("crash", 0.25, "any")) == ((), ())

    def test_where_nothing_was_run_nothing_is_said(self) -> None:
        assert not edge_coins(exact_evidence(), 0.0).asked
        unknown = exact_evidence(edges=EdgeCoins(unknown="why"))
        assert edge_coins(unknown, 0.0).not_applicable == "why"
