import math

import pytest
import torch
from torch.testing import assert_close
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from specverify.errors import SettingsError
from specverify.transforms import FrequencyPenalty, PresencePenalty, RepetitionPenalty

HISTORY = torch.tensor([[0, 1, 1, 3, 3, 3]])
LOGITS = torch.tensor([[2.0, -1.0, 0.5, 4.0, -math.inf]])


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 4.0])
def test_repetition_equals_transformers(histories, scores, penalty):
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(histories, scores)
    assert torch.equal(RepetitionPenalty(penalty=penalty)(histories, scores), theirs)


def test_repetition_sees_the_prompt_and_does_not_compound():
    result = RepetitionPenalty(2.0)(HISTORY, LOGITS)
    assert result.tolist() == [[1.0, -2.0, 0.5, 2.0, -math.inf]]


def test_repetition_depends_on_the_level_of_the_logits():
    # The trap of applying it to log-probabilities: the law changes with a constant shift.
    raw = torch.tensor([[1.0, 2.0, 3.0]])
    history = torch.tensor([[0]])
    penalty = RepetitionPenalty(2.0)
    laws = [penalty(history, logits).softmax(-1) for logits in (raw, raw.log_softmax(-1))]
    assert (laws[0] - laws[1]).abs().sum() > 0.02


def test_frequency_counts_output_tokens_only():
    result = FrequencyPenalty(penalty=0.5, prompt_length=2)(HISTORY, LOGITS)
    assert result.tolist() == [[2.0, -1.5, 0.5, 2.5, -math.inf]]


def test_presence_counts_output_tokens_once():
    result = PresencePenalty(penalty=0.5, prompt_length=2)(HISTORY, LOGITS)
    assert result.tolist() == [[2.0, -1.5, 0.5, 3.5, -math.inf]]


@pytest.mark.parametrize("penalty", [FrequencyPenalty, PresencePenalty])
def test_a_bare_prompt_is_not_penalised(penalty):
    assert torch.equal(penalty(1.0, prompt_length=6)(HISTORY, LOGITS), LOGITS.double())


@pytest.mark.parametrize("penalty", [FrequencyPenalty, PresencePenalty])
def test_output_penalties_ignore_a_shift_of_the_logits(penalty, histories, scores):
    plain, shifted = (penalty(0.7)(histories, scores + s).softmax(-1) for s in (0.0, 5.0))
    assert_close(plain, shifted, atol=1e-12, rtol=0)


def test_negative_penalties_encourage():
    assert FrequencyPenalty(-1.0)(HISTORY, LOGITS)[0, 3] == 7.0


@pytest.mark.parametrize(
    "penalty", [RepetitionPenalty(2.0), FrequencyPenalty(2.0), PresencePenalty(2.0)]
)
def test_ids_beyond_the_logits_are_ignored(penalty):
    history, logits = torch.tensor([[9, 3, 7]]), torch.tensor([[2.0, -1.0, 0.5]])
    assert torch.equal(penalty(history, logits), logits.double())


@pytest.mark.parametrize(
    ("build", "value"),
    [
        (lambda: RepetitionPenalty(0.0), "0.0"),
        (lambda: RepetitionPenalty(-1.0), "-1.0"),
        (lambda: FrequencyPenalty(math.inf), "inf"),
        (lambda: PresencePenalty(math.nan), "nan"),
        (lambda: FrequencyPenalty(1.0, prompt_length=-1), "prompt_length=-1"),
    ],
)
def test_bad_parameters_are_refused(build, value):
    with pytest.raises(SettingsError, match=value):
        build()
