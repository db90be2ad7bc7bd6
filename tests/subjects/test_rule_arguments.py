"""What a rule does to its arguments: it works on copies, and is told."""

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from specverify.exact.coins import Coins
from specverify.subjects.calling import call_rule
from specverify.subjects.protocols import Capabilities, Subject

torch.set_num_threads(1)
LARGE = 3_000
"""Rows of which the probabilities have more entries than are compared after every call."""


def findings(rule: Callable[..., Tensor], rows: int, **declared: object) -> tuple[str, ...]:
    """Of a call, after which the arguments are what they were."""
    drafted = torch.zeros(rows, 2, dtype=torch.long)
    q, p = torch.full((rows, 2, 3), 1 / 3), torch.full((rows, 3, 3), 1 / 3)
    handed = tuple(tensor.clone() for tensor in (drafted, q, p))
    subject = Subject("mine", "rule", rule, Capabilities(**declared))
    call = call_rule(subject, *handed, Generator().manual_seed(0))
    for now, before in zip(handed, (drafted, q, p), strict=True):
        assert torch.equal(now, before)
    return call.findings


def emitted(drafted: Tensor) -> Tensor:
    return torch.cat([drafted, drafted[:, :1]], 1)


def subtracts(drafted: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    p[:, :-1] -= q
    return emitted(drafted)


def writes_past_torch(drafted: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    q.numpy()[...] = 0
    return emitted(drafted)


def drafts_anew(drafted: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    out = emitted(drafted)
    drafted.fill_(1)
    return out


def in_place_on_a_copy(drafted: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    p.clone().sub_(1)
    return emitted(drafted)


def writes_and_takes_back(drafted: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    p.neg_().neg_()
    return emitted(drafted)


def view(drafted: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    return drafted[:, :1].expand(-1, 3)


@pytest.mark.parametrize("rows", [1, 4, LARGE])
@pytest.mark.parametrize("batch", [True, False])
def test_an_argument_that_is_changed_is_a_finding(rows: int, batch: bool) -> None:
    rows = min(rows, rows if batch else 4)
    for rule, name in ((subtracts, "target_probs"), (drafts_anew, "draft_tokens")):
        assert findings(rule, rows, batch=batch) == (
            f"changes {name} in place, which the caller may still need",
        )


def test_what_is_written_past_torch_shows_in_small_arguments() -> None:
    expected = ("changes draft_probs in place, which the caller may still need",)
    assert findings(writes_past_torch, 4) == expected
    assert findings(writes_past_torch, LARGE) == ()
    with torch.inference_mode():  # where nothing is counted
        assert findings(subtracts, LARGE) == (
            "changes target_probs in place, which the caller may still need",
        )


@pytest.mark.parametrize("rule", [in_place_on_a_copy, writes_and_takes_back])
@pytest.mark.parametrize("rows", [4, LARGE])
def test_arguments_that_are_what_they_were_are_no_finding(
    rule: Callable[..., Tensor], rows: int
) -> None:
    assert findings(rule, rows) == ()


def test_a_kernel_on_arrays_is_watched_too() -> None:
    def kernel(drafted, q, p, *, accept, final):
        p[...] = 0
        return emitted(torch.from_numpy(drafted))

    coins = Coins({"accept": "[B,K]", "final": "[B]"}, "float32", "numpy")
    assert findings(kernel, 4, coins=coins) == (
        "changes target_probs in place, which the caller may still need",
    )


def test_a_view_of_the_draft_is_a_finding() -> None:
    assert findings(view, 4) == ("returns a view of draft_tokens, which changes with them",)
