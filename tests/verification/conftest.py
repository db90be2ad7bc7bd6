"""Exact laws of a rule, enumerated in numpy over every draft block and every pattern of coins."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
import torch

from specverify.verification import emission
from specverify.verification.checks import RoundInputs, prepare

LARGEST_COIN = 1.0 - 2.0**-53


class Pair:
    """Target and draft over V tokens, each with a distribution of its own after every prefix."""

    def __init__(self, target: list[np.ndarray], draft: list[np.ndarray]) -> None:
        self.target = target
        self.draft = draft
        self.width = len(draft)
        self.vocab_size = target[0].shape[-1]
        self.blocks = np.array(
            list(product(range(self.vocab_size), repeat=self.width)), dtype=np.int64
        ).reshape(self.vocab_size**self.width, self.width)

    @classmethod
    def make(cls, make_p: Callable, make_q: Callable, vocab_size: int, width: int) -> "Pair":
        """`make_p(shape)` and `make_q(shape, p)` fill tables of shape [V, ..., V, V]."""
        target = [make_p((vocab_size,) * (i + 1)) for i in range(width + 1)]
        return cls(target, [make_q(p.shape, p) for p in target[:-1]])

    def _along(self, tables: list[np.ndarray]) -> np.ndarray:
        """Distributions met along every block, [V^K, len(tables), V]."""
        shape = (len(self.blocks), self.vocab_size)
        rows = [t[tuple(self.blocks[:, :i].T)] for i, t in enumerate(tables)]
        return np.stack([np.broadcast_to(row, shape) for row in rows], 1)

    @property
    def p(self) -> np.ndarray:
        return self._along(self.target)

    @property
    def q(self) -> np.ndarray:
        if self.width == 0:
            return np.zeros((1, 0, self.vocab_size))
        return self._along(self.draft)

    def at_tokens(self, probs: np.ndarray) -> np.ndarray:
        """Probability of each block's own tokens, [V^K, K]."""
        index = self.blocks[:, :, None]
        return np.take_along_axis(probs[:, : self.width], index, 2)[:, :, 0]

    @property
    def proposed(self) -> np.ndarray:
        """Probability that the draft proposes each block, [V^K]."""
        return self.at_tokens(self.q).prod(1)

    def target_law(self) -> np.ndarray:
        """Joint distribution of the target's first K+1 tokens, [V] * (K+1)."""
        law = self.target[0]
        for table in self.target[1:]:
            law = law[..., None] * table
        return law

    def completed(
        self, blocks: np.ndarray, accepted: np.ndarray, last: np.ndarray, weight: np.ndarray
    ) -> np.ndarray:
        """Joint distribution of K+1 tokens: what a round emits, continued by the target.

        Row `r` emits the first `accepted[r]` tokens of `blocks[r]` and one token of `last[r]`.
        """
        law = np.zeros((self.vocab_size,) * (self.width + 1))
        for count in range(self.width + 1):
            rows = accepted == count
            emitted = np.zeros((self.vocab_size,) * (count + 1))
            prefix = tuple(blocks[rows, :count].T)
            contribution = weight[rows, None] * last[rows]
            if prefix:
                np.add.at(emitted, prefix, contribution)
            else:
                emitted = contribution.sum(0)
            for table in self.target[count + 1 :]:
                emitted = emitted[..., None] * table
            law += emitted
        return law

    def inputs(self, repeat: int = 1) -> RoundInputs:
        return prepare(
            torch.tensor(np.tile(self.blocks, (repeat, 1))),
            torch.tensor(np.tile(self.q, (repeat, 1, 1))),
            torch.tensor(np.tile(self.p, (repeat, 1, 1))),
            None,
        )


def token_thresholds(pair: Pair) -> np.ndarray:
    p, q = pair.at_tokens(pair.p), pair.at_tokens(pair.q)
    return np.minimum(1.0, np.divide(p, q, out=np.ones_like(p), where=q > 0))


def block_prefix_probabilities(pair: Pair) -> np.ndarray:
    p, q = pair.at_tokens(pair.p), pair.at_tokens(pair.q)
    result = np.ones((len(pair.blocks), pair.width + 1))
    for row in range(len(pair.blocks)):
        for i in range(pair.width):
            ratio = p[row, i] / q[row, i] if q[row, i] > 0 else 1.0
            result[row, i + 1] = min(1.0, result[row, i] * ratio)
    return result


def block_thresholds(pair: Pair) -> np.ndarray:
    w, p, q = block_prefix_probabilities(pair), pair.p, pair.q
    result = np.zeros((len(pair.blocks), pair.width))
    for row in range(len(pair.blocks)):
        for i in range(1, pair.width + 1):
            if i == pair.width:
                result[row, i - 1] = w[row, i]
                continue
            excess = np.maximum(w[row, i] * p[row, i] - q[row, i], 0).sum()
            whole = excess + 1 - w[row, i]
            result[row, i - 1] = excess / whole if whole > 0 else 1.0
    return result


