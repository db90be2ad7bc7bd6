"""Reported drafts: shapes, ids and counts, each with its own message."""

import pytest
import torch

from specverify.decoding.output import DecoderOutput, joined
from specverify.errors import SubjectError
from specverify.subjects.checks import decoder_output

TOKENS = torch.tensor([[0, 1, 2], [2, -1, -1]])
DRAFTS = torch.tensor([[[0, 1], [2, -1]], [[1, 1], [-1, -1]]])
PROBS = torch.full((2, 2, 2, 3), 1 / 3)
DRAFTED = torch.tensor([[2, 1], [2, -1]])


def checked(**reported) -> DecoderOutput:
    return decoder_output(DecoderOutput(TOKENS, **reported), 2, 3, what="output")


def test_right_ones_pass_as_copies():
    tokens, probs = DRAFTS.clone(), PROBS.clone()
    output = checked(draft_tokens=tokens, draft_probs=probs, drafted=DRAFTED)
    tokens.fill_(7)
    probs.fill_(7)
    assert torch.equal(output.draft_tokens, DRAFTS)
    assert torch.equal(output.draft_probs, PROBS)


def test_tokens_may_be_reported_alone():
    output = checked(draft_tokens=DRAFTS.int())
    assert output.draft_tokens.dtype == torch.long
    assert output.draft_probs is None


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        ({"draft_probs": PROBS}, "has draft_probs and no draft_tokens"),
        ({"draft_tokens": DRAFTS[0]}, r"is torch.int64 \[2, 2\]; return an integer tensor"),
        ({"draft_tokens": DRAFTS[:1]}, r"\[2, rounds, K\]"),
        ({"draft_tokens": DRAFTS.double()}, "is torch.float64"),
        ({"draft_tokens": [[0]]}, "is a list"),
        ({"draft_tokens": DRAFTS + 2}, r"\[0, 0, 1\] is 3, but token ids run from 0 to 2"),
        ({"draft_tokens": DRAFTS.flip(2)}, r"\[0, 1, 0\] is -1 and a token follows it"),
        (
            {"draft_tokens": DRAFTS, "drafted": torch.tensor([[2, 2], [2, -1]])},
            r"draft_tokens\[0, 1\] holds 1 tokens and output.drafted\[0, 1\] is 2",
        ),
        ({"draft_tokens": DRAFTS, "draft_probs": PROBS[..., :2]}, r"distributions \[2, 2, 2, 3\]"),
        ({"draft_tokens": DRAFTS, "draft_probs": PROBS.long()}, "is torch.int64"),
        ({"draft_tokens": DRAFTS, "draft_probs": "raw"}, "is a str"),
    ],
)
def test_wrong_ones_are_told_what_is_wrong(reported, said):
    with pytest.raises(SubjectError, match=said):
        checked(**reported)


def test_fewer_rounds_than_counted_are_rounds_without_drafts():
    counted = torch.tensor([[2, 1, 0], [2, 0, 0]])
    assert checked(draft_tokens=DRAFTS, drafted=counted).draft_tokens is not None


def test_joined_outputs_are_padded_in_every_dimension():
    first = DecoderOutput(TOKENS, draft_tokens=DRAFTS, draft_probs=PROBS)
    second = DecoderOutput(
        TOKENS[:, :1],
        draft_tokens=torch.tensor([[[1, 0, 2]], [[2, 2, 2]]]),
        draft_probs=torch.ones(2, 1, 3, 3),
    )
    together = joined([first, second])
    assert together.draft_tokens.shape == (4, 2, 3)
    assert together.draft_tokens[0].tolist() == [[0, 1, -1], [2, -1, -1]]
    assert together.draft_tokens[2].tolist() == [[1, 0, 2], [-1, -1, -1]]
    assert together.draft_probs.shape == (4, 2, 3, 3)
    assert torch.equal(together.draft_probs[:2, :, :2], PROBS)
    assert not together.draft_probs[2:, 1:].any()
    assert joined([first, DecoderOutput(TOKENS)]).draft_probs is None
