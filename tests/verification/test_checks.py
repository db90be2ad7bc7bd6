import re

import pytest
import torch

from specverify.errors import UsageError
from specverify.verification import VERIFICATIONS, get_verification
from specverify.verification.checks import prepare

HALVES = torch.full((2, 3, 2), 0.5, dtype=torch.float64)


def arguments(**changes):
    valid = {
        "draft_tokens": torch.tensor([[0, 1], [1, -1]]),
        "draft_probs": HALVES[:, :2].clone(),
        "target_probs": HALVES.clone(),
        "num_draft_tokens": torch.tensor([2, 1]),
    }
    return valid | changes


def changed(name, row, position, values):
    tensor = arguments()[name]
    tensor[row, position] = torch.tensor(values, dtype=tensor.dtype)
    return {name: tensor}


def test_valid_input_passes_as_it_is():
    inputs = prepare(**arguments())
    assert inputs.counts.tolist() == [2, 1]
    assert inputs.offered.tolist() == [[True, True], [True, False]]
    assert inputs.index.tolist() == [[0, 1], [1, 0]]
    assert torch.equal(inputs.p, HALVES)


def test_counts_default_to_the_whole_block():
    inputs = prepare(torch.tensor([[0, 1]]), None, HALVES[:1], None)
    assert inputs.counts.tolist() == [2]
    assert inputs.q_drafted.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (changed("target_probs", 1, 0, [torch.nan, 1.0]), "target_probs[1, 0] is NaN at token 0"),
        (changed("target_probs", 0, 2, [-0.5, 1.5]), "target_probs[0, 2] is negative at token 0"),
        (changed("target_probs", 0, 1, [0.5, 0.6]), "target_probs[0, 1] sums to 1.1"),
        (changed("target_probs", 0, 1, [0.0, 0.0]), "target_probs[0, 1] sums to 0.0"),
        (changed("target_probs", 0, 1, [0.0, torch.inf]), "target_probs[0, 1] sums to inf"),
        (changed("draft_probs", 1, 0, [0.5, 0.4]), "draft_probs[1, 0] sums to 0.9"),
        (changed("draft_probs", 0, 1, [2.0, -1.0]), "draft_probs[0, 1] is negative at token 1"),
        (
            changed("draft_tokens", 0, 1, 2),
            "draft_tokens[0, 1] is 2, outside the vocabulary 0 to 1",
        ),
        (changed("draft_tokens", 1, 0, -1), "draft_tokens[1, 0] is -1"),
        ({"num_draft_tokens": torch.tensor([3, 1])}, "num_draft_tokens[0] is 3"),
        ({"num_draft_tokens": torch.tensor([2, -1])}, "num_draft_tokens[1] is -1"),
        ({"num_draft_tokens": torch.tensor([2])}, "num_draft_tokens has shape [1]"),
        ({"num_draft_tokens": torch.tensor([2.0, 1.0])}, "num_draft_tokens has dtype"),
        ({"draft_tokens": torch.tensor([0, 1])}, "draft_tokens has shape [2]"),
        ({"draft_tokens": torch.zeros(2, 2)}, "draft_tokens has dtype torch.float32"),
        ({"draft_tokens": torch.zeros(2, 2).bool()}, "draft_tokens has dtype torch.bool"),
        ({"target_probs": HALVES[:, :2]}, "target_probs has shape [2, 2, 2]"),
        ({"target_probs": HALVES[..., :0]}, "vocabulary of 0"),
        ({"target_probs": HALVES[0]}, "target_probs has shape [3, 2]"),
        ({"target_probs": HALVES.long()}, "target_probs has dtype torch.int64"),
        ({"draft_probs": HALVES}, "draft_probs has shape [2, 3, 2]"),
    ],
)
@pytest.mark.parametrize("name", VERIFICATIONS)
def test_impossible_input_is_refused_with_its_place(name, changes, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        VERIFICATIONS[name](**arguments(**changes))


@pytest.mark.parametrize("name", VERIFICATIONS)
def test_what_is_not_offered_may_be_anything(name):
    """Rows and ids behind a row's own count are never looked at: here NaN, and an alien id."""
    changes = arguments()
    changes["draft_tokens"][1, 1] = 99
    changes["draft_probs"][1, 1] = torch.nan
    changes["target_probs"][1, 2] = torch.nan
    verified = VERIFICATIONS[name](**changes, generator=torch.Generator().manual_seed(0))
    assert bool((verified.accepted <= changes["num_draft_tokens"]).all())
    assert verified.tokens.max() <= 1


@pytest.mark.parametrize(
    ("dtype", "excess", "fits"),
    [
        (torch.float64, 1e-12, True),
        (torch.float64, 1e-7, False),
        (torch.float32, 1e-5, True),
        (torch.float32, 1e-3, False),
        (torch.float16, 2e-3, True),
        (torch.float16, 5e-2, False),
        (torch.bfloat16, 8e-3, True),
        (torch.bfloat16, 1e-1, False),
    ],
)
def test_rounding_of_the_dtype_is_tolerated_and_no_more(dtype, excess, fits):
    probs = torch.tensor([[[0.5, 0.5 + excess]]], dtype=torch.float64).to(dtype)
    tokens = torch.empty((1, 0), dtype=torch.long)
    if fits:
        total = prepare(tokens, None, probs, None).p.sum().item()
        assert total == pytest.approx(1.0, abs=1e-15 if dtype != torch.float64 else 2 * excess)
    else:
        with pytest.raises(UsageError, match="sums to"):
            prepare(tokens, None, probs, None)


def test_softmax_of_a_large_vocabulary_passes_in_every_dtype():
    logits = 3 * torch.randn((2, 1, 150_000), generator=torch.Generator().manual_seed(0))
    tokens = torch.empty((2, 0), dtype=torch.long)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        prepare(tokens, None, logits.double().softmax(-1).to(dtype), None)
        prepare(tokens, None, logits.to(dtype).softmax(-1), None)


def test_unchecked_rules_look_at_shapes_alone():
    rule = get_verification("token").unchecked()
    wrong = arguments(**changed("target_probs", 0, 1, [0.5, 0.6]))
    rule(**wrong, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UsageError, match="num_draft_tokens has shape"):
        rule(**arguments(num_draft_tokens=torch.tensor([2])))


@pytest.mark.parametrize("name", VERIFICATIONS)
def test_unchecked_rules_return_the_same_tokens(name):
    rule = get_verification(name)
    results = [
        r(**arguments(), generator=torch.Generator().manual_seed(3))
        for r in (rule, rule.unchecked())
    ]
    assert torch.equal(results[0].tokens, results[1].tokens)


def test_unknown_verification_lists_those_there_are():
    with pytest.raises(UsageError, match=r"'tokn'.*greedy, token, block, match"):
        get_verification("tokn")


def test_registry_names_its_rules():
    assert {name: rule.name for name, rule in VERIFICATIONS.items()} == {
        name: name for name in ("greedy", "token", "block", "match")
    }
