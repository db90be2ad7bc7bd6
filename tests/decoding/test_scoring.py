"""Teacher-forced distributions against looking the table up by hand."""

import itertools

import numpy as np
import pytest
import torch

from specverify.decoding.scoring import TeacherForced
from specverify.models.glass_box import GlassBoxModel
from specverify.models.table import TableModel
from specverify.models.transformers_model import as_language_model
from specverify.settings import SamplingSettings
from specverify.transforms import REFERENCE, XTC

V = 5
PROMPT = (3, 1)
PENALISED = SamplingSettings(presence_penalty=0.8, repetition_penalty=1.3, temperature=0.7)


def by_hand(target, prefix, settings=None) -> np.ndarray:
    """One prefix at a time, the transforms written out."""
    logits = target.logits[target.context_after([*PROMPT, *prefix])][None].clone()
    if settings is PENALISED:
        ids = torch.tensor([[*PROMPT, *prefix]])
        logits = REFERENCE["repetition_penalty"](1.3)(ids, logits)
        logits = REFERENCE["presence_penalty"](0.8, len(PROMPT))(ids, logits) / 0.7
    return logits.softmax(-1)[0].numpy()


@pytest.mark.parametrize("settings", [SamplingSettings(), PENALISED], ids=["plain", "penalised"])
@pytest.mark.parametrize("rows", [1024, 7, 1])
def test_each_prefix_gets_its_own_distribution(target, settings, rows):
    forced = TeacherForced(target, PROMPT, settings, rows)
    for length in range(3):
        prefixes = np.array(list(itertools.product(range(V), repeat=length)), np.int64)
        expected = [by_hand(target, prefix, settings) for prefix in prefixes.tolist()]
        np.testing.assert_allclose(forced(prefixes), expected, rtol=1e-12)


def test_along_a_run_every_position_sees_what_came_before(target):
    forced = TeacherForced(target, PROMPT, PENALISED, rows=2)
    runs = torch.tensor([[0, 4, 4], [2, -1, -1], [1, 1, -1]])
    laws = forced.along(runs)
    for row, run in enumerate(runs.tolist()):
        for position in range(sum(token >= 0 for token in run)):
            expected = by_hand(target, run[:position], PENALISED)
            np.testing.assert_allclose(laws[row, position].numpy(), expected, rtol=1e-12)


def test_no_prefixes_and_no_runs(target):
    forced = TeacherForced(target, PROMPT, SamplingSettings())
    assert forced(np.zeros((0, 2), np.int64)).shape == (0, V)
    assert forced.of_emitted(torch.zeros((0, 2), dtype=torch.long)).shape == (0, 2)


def test_random_transforms_are_averaged_over_their_coins(target):
    settings = SamplingSettings(xtc_probability=0.25, xtc_threshold=0.1)
    law = TeacherForced(target, PROMPT, settings)(np.array([[2]]))[0]
    logits = target.logits[target.context_after([*PROMPT, 2])][None]
    outcomes = XTC(0.25, 0.1).outcomes(torch.tensor([[*PROMPT, 2]]), logits)
    np.testing.assert_allclose(law, sum(w * row.softmax(-1)[0].numpy() for w, row in outcomes))
    assert not np.allclose(law, logits.softmax(-1)[0].numpy())


class TestOfEmitted:
    SETTINGS = SamplingSettings(top_k=2)

    @pytest.mark.parametrize("rows", [1024, 4])
    def test_probabilities_of_the_tokens_themselves(self, target, rows):
        runs = torch.tensor(list(itertools.product(range(V), range(V), (-1,))))
        forced = TeacherForced(target, PROMPT, self.SETTINGS, rows)
        found = forced.of_emitted(runs)[:, :2]
        laws = forced.along(runs)[:, :2]
        assert torch.equal(found, laws.gather(2, runs[:, :2, None]).squeeze(2))
        assert 0 < int((found[:, 0] == 0).sum()) < len(runs)

    def test_a_raised_logit_moves_only_its_own_token(self, target):
        logits = target.logits[target.context_after(PROMPT)]
        third = int(logits.argsort(descending=True)[2])
        gap = float(logits.sort(descending=True).values[1] - logits[third])
        forced = TeacherForced(target, PROMPT, self.SETTINGS)
        run = torch.tensor([[third]])
        assert forced.of_emitted(run) == 0
        assert forced.of_emitted(run, 0.99 * gap) == 0
        assert forced.of_emitted(run, 1.01 * gap) > 0.1

    def test_a_raised_logit_does_not_bring_back_what_is_masked(self, target):
        settings = SamplingSettings(logit_bias={0: -float("inf")})
        forced = TeacherForced(target, PROMPT, settings)
        assert forced.of_emitted(torch.tensor([[0]]), 50.0) == 0


def test_a_real_model_gives_what_its_table_says(target):
    model = as_language_model(GlassBoxModel.from_table(target))
    prefixes = np.array([[0, 1], [4, 4], [2, 3]])
    ours = TeacherForced(model, PROMPT, SamplingSettings())(prefixes)
    expected = TeacherForced(target, PROMPT, SamplingSettings())(prefixes)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_one_token_vocabulary():
    forced = TeacherForced(TableModel.random(1, 1, seed=0), (0,), SamplingSettings())
    assert forced(np.zeros((2, 3), np.int64)).tolist() == [[1.0], [1.0]]
