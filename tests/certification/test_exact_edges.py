"""Edge coins of a rule as a certification asks for them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from specverify.certification.exact_edges import EdgeCoins, edge_coins_of
from specverify.certification.exact_rounds import exact_rounds
from specverify.exact.coins import Coins
from specverify.subjects.protocols import Capabilities, Subject
from tests.certification.written_rules import coins, emitted, last, token_rule

CASES = {case.id.removeprefix("exact/"): case for case in exact_rounds()}
ZEROS = CASES["zeros-float64"].round
SMALL = CASES["random-V3-K1-float64"].round


def edges(call: Callable[..., Any], round: Any = SMALL, **declared: Any) -> EdgeCoins:
    return edge_coins_of(Subject("mine", "rule", call, Capabilities(**declared)), round, 0, 60.0)


def kinds(found: EdgeCoins) -> set[str]:
    assert found.unknown is None
    return {entry.kind for entry in found.outcomes}


def closed(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    """Accepts where u <= p / q."""
    index = tokens[..., None]
    ratio = p[:, :-1].gather(2, index)[..., 0] / q.gather(2, index)[..., 0]
    drawn = torch.rand(ratio.shape, generator=generator)
    accepted = (drawn <= ratio).long().cumprod(1).sum(1)
    weights = torch.cat([(p[:, :-1] - q).clamp(min=0), p[:, -1:]], 1)
    return emitted(tokens, accepted, last(weights[torch.arange(len(p)), accepted], generator))


@pytest.mark.parametrize("batch", [True, False])
def test_a_right_rule_is_right_at_every_coin(batch: bool) -> None:
    found = edges(token_rule(), batch=batch)
    assert kinds(found) == {"right"}
    assert {"u = 0", "largest below 1", "threshold"} <= {entry.coin for entry in found.outcomes}


def test_a_rule_without_a_generator() -> None:
    rule = token_rule(lambda ratio: torch.rand_like(ratio), lambda w: torch.multinomial(w, 1)[:, 0])
    assert kinds(edges(rule, generator=False)) == {"right"}


def test_a_closed_comparison_is_found_with_its_coin() -> None:
    found = edges(closed, ZEROS)
    assert kinds(found) == {"right", "finding"}
    for entry in found.outcomes:
        if entry.kind == "finding":
            assert (entry.coin, entry.line != "") == ("u = 0", True)
            assert 0 < entry.mass < 2**-24
            assert "which the target cannot" in entry.example.detail


def test_a_path_of_one_coin_that_raises_is_known_by_steering() -> None:
    """A draw by thresholds that finds no token for the largest coin, and looks it up."""

    def inverse(weights: Tensor, generator: Generator) -> Tensor:
        ends = weights.cumsum(1) / weights.sum(1, keepdim=True) * (1 - 2**-52)
        uniform = torch.rand(len(weights), 1, dtype=torch.float64, generator=generator)
        drawn = torch.searchsorted(ends, uniform, right=True)
        return torch.arange(weights.shape[1]).expand(len(weights), -1).gather(1, drawn)[:, 0]

    (entry,) = [e for e in edges(token_rule(last=inverse)).outcomes if e.kind != "right"]
    assert (entry.kind, entry.coin) == ("crash", "any")
    assert 0 < entry.mass < 2**-50
    assert "raised RuntimeError: index 3 is out of bounds" in entry.example.detail


def test_gumbel_noise_of_a_zero_is_found() -> None:
    """Its logarithm is infinite, so that the token of that coin cannot win."""

    def gumbel(weights: Tensor, generator: Generator) -> Tensor:
        uniform = torch.rand(weights.shape, dtype=torch.float32, generator=generator)
        return (weights.log() - (-uniform.log()).log()).argmax(1)

    found = [e for e in edges(token_rule(last=gumbel)).outcomes if e.kind != "right"]
    assert all((e.kind, e.coin) == ("finding", "u = 0") for e in found)
    assert found


def test_what_cannot_be_followed_says_why() -> None:
    def read(ratio: Tensor, generator: Generator) -> Tensor:
        drawn = coins(ratio, generator)
        drawn.data_ptr()
        return drawn

    found = edges(token_rule(read))
    assert found.outcomes == ()
    assert found.unknown is not None
    assert found.unknown.startswith("its coins cannot be chosen one by one: ")


def test_a_rule_that_is_handed_its_coins_is_not_asked() -> None:
    declared = Coins({"accept": "[B,K]", "final": "[B]"}, "float64", "numpy")
    found = edges(len, coins=declared, coin_dtype="float64")
    assert found.unknown == "it is handed its coins, all of whose values are told apart"
