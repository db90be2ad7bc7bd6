"""Branching, forcing, feeding coins and enumeration say the same of random rules."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.exact.coins import Coins, fed_distribution
from specverify.exact.enumerate import round_distribution
from specverify.exact.forcing import branched_distribution, forced_distribution
from specverify.exact.joint import total_variation
from specverify.exact.round import Round
from specverify.verification import get_verification

LIMIT = 1e-14


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Small rounds whose rows have zeros, ties and one-hot rows among them."""
    size, width = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    if size == 4:
        width = min(width, 1)
    entry = st.sampled_from([0, 0, 1, 1, 2, 5, 1000])
    row = st.lists(entry, min_size=size, max_size=size).filter(any)
    equal = draw(st.booleans())
    tables: list[list[np.ndarray]] = []
    for depths in (width + 1, width):
        table = []
        for depth in range(depths):
            rows = draw(st.lists(row, min_size=size**depth, max_size=size**depth))
            table.append(np.array(rows, np.float64))
        tables.append(table)
    if equal and width:
        tables[1][0] = tables[0][0].copy()

    def conditional(table: list[np.ndarray], prefixes: np.ndarray) -> np.ndarray:
        depth = prefixes.shape[1]
        chosen = table[depth][prefixes @ size ** np.arange(depth - 1, -1, -1)]
        return chosen / chosen.sum(1, keepdims=True)

    return Round(partial(conditional, tables[0]), partial(conditional, tables[1]), size, width)


def reference(algorithm: str) -> Callable:
    """The reference rule as a call."""
    verify = get_verification(algorithm)
    return lambda tokens, q, p, g: verify(tokens, q, p, g).tokens


def decided(algorithm, tokens, q, p):
    """Acceptance thresholds [B, K] and, after i accepted tokens, weights [B, K + 1, V]."""
    width = tokens.shape[1]
    chosen = tokens.unsqueeze(2)
    ratio = (p[:, :width].gather(2, chosen) / q.gather(2, chosen)).squeeze(2)
    weight = [torch.ones(len(tokens), dtype=p.dtype)]
    for i in range(width):
        weight.append((weight[-1] * ratio[:, i]).clamp(max=1))
    w = torch.stack(weight, 1)
    scale = w[:, :width] if algorithm == "block" else torch.ones_like(w[:, :width])
    left = (scale.unsqueeze(2) * p[:, :width] - q).clamp(min=0)
    if algorithm == "token" or not width:
        return ratio, torch.cat([left, p[:, width:]], 1)
    s = left.sum(2)
    odds = torch.where(s + 1 - w[:, :width] > 0, s / (s + 1 - w[:, :width]), 1.0)
    return torch.cat([odds[:, 1:], w[:, width:]], 1), torch.cat([left, p[:, width:]], 1)


def accepted(algorithm, success):
    """How many tokens the coins accept."""
    if algorithm == "token":
        return success.long().cumprod(1).sum(1)
    positions = torch.arange(1, success.shape[1] + 1)
    padded = torch.cat([torch.zeros(len(success), 1, dtype=torch.long), success * positions], 1)
    return padded.amax(1)


def emitted(tokens, count, last):
    padded = torch.cat([tokens, last.unsqueeze(1)], 1)
    positions = torch.arange(tokens.shape[1] + 1)
    out = torch.where(positions == count.unsqueeze(1), last.unsqueeze(1), padded)
    return out.masked_fill(positions > count.unsqueeze(1), -1)


def plain(algorithm: str) -> Callable:
    """The rule in plain torch."""

    def rule(tokens, q, p, generator):
        threshold, weights = decided(algorithm, tokens, q, p)
        u = torch.rand(tokens.shape, dtype=p.dtype, generator=generator)
        count = accepted(algorithm, u < threshold)
        law = weights[torch.arange(len(tokens)), count]
        return emitted(tokens, count, torch.multinomial(law, 1, generator=generator)[:, 0])

    return rule


def fed(algorithm: str) -> Callable:
    """The rule with its uniforms as arguments."""

    def rule(tokens, q, p, accept, final):
        threshold, weights = decided(algorithm, tokens, q, p)
        count = accepted(algorithm, accept < threshold)
        law = weights[torch.arange(len(tokens)), count]
        cdf = law.cumsum(1)
        last = (cdf <= final.unsqueeze(1) * cdf[:, -1:]).sum(1)
        return emitted(tokens, count, last.clamp(max=p.shape[2] - 1))

    return rule


@pytest.mark.parametrize("algorithm", ["token", "block"])
@settings(max_examples=8)
@given(round=rounds())
def test_steering_agrees_with_enumeration(algorithm, round):
    expected = round_distribution(algorithm, round)
    for rule in (reference(algorithm), plain(algorithm)):
        for distribution in (forced_distribution, branched_distribution):
            found = distribution(rule, round)
            assert abs(found.total - 1) <= 1e-12
            assert total_variation(found.probabilities, expected) <= LIMIT


@pytest.mark.parametrize("algorithm", ["token", "block"])
@settings(max_examples=6)
@given(round=rounds())
def test_feeding_coins_agrees_with_enumeration(algorithm, round):
    shapes = {"accept": "[B,K]", "final": "[B]"}
    found = fed_distribution(fed(algorithm), round, Coins(shapes))
    expected = round_distribution(algorithm, round)
    assert total_variation(found.probabilities, expected) <= LIMIT
