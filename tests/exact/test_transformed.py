import math

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    TemperatureLogitsWarper,
)

from specverify.errors import UsageError
from specverify.exact.transformed import transformed
from specverify.transforms import XTC, RepetitionPenalty, TopK

LOGITS = np.log([0.5, 0.3, 0.2])


def model(prefixes):
    return np.tile(LOGITS, (len(prefixes), 1))


def test_every_row_has_the_prompt_and_its_own_prefix_as_history():
    seen = []

    def spy(histories, logits):
        seen.append(histories.tolist())
        return logits

    rows = np.asarray(transformed(model, spy, (2, 1))(np.array([[0], [1]])))
    assert seen == [[[2, 1, 0], [2, 1, 1]]]
    assert rows == pytest.approx(np.exp([LOGITS, LOGITS]))


def test_history_counts():
    rows = np.asarray(transformed(model, RepetitionPenalty(2.0), (2,))(np.array([[0], [1]])))
    for row, seen in zip(rows, ({0, 2}, {1, 2}), strict=True):
        weights = [math.exp(z * 2 if token in seen else z) for token, z in enumerate(LOGITS)]
        assert row == pytest.approx(np.array(weights) / sum(weights))


def test_masked_tokens_have_probability_zero_exactly():
    rows = np.asarray(transformed(model, TopK(2))(np.zeros((1, 0), np.int64)))
    assert rows[0, 2] == 0
    assert rows[0] == pytest.approx([0.625, 0.375, 0])


def test_a_list_of_processors():
    both = LogitsProcessorList([NoRepeatNGramLogitsProcessor(1), TemperatureLogitsWarper(0.5)])
    rows = np.asarray(transformed(model, both, (0,))(np.zeros((1, 0), np.int64)))
    assert rows[0] == pytest.approx([0, 9 / 13, 4 / 13])


def test_a_random_transform_is_averaged_without_a_coin():
    before = torch.random.get_rng_state()
    rows = np.asarray(transformed(model, XTC(0.25, 0.25))(np.zeros((1, 0), np.int64)))
    assert rows[0] == pytest.approx(0.75 * np.exp(LOGITS) + 0.25 * np.array([0, 0.6, 0.4]))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_model_is_not_changed_by_a_transform_that_works_in_place():
    table = np.tile(LOGITS, (1, 1))

    def in_place(histories, logits):
        histories.zero_()
        return logits.mul_(2)

    prefixes = np.array([[1]])
    transformed(lambda _: table, in_place)(prefixes)
    assert table.tolist() == [LOGITS.tolist()]
    assert prefixes.tolist() == [[1]]


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda _, z: z[:, :2], r"\[1, 2\] for logits of shape \[1, 3\]"),
        (lambda _, z: None, "NoneType"),
        (lambda _, z: z * math.nan, "history .*nan"),
        (lambda _, z: z - math.inf, "history .*-inf"),
    ],
)
def test_what_is_no_distribution_is_refused(transform, said):
    with pytest.raises(UsageError, match=said):
        transformed(model, transform)(np.zeros((1, 0), np.int64))
