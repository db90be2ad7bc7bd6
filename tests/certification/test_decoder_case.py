"""Reference distributions of a case, and which tokens it calls impossible."""

import itertools

import numpy as np
import pytest
import torch

from specverify.certification.decoder_case import DecoderCase, runs_for
from specverify.models.glass_box import GlassBoxModel
from specverify.models.table import TableModel
from specverify.models.transformers_model import as_language_model
from specverify.settings import SamplingSettings

PROMPTS = ((0,), (1, 2, 3))


def test_the_trees_are_the_stopped_joint_distribution(case):
    settings = SamplingSettings(stop_token_ids=(2,), temperature=0.7)
    made = case(settings=settings, length=3, runs=10**9)
    target = made.target
    for prompt, tree in zip(PROMPTS, made.trees, strict=True):
        expected = {}
        for run in itertools.product(range(4), repeat=3):
            cut = run.index(2) + 1 if 2 in run else 3
            mass = 1.0
            for i in range(cut):
                logits = target.logits[target.context_after([*prompt, *run[:i]])] / 0.7
                mass *= float(logits.softmax(-1)[run[i]])
            expected[run[:cut]] = mass
        found = tree.sequences()
        assert found.keys() == expected.keys()
        for run, mass in expected.items():
            assert found[run] == pytest.approx(mass, rel=1e-12)


def test_first_tokens_are_those_of_the_prompt(case):
    made = case()
    for index, prompt in enumerate(PROMPTS):
        logits = made.target.logits[made.target.context_after(prompt)]
        np.testing.assert_allclose(made.first_token(index), logits.softmax(-1).numpy())


def test_cells_expect_enough_of_the_planned_runs(case):
    made = case(tokens=8_000)
    for tree in made.trees:
        per_prompt = made.runs / len(PROMPTS)
        sequences = tree.leaf_probabilities()[~tree.rest]
        assert (sequences * per_prompt >= 25).all()


@pytest.mark.parametrize(("tokens", "length", "runs"), [(1, 6, 2), (120, 6, 20), (100, 3, 34)])
def test_runs_are_shared_equally_by_the_prompts(tokens, length, runs):
    assert runs_for(tokens, length, PROMPTS) == runs


def tokens_of(*rows):
    width = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])


def judged(made, prompt, tokens):
    """Runs as they are tallied, and the target's distributions along them."""
    probs = made.laws(prompt, tokens[:, : made.length]).p
    return made.judge(prompt, tokens, probs), probs


def test_judged_runs_carry_where_they_had_to_end(case):
    made = case(settings=SamplingSettings(stop_token_ids=(3,)))
    batch, probs = judged(made, 0, tokens_of([0, 3], [0, 1, 2, 0], [0, 3, 1], [1]))
    assert batch.required_lengths.tolist() == [2, 4, 2, 0]
    assert not batch.impossible.any()
    np.testing.assert_allclose(probs[2, 0].numpy(), made.first_token(0))


def test_a_run_far_too_long_is_judged_although_it_does_not_fit_in_the_window(case):
    target = TableModel.random(4, 1, seed=3, window=9)
    made = case(target=target)
    batch, probs = judged(made, 1, torch.zeros(2, 100, dtype=torch.long))
    assert batch.required_lengths.tolist() == [4, 4]
    assert batch.tokens.shape == (2, 100)
    assert probs.shape == (2, 4, 4)


class TestNearTies:
    """Truncations whose boundary lies within rounding of a token."""

    GAP = 1e-6
    """Between two logits, or between a mass and top_p: what float32 passes may disagree on."""

    def made(self, case, probs, **settings) -> DecoderCase:
        table = TableModel(torch.tensor([probs], dtype=torch.float64).log(), order=0)
        model = as_language_model(GlassBoxModel.from_table(table).float())
        return case(
            target=model,
            draft=model,
            prompts=((0,),),
            settings=SamplingSettings(**settings),
            length=1,
        )

    def impossible(self, made: DecoderCase) -> list[bool]:
        tokens = torch.arange(made.target.vocab_size)[:, None]
        batch, _ = judged(made, 0, tokens)
        return batch.impossible[:, 0].tolist()

    @pytest.mark.parametrize(
        ("probs", "settings"),
        [
            ((0.4, 0.3, 0.15, 0.15 * (1 - GAP)), {"top_k": 3}),
            ((0.4, 0.3 - GAP, 0.2, 0.1 + GAP), {"top_p": 0.7 - 2 * GAP}),
            ((0.4, 0.3, 0.26, 0.04 * (1 - GAP)), {"min_p": 0.1}),
            ((0.5, 0.3, 0.1 + GAP, 0.1 - GAP), {"epsilon_cutoff": 0.1}),
        ],
        ids=["top_k", "top_p", "min_p", "epsilon_cutoff"],
    )
    def test_a_token_that_rounding_can_keep_is_not_impossible(self, case, probs, settings):
        made = self.made(case, probs, **settings)
        excluded = (made.first_token(0) == 0).tolist()
        assert any(excluded), "the reference keeps everything: not a near tie"
        near = excluded.index(True)
        assert not self.impossible(made)[near]

    @pytest.mark.parametrize(
        ("probs", "settings", "expected"),
        [
            ((0.4, 0.3, 0.2, 0.1), {"top_k": 3}, [False, False, False, True]),
            ((0.4, 0.3, 0.2, 0.1), {"top_p": 0.65}, [False, False, True, True]),
            ((0.4, 0.3, 0.26, 0.04), {"min_p": 0.11}, [False, False, False, True]),
            ((0.4, 0.3, 0.2, 0.1), {"typical_p": 0.25}, [True, False, True, True]),
            ((0.4, 0.3, 0.2, 0.1), {"temperature": 0.0}, [False, True, True, True]),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_a_token_well_beyond_the_boundary_is(self, case, probs, settings, expected):
        assert self.impossible(self.made(case, probs, **settings)) == expected

    def test_top_p_over_a_large_vocabulary(self, case):
        """A token of the tail weighs no more than what sums of thousands are off by."""
        weights = torch.linspace(1, 0.5, 2000, dtype=torch.float64)
        probs = weights / weights.sum()
        mass_before = float(probs[:1200].sum())
        made = self.made(case, probs.tolist(), top_p=mass_before - 2e-6)
        assert int((made.first_token(0) > 0).sum()) == 1200
        found = self.impossible(made)
        assert not any(found[:1200])
        assert all(found[1202:])
        made = self.made(case, probs.tolist(), top_p=mass_before - float(probs[1199]) - 2e-6)
        assert int((made.first_token(0) > 0).sum()) == 1199
        assert not self.impossible(made)[1199]

    def test_a_masked_token_is_impossible_whatever_the_rounding(self, case):
        made = self.made(case, (0.4, 0.3, 0.2, 0.1), logit_bias={1: -float("inf")})
        assert self.impossible(made) == [False, True, False, False]


def test_the_tolerance_follows_the_models_dtype(case):
    table = TableModel.random(4, 1, seed=3)
    single = as_language_model(GlassBoxModel.from_table(table).float())
    assert case(target=table).tolerance < case(target=single).tolerance < 1e-3


def test_random_transforms_are_known(case):
    assert case(settings=SamplingSettings(xtc_probability=0.5)).random_transforms
    assert not case(settings=SamplingSettings(top_p=0.5)).random_transforms
