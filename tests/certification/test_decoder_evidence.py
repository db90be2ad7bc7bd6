"""What tallies of right and wrong decoders look like beside their distributions."""

import pytest

from specverify.certification.accumulator import Accumulator
from specverify.certification.worst_cells import compare
from specverify.fixtures.mutants.rules import ResidualOfAbsoluteDifference
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.reference import BLOCK, MATCH, TOKEN

HARD = SamplingSettings(presence_penalty=0.8, stop_token_ids=(3,), top_k=3)


def p_values(strata):
    return [test.p_value for test in compare(strata, 0.0).reported]


@pytest.mark.parametrize("subject", [TOKEN, BLOCK, MATCH], ids=lambda s: s.name)
@pytest.mark.parametrize("settings", [SamplingSettings(), HARD], ids=["plain", "hard"])
def test_every_distribution_of_a_right_decoder_fits(subject, settings, case, evidence):
    made = evidence(subject, case(tokens=160_000, settings=settings))
    assert made.reports_acceptance
    assert made.runs == made.case.runs
    assert sum(made.first_rounds.accepted.values()) == made.runs
    for strata in (made.first_tokens(), made.joint(), made.corrections(), made.bonuses()):
        assert sum(counts.sum() for counts in strata.counts) > 500
        assert min(p_values(strata)) > 1e-4
    assert made.excluded_corrections()[0] == 0


@pytest.mark.parametrize(
    ("declared", "subject"), [("token", BLOCK), ("token", MATCH), ("match", TOKEN)]
)
def test_corrections_of_another_algorithm_do_not_fit(declared, subject, case, evidence, decoder):
    made = evidence(decoder(subject.call, algorithm=declared), case(tokens=160_000))
    assert max(p_values(made.corrections())) < 1e-9
    assert min(p_values(made.bonuses())) > 1e-4


def test_corrections_outside_the_residual_are_counted(case, evidence):
    wrong = decoder_subject("wrong", verification=ResidualOfAbsoluteDifference())
    excluded, total = evidence(wrong, case()).excluded_corrections()
    assert 0.2 * total < excluded < total


def test_a_draft_equal_to_the_target_excludes_nothing_by_rounding(case, evidence):
    target = TableModel.random(4, 1, seed=3)
    nearly = TableModel(target.logits * (1 + 1e-13), 1)
    made = evidence(TOKEN, case(target=target, draft=nearly))
    assert made.excluded_corrections()[0] == 0
    assert made.bonuses().counts


def test_cells_have_words_for_what_they_stand_for(case, evidence):
    made = evidence(TOKEN, case(tokens=40_000, settings=HARD))
    assert made.first_tokens().label(1, 2) == "token 2 after prompt 1"
    joint = made.joint()
    tree = made.tallies[0].tree
    cell = int(tree.rest.argmax())
    prefix = [token for token in tree.tokens[cell].tolist() if token >= 0]
    assert joint.label(0, cell) == f"run {prefix}, then other tokens after prompt 0"
    assert joint.label(0, int(tree.ended.argmax())).endswith("3] after prompt 0")
    labels = {made.corrections().label(s, 0) for s in range(len(made.corrections().counts))}
    assert "token 0 after ..., start, 0" in labels, labels
    assert "token 0 after ..., 2, 3" in labels, labels


def test_no_runs_no_strata(case):
    made = Accumulator(TOKEN, case()).evidence()
    assert (made.runs, made.tokens, made.reports_acceptance) == (0, 0, False)
    for strata in (made.first_tokens(), made.joint(), made.corrections(), made.bonuses()):
        assert strata.counts == strata.laws == []
    assert made.excluded_corrections() == (0, 0)
