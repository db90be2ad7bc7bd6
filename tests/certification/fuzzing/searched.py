"""Rules that a search is tried on, and a search of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from specverify.certification.case_records import CaseRecord, SearchRecord
from specverify.certification.fuzzing.limits import Fuzzing
from specverify.certification.fuzzing.run import fuzz_records
from specverify.subjects.protocols import Capabilities, Subject
from tests.certification.written_rules import token_rule

ALPHA = 2.5e-7
DECLARED = Capabilities(coin_dtype="float64")

right = token_rule()


def leaky(weights: Tensor, generator: Generator) -> Tensor:
    """The last token, with a tenth of the mass spread over all tokens."""
    spread = weights + 0.1 * weights.mean(-1, keepdim=True)
    return torch.multinomial(spread, 1, generator=generator)[:, 0]


leaking = token_rule(last=leaky)


def of_seven(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    """Wrong only where the vocabulary is a multiple of 7."""
    return (right if p.shape[2] % 7 else leaking)(tokens, q, p, generator)


def of_ties(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    """Wrong only where the first three draft tokens had one and the same probability."""
    drawn = q.gather(2, tokens[..., None])[:, :3, 0]
    if drawn.shape[1] < 3:
        return right(tokens, q, p, generator)
    tied = (drawn == drawn[:, :1]).all(1)[:, None]
    return torch.where(tied, leaking(tokens, q, p, generator), right(tokens, q, p, generator))


def of_certain(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    """Raises where the target allows one token only."""
    if bool((p == 1).any()):
        raise ValueError("one token only")
    return right(tokens, q, p, generator)


def _numpy(generator: Generator) -> np.random.Generator:
    return np.random.default_rng(int(torch.randint(2**40, (1,), generator=generator)))


def numpy_coins(ratio: Tensor, generator: Generator) -> Tensor:
    """Coins that nothing can steer."""
    return torch.from_numpy(_numpy(generator).random(tuple(ratio.shape)))


def numpy_last(leak: float) -> Callable[[Tensor, Generator], Tensor]:
    """The last token by the inverse of the distribution function."""

    def last(weights: Tensor, generator: Generator) -> Tensor:
        mixed = weights + leak * weights.mean(-1, keepdim=True)
        shares = (mixed / mixed.sum(-1, keepdim=True)).cumsum(-1).numpy()
        drawn = (shares <= _numpy(generator).random((len(shares), 1))).sum(1)
        return torch.from_numpy(np.minimum(drawn, shares.shape[1] - 1))

    return last


unsteerable = token_rule(numpy_coins, numpy_last(0.0))
unsteerable_wrong = token_rule(numpy_coins, numpy_last(0.3))


def sampled_seven(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    """As `of_seven`, where nothing can be steered: quicker, since a sample is one call."""
    return (unsteerable if p.shape[2] % 7 else unsteerable_wrong)(tokens, q, p, generator)


def rule(call: Callable[..., Tensor], **capabilities: object) -> Subject:
    """A rule of a test."""
    declared = {"coin_dtype": "float64", **capabilities}
    return Subject("mine", "rule", call, Capabilities(**declared))  # type: ignore[arg-type]


def search(
    subject: Subject,
    inputs: int,
    *,
    seed: int = 0,
    alpha: float = ALPHA,
    database: Path | None = None,
) -> list[CaseRecord]:
    """The cases of a search for so many inputs."""
    records = fuzz_records(
        subject, Fuzzing(inputs=inputs, database=database), alpha, seed, 60.0, diagnose=False
    )
    return [record for record, _ in records]


def summary(cases: list[CaseRecord]) -> SearchRecord:
    """What the search of these cases tried."""
    found = cases[0].search
    assert found is not None
    return found
