"""Coins of a transform followed row by row, together, and one row a call where it must be."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from specverify.certification.steered_rows import SteeredRows, keywords
from specverify.errors import OutsideRandomness, SubjectError
from specverify.subjects.protocols import Capabilities, Subject
from specverify.transforms import XTC

V = 5
ALONE = 6
PARAMETERS = {"probability": 0.3, "threshold": 0.15}


def rows(count: int) -> tuple[Tensor, Tensor]:
    """Histories and logits of which the coin takes a token each, the likelier of two."""
    others = torch.tensor([1.0, 0.9, -3.0, -3.5, -4.0], dtype=torch.float64)
    shift = torch.arange(count)[:, None]
    logits = others[(torch.arange(V) + shift) % V] + 0.01 * shift * (torch.arange(V) > 2)
    return torch.zeros(count, 3, dtype=torch.long), logits


def mixture(ids: Tensor, logits: Tensor) -> Tensor:
    outcomes = XTC(**PARAMETERS).outcomes(ids, logits)
    return sum((weight * made.softmax(-1) for weight, made in outcomes), torch.tensor(0.0))


def steered(factory: Callable[..., Any], **capabilities: Any) -> SteeredRows:
    subject = Subject("mine", "transform", factory, Capabilities(**capabilities), reference="xtc")
    return SteeredRows(subject, PARAMETERS, 0, 60.0)


class OneCoin(XTC):
    """One for all rows of a call."""

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        coin = torch.rand((), dtype=torch.float64, generator=self.generator)
        return logits.masked_fill(self._excluded(logits) & (coin < self.probability), -torch.inf)


class CoinOfFactory(XTC):
    """Tossed before there are rows."""

    def __init__(self, probability: float, threshold: float, generator: Generator) -> None:
        super().__init__(probability, threshold)
        self.heads = torch.rand((), dtype=torch.float64, generator=generator) < probability

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        return torch.where(self.heads, self.outcomes(input_ids, logits)[1][1], logits)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 20])
def test_each_row_gets_its_mixture(count: int) -> None:
    """Counts are those of other dimensions too: the tokens, the history."""
    ids, logits = rows(count)
    found = steered(XTC)
    assert found.each(ids, logits, ALONE).numpy() == pytest.approx(
        mixture(ids, logits).numpy(), abs=1e-14
    )
    assert not found.findings
    assert not torch.allclose(mixture(ids, logits), logits.softmax(-1), atol=0.05)


@pytest.mark.parametrize("factory", [OneCoin, CoinOfFactory])
def test_rows_that_share_a_coin_are_right_alone_and_wrong_together(
    factory: Callable[..., Any],
) -> None:
    ids, logits = rows(20)
    found = steered(factory)
    alone = found.each(ids, logits, ALONE)
    wanted = mixture(ids, logits)
    assert len(alone) == ALONE
    assert alone.numpy() == pytest.approx(wanted[:ALONE].numpy(), abs=1e-14)
    joint = found.together(ids[:2], logits[:2])
    independent = wanted[0][:, None] * wanted[1]
    assert float(joint.sum()) == pytest.approx(1.0)
    assert joint.sum(1).numpy() == pytest.approx(wanted[0].numpy(), abs=1e-14)
    assert float((joint - independent).abs().sum()) / 2 > 0.1


def test_two_rows_with_coins_of_their_own_are_independent() -> None:
    ids, logits = rows(2)
    wanted = mixture(ids, logits)
    joint = steered(XTC).together(ids, logits)
    assert joint.numpy() == pytest.approx((wanted[0][:, None] * wanted[1]).numpy(), abs=1e-14)


def test_one_that_declares_no_generator_gets_none() -> None:
    class Global(XTC):
        def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
            coins = torch.rand(len(logits), 1, dtype=torch.float64)
            excluded = self.outcomes(input_ids, logits)[1][1]
            return torch.where(coins < self.probability, excluded, logits)

    ids, logits = rows(6)
    found = steered(Global, generator=False)
    assert found.each(ids, logits, ALONE).numpy() == pytest.approx(
        mixture(ids, logits).numpy(), abs=1e-14
    )
    source = Generator()
    assert keywords(found.subject, PARAMETERS, source) == PARAMETERS
    assert keywords(steered(XTC).subject, PARAMETERS, source)["generator"] is source


def test_coins_of_numpy_are_refused() -> None:
    class Numpy(XTC):
        def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
            heads = bool(np.random.random() < self.probability)
            return self.outcomes(input_ids, logits)[heads][1]

    with pytest.raises(OutsideRandomness):
        steered(Numpy).each(*rows(4), ALONE)


def test_one_that_fails_for_some_coins_only() -> None:
    class Fails(XTC):
        def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
            if bool(torch.rand((), dtype=torch.float64, generator=self.generator) < 0.25):
                raise RuntimeError("no")
            return logits

    found = steered(Fails)
    with pytest.raises(SubjectError, match=r"with probability 0\.25 .*RuntimeError: no"):
        found.each(*rows(4), ALONE)
    with pytest.raises(SubjectError, match=r"with probability 0\.25 .*RuntimeError: no"):
        found.together(*rows(2))
