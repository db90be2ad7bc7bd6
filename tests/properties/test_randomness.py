"""Chapter randomness: draws that are used again, between rows and within a run."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from specverify.certification.exact_evidence import RowsCompared
from specverify.decoding.output import DecoderOutput
from specverify.decoding.speculative import SpeculativeDecoder
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.properties.joint import first_token
from specverify.properties.randomness import SHOWN, independence, randomness
from tests.properties.by_hand import DECLARED, moved
from tests.properties.by_hand import evidence as exact_evidence

ALPHA = 1e-6


@pytest.mark.parametrize(
    ("mutant", "tokens"),
    [
        ("acceptance-coins-repeated", 80_000),
        ("rows-share-coins", 48_000),
        ("reseeded-each-round", 48_000),
    ],
)
def test_mutants_are_caught(mutant, tokens, evidence, rejects):
    assert rejects(independence(evidence(mutant, tokens=tokens), ALPHA))


def test_coupled_blocks_leave_the_first_token_right(evidence, rejects, calm):
    made = evidence("acceptance-coins-repeated", tokens=80_000)
    assert calm(first_token(made, ALPHA))
    assert rejects(independence(made, ALPHA))


class RowsDecodedTwice(SpeculativeDecoder):
    """The second half of a batch repeats the draws of the first: each row alone is right."""

    def generate(self, prompt_ids, attention_mask=None, *, settings, generator):
        state, tokens = generator.get_state(), []
        for ids, mask in zip(prompt_ids.chunk(2), attention_mask.chunk(2), strict=True):
            generator.set_state(state)
            output = super().generate(ids, mask, settings=settings, generator=generator)
            tokens.append(output.tokens)
        return DecoderOutput(torch.cat(tokens))


def test_rows_with_the_same_draws_are_caught_though_each_is_right(evidence, rejects):
    subject = decoder_subject("twice", loop=RowsDecodedTwice, algorithm=None)
    outcome = independence(evidence(subject), ALPHA)
    assert rejects(outcome)
    assert any("halves" in name for name in list(outcome.details["components"])[:3])


@pytest.mark.parametrize("name", ["reference", "reference-block", "reference-match", "common-cut"])
@pytest.mark.parametrize("settings", ["plain", "stopping"])
def test_right_ones_pass(name, settings, evidence, calm):
    assert calm(independence(evidence(name, settings), ALPHA))


@pytest.mark.parametrize(
    "name", ["one-noise-for-all-corrections", "random-block-lengths", "prompt-lookup"]
)
def test_lookalikes_pass(name, evidence, calm):
    outcome = independence(evidence(name), ALPHA)
    assert calm(outcome)
    assert outcome.tests[0].statistic < 0, "what was bet on is lost"
    assert len(outcome.details["components"]) == SHOWN


@pytest.mark.parametrize("wrong", ["bonus-from-draft", "lenient"])
def test_a_slight_marginal_mistake_is_not_taken_for_coupling(wrong, evidence, rejects):
    """A gross one is: the numbers of the randomised PIT are then not uniform at all."""
    assert not rejects(independence(evidence(wrong), ALPHA))
    assert rejects(independence(evidence("always-accept"), ALPHA))


class TestOwnDraws:
    def findings(self, **fields: Any) -> tuple[str, ...]:
        outcome = randomness(exact_evidence(**fields), 0.0)
        assert outcome.violations == ()
        return outcome.findings

    def test_nothing_odd(self) -> None:
        rows = RowsCompared(((0, 0), (0, 1)), 1e-17, 1e-17)
        assert self.findings(rows=rows) == ()

    def test_what_steering_found_is_passed_on(self) -> None:
        assert self.findings(findings=("draws twice",)) == ("draws twice",)

    def test_a_coin_used_twice_is_a_diagnosis_of_what_is_wrong(self) -> None:
        assert self.findings(reuses=("twice",)) == ()
        assert self.findings(reuses=("twice",), emitted=moved(1e-3)) == ("twice",)

    def test_an_ignored_generator(self) -> None:
        (finding,) = self.findings(global_draws=("a.py:3: rand",))
        assert finding.endswith("though it is handed one: a.py:3: rand")
        without = replace(DECLARED, generator=False)
        assert self.findings(global_draws=("a.py:3: rand",), declared=without) == ()

    def test_rows_that_share(self) -> None:
        (finding,) = self.findings(rows=RowsCompared(((0, 0), (0, 1)), 0.25, 0.0))
        assert "[0, 0] and [0, 1] emit in one call is 0.25 in TV from independent" in finding
        (finding,) = self.findings(rows_share="noise at a.py:1")
        assert finding == "rows of a batch share randomness: noise at a.py:1"

    def test_a_row_that_depends_on_its_batch_violates(self) -> None:
        rows = RowsCompared(((0, 0), (0, 1)), 0.0, 0.125)
        (said,) = randomness(exact_evidence(rows=rows), 0.0).violations
        assert "off by 0.125 in TV" in said
