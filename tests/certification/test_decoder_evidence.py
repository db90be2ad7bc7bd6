"""What tallies are held against, by hand and by simulation under the null."""

from collections import defaultdict

import numpy as np
import pytest
from scipy.stats import kstest

from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.worst_cells import compare
from specverify.fixtures.mutants.rules import ResidualOfAbsoluteDifference
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.models.table import TableModel
from specverify.sampling.tally import Tally
from specverify.settings import SamplingSettings
from specverify.subjects.reference import BLOCK, MATCH, TOKEN

LM = frozenset({"language_model"})


def p_values(strata):
    return [test.p_value for test in compare(strata).tests]


@pytest.mark.parametrize("subject", [TOKEN, BLOCK, MATCH], ids=lambda s: s.name)
@pytest.mark.parametrize(
    "settings",
    [SamplingSettings(), SamplingSettings(presence_penalty=0.8, stop_token_ids=(3,), top_k=3)],
    ids=["plain", "hard"],
)
def test_every_distribution_of_a_right_decoder_fits(subject, settings, case, evidence):
    made = evidence(subject, case(tokens=160_000, settings=settings))
    assert made.reports_acceptance
    assert made.runs == made.case.runs
    for strata in (made.first_tokens(), made.joint(), made.corrections(), made.bonuses()):
        assert sum(counts.sum() for counts in strata[0]) > 1000
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
    assert made.bonuses()[0]


def test_corrections_are_added_up_by_their_last_tokens(case, evidence):
    """The groups by hand, from the tallies."""
    made = evidence(TOKEN, case())
    groups = defaultdict(lambda: np.zeros(4, np.int64))
    for prompt, tally in zip(made.case.prompts, made.tallies, strict=True):
        for prefix in [(), *((a,) for a in range(4))]:
            node = 0 if not prefix else tally.tree.children[0, prefix[0]]
            if node >= 0 and tally.corrections[node].any():
                groups[(*prompt, *prefix)[-2:]] += tally.corrections[node]
    counts, laws = made.corrections()
    assert sorted(map(list, counts)) == sorted(map(list, groups.values()))
    for law in laws:
        assert law.sum() == pytest.approx(1)


def test_no_runs_no_strata(case, sampler):
    made = sampler(TOKEN, case()).evidence()
    assert (made.runs, made.tokens, made.reports_acceptance) == (0, 0, False)
    assert made.first_tokens() == made.joint() == made.corrections() == ([], [])
    assert made.excluded_corrections() == (0, 0)


class TestGroupsUnderTheNull:
    """Nodes of a group have different distributions; adding them up must not accuse."""

    REPLICATES = 300
    PROMPTS = tuple((a, b, 1) for a in range(4) for b in range(4))

    @pytest.fixture
    def made(self, case) -> DecoderEvidence:
        target = TableModel.random(4, 3, seed=1, scale=2.0)
        made = case(target=target, draft=target, prompts=self.PROMPTS, tokens=40_000)
        return DecoderEvidence(TOKEN, made, tuple(Tally(tree) for tree in made.trees))

    def test_p_values_are_not_smaller_than_uniform(self, made):
        # The node of every prompt itself: same last token, order 3, so sixteen distributions.
        laws = [made.case.first_token(prompt) for prompt in range(len(self.PROMPTS))]
        assert np.abs(laws[0] - laws[1]).sum() > 0.5
        rng = np.random.default_rng(5)
        found = []
        for _ in range(self.REPLICATES):
            counts = []
            for law, tally in zip(laws, made.tallies, strict=True):
                seen = np.zeros_like(tally.bonuses)
                seen[0] = rng.multinomial(rng.integers(50, 150), law)
                counts.append(seen)
            strata = made._by_context(counts, lambda prompt, _: laws[prompt][None])
            # Prompts that end in the same two tokens, sixteen of which make four groups.
            assert len(strata[0]) == 4
            found.append(p_values(strata))
        for values in np.array(found).T:
            # One-sided: are they stochastically smaller than uniform?
            assert kstest(values, "uniform", alternative="greater").pvalue > 1e-3
            assert values.min() > 1e-4

    def test_and_a_shift_is_still_seen(self, made):
        laws = [made.case.first_token(prompt) for prompt in range(len(self.PROMPTS))]
        rng = np.random.default_rng(6)
        counts = []
        for law, tally in zip(laws, made.tallies, strict=True):
            seen = np.zeros_like(tally.bonuses)
            seen[0] = rng.multinomial(400, 0.8 * law + 0.2 * np.eye(4)[0])
            counts.append(seen)
        strata = made._by_context(counts, lambda prompt, _: laws[prompt][None])
        assert max(p_values(strata)) < 1e-9
