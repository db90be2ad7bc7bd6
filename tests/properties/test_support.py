"""Chapter support: impossible tokens against the rate that coins of exactly 0 explain."""

import pytest

from specverify.properties.support import impossible_tokens
from specverify.statistics.support import floor_rate
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN

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
    assert outcome.tests[0].statistic == 0
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
        (2000, "bfloat16", True),
    ],
)
def test_hits_are_held_against_what_the_coins_explain(
    hits, coin_dtype, violated, evidence, rejects
):
    made = evidence(subject_with_hits(hits, coin_dtype), BANNED)
    outcome = impossible_tokens(made, ALPHA)
    assert outcome.tests[0].statistic == hits
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