class Outcome:
    """The exact outcome of a rule on a pair."""

    def __init__(self, law: np.ndarray, mean_accepted: float) -> None:
        self.law = law
        self.mean_accepted = mean_accepted


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable, np.ndarray, Pair], Outcome]:
    """Run `decide` on every block under every pattern of coins, and sum what comes out.

    Coins are fed at both ends of the cell a pattern stands for, an ulp's neighbourhood away from
    the thresholds and at 0 and the largest coin below 1. The outcome must be constant on a cell,
    which confirms the thresholds; the probability of the cell is then the product of its sides.
    """

    def run(decide: Callable, thresholds: np.ndarray, pair: Pair) -> Outcome:
        patterns = np.array(list(product((True, False), repeat=pair.width))).reshape(
            2**pair.width, 1, pair.width
        )
        succeeds = np.broadcast_to(patterns, (len(patterns), *thresholds.shape))
        sides = np.where(succeeds, thresholds, 1.0 - thresholds)
        low = np.where(succeeds, 0.0, np.minimum(thresholds * (1 + 1e-12), LARGEST_COIN))
        high = np.where(succeeds, thresholds * (1 - 1e-12), LARGEST_COIN)
        weight = (sides.prod(2) * pair.proposed).reshape(-1)
        inputs = pair.inputs(repeat=len(patterns))
        results = []
        for coins in (low, high):
            coins = torch.tensor(coins.reshape(weight.size, pair.width))
            drawn: list[torch.Tensor] = []

            def draw(probs, generator=None, drawn=drawn):
                drawn.append(probs)
                return probs.argmax(-1)

            with monkeypatch.context() as patch:
                patch.setattr(torch, "rand", lambda *_, coins=coins, **__: coins)
                patch.setattr(emission, "draw", draw)
                verified = decide(inputs, None)
            results.append((verified.accepted.numpy(), drawn[-1].numpy()))
        (accepted, last), (accepted_high, _) = results
        possible = weight > 0
        assert (accepted == accepted_high)[possible].all(), "a threshold is not where it should be"
        accepted, last, weight = accepted[possible], last[possible], weight[possible]
        blocks = np.tile(pair.blocks, (len(patterns), 1))[possible]
        law = pair.completed(blocks, accepted, last, weight)
        return Outcome(law, float(weight @ accepted))

    return run


def _random(rng: np.random.Generator, concentration: float = 1.0) -> Callable:
    def fill(shape, p=None):
        return rng.dirichlet([concentration] * shape[-1], shape[:-1])

    return fill


def _dyadic(rng: np.random.Generator) -> Callable:
    """Multiples of 1/8, so with ties and zeros."""

    def fill(shape, p=None):
        return rng.multinomial(8, [1 / shape[-1]] * shape[-1], shape[:-1]) / 8

    return fill


def _one_hot(rng: np.random.Generator) -> Callable:
    def fill(shape, p=None):
        return np.eye(shape[-1])[rng.integers(shape[-1], size=shape[:-1])]

    return fill


def _disjoint(shape, p):
    """One-hot on the token the target likes least."""
    return np.eye(shape[-1])[p.argmin(-1)]


def _tiny(rng: np.random.Generator) -> Callable:
    """A token of subnormal probability in every row."""

    def fill(shape, p=None):
        rows = rng.dirichlet([1.0] * shape[-1], shape[:-1])
        rows[..., 0] = 5e-324
        return rows / rows.sum(-1, keepdims=True)

    return fill


def make_pairs() -> dict[str, Pair]:
    rng = np.random.default_rng(20261129)
    random, dyadic, one_hot = _random(rng), _dyadic(rng), _one_hot(rng)
    return {
        "random": Pair.make(random, random, 3, 3),
        "peaked": Pair.make(_random(rng, 0.2), random, 4, 2),
        "dyadic": Pair.make(dyadic, dyadic, 3, 3),
        "equal": Pair.make(random, lambda _, p: p.copy(), 3, 2),
        "equal dyadic": Pair.make(dyadic, lambda _, p: p.copy(), 3, 3),
        "one-hot target": Pair.make(one_hot, random, 3, 2),
        "one-hot draft": Pair.make(random, one_hot, 3, 3),
        "one-hot both": Pair.make(one_hot, one_hot, 3, 2),
        "disjoint": Pair.make(dyadic, _disjoint, 3, 2),
        "tiny": Pair.make(_tiny(rng), _tiny(rng), 3, 2),
        "one token": Pair.make(random, random, 4, 1),
        "vocabulary of one": Pair.make(random, random, 1, 2),
        "no draft": Pair.make(random, random, 3, 0),
    }


@pytest.fixture(params=list(make_pairs()))
def pair(request: pytest.FixtureRequest) -> Pair:
    return make_pairs()[request.param]


@pytest.fixture
def pairs() -> dict[str, Pair]:
    return make_pairs()


@pytest.fixture
def random_pair() -> Callable[..., Pair]:
    """A larger concentration gives flatter rows, so fewer rare blocks."""

    def make(seed: int, vocab_size: int, width: int, concentration: float) -> Pair:
        fill = _random(np.random.default_rng(seed), concentration)
        return Pair.make(fill, fill, vocab_size, width)

    return make


@pytest.fixture
def thresholds() -> dict[str, Callable[[Pair], np.ndarray]]:
    return {"token": token_thresholds, "block": block_thresholds}


@pytest.fixture
def prefix_probabilities() -> Callable[[Pair], np.ndarray]:
    return block_prefix_probabilities


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Make `torch.rand` return the values given, one a call, while the body runs.

    Expanded to the shape asked for, so a number feeds every coin of a call the same value.
    """

    @contextmanager
    def context(*values) -> Iterator[None]:
        remaining = list(values)

        def rand(*shape, generator=None, dtype=None, device=None):
            size = shape[0] if len(shape) == 1 else shape
            return torch.as_tensor(remaining.pop(0), dtype=torch.float64).expand(size)

        with monkeypatch.context() as patch:
            patch.setattr(torch, "rand", rand)
            yield

    return context
