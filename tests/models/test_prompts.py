import pytest
import torch

from specverify.errors import UsageError
from specverify.models.prompts import check_block, check_roll_back, prompt_lengths, strip_padding


def test_lengths_and_alignment_of_left_padded_prompts():
    ids = torch.tensor([[-1, -1, 4], [99, 0, 1], [2, 3, 4]])
    mask = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 1, 1]])
    lengths = prompt_lengths(ids, mask, 5)
    assert lengths.tolist() == [1, 2, 3]
    assert strip_padding(ids, lengths).tolist() == [[4, 0, 0], [0, 1, 0], [2, 3, 4]]


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ([1, 2], None, "shape \\[B, T\\]"),
        ([[1.0, 2.0]], None, "integers"),
        ([[1, 2]], [[1]], "attention_mask has shape \\[1, 1\\]"),
        ([[1], [1]], [[1], [0]], "prompt 1 is empty"),
        ([[]], None, "prompt 0 is empty"),
        ([[1, 2, 3], [1, 2, 3]], [[1, 1, 1], [1, 0, 1]], "row 1 has a 0 after a 1"),
        ([[1, 2]], [[1, 0]], "padded on the left"),
        ([[1, 5]], None, "prompt 0 holds token id 5.*0 to 4"),
        ([[-1, 1]], None, "token id -1"),
        ([[1, 2, 3, 4]], None, "would hold 4 tokens, but the model's window is 3"),
    ],
)
def test_bad_prompts_are_refused_with_the_reason(ids, mask, message):
    ids = torch.tensor(ids) if ids != [[]] else torch.zeros(1, 0, dtype=torch.long)
    mask = None if mask is None else torch.tensor(mask)
    with pytest.raises(UsageError, match=message):
        prompt_lengths(ids, mask, 5, window=3)


def test_a_block_reads_only_what_is_counted():
    tokens = torch.tensor([[1, -1], [2, 3]])
    counts, read = check_block(tokens, torch.tensor([1, 2]), torch.tensor([0, 0]), 4, 2)
    assert counts.tolist() == [1, 2]
    assert read.tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize(
    ("tokens", "counts", "message"),
    [
        ([[1, 2]], None, "shape \\[2, n\\]"),
        ([[1, 2], [1, 2]], [1], "shape \\[2\\]"),
        ([[1, 2], [1, 2]], [1, 3], "between 0 and 2"),
        ([[1, 2], [1, 2]], [1, -1], "between 0 and 2"),
        ([[1, 2], [1, -1]], None, "row 1 is fed token id -1"),
        ([[1, 2], [1, 4]], None, "token id 4.*share a vocabulary"),
        ([[1, 2], [1, 2]], None, "row 1 would hold 5 tokens, but the model's window is 4"),
    ],
)
def test_bad_blocks_are_refused_with_the_reason(tokens, counts, message):
    counts = None if counts is None else torch.tensor(counts)
    with pytest.raises(ValueError, match=message):
        check_block(torch.tensor(tokens), counts, torch.tensor([0, 3]), 4, 4)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1], "shape \\[2\\]"),
        ([2, 4], "row 1 holds 3 tokens and cannot be rolled back to 4"),
        ([-1, 3], "row 0 holds 2 tokens and cannot be rolled back to -1"),
    ],
)
def test_impossible_roll_backs_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        check_roll_back(torch.tensor(lengths), torch.tensor([2, 3]))
