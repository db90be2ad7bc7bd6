"""Sampling a subject on one input, and confirming on fresh randomness what looks wrong."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Generator

from specverify.certification.fuzzing.limits import share_of
from specverify.certification.shard import derived_generator
from specverify.exact.joint import Joint, Tokens
from specverify.statistics.cells import impossible_hits, log_cells

T = TypeVar("T")

SCREEN = math.log(20)
"""ln E from which an input is a candidate: a right subject gets there on one in twenty at most."""
CALLS = 25
"""Parts of a stream that a confirmation samples at most, each as large as the screening."""

_SEARCH, _CONFIRM = "fuzz/search", "fuzz/confirm"


@dataclass(frozen=True)
class Stream:
    """Randomness of one input; no two streams share any."""

    seed: int
    name: str
    number: int

    @classmethod
    def of_search(cls, seed: int, number: int) -> "Stream":
        """What an input is screened with."""
        return cls(seed, _SEARCH, number)

    @classmethod
    def of_confirmation(cls, seed: int, number: int) -> "Stream":
        """What a candidate is confirmed with, which no search has seen."""
        return cls(seed, _CONFIRM, number)

    def generator(self, call: int) -> Generator:
        """For the subject."""
        return derived_generator(self.seed, self.name, self.number, call)

    def numpy(self, call: int) -> np.random.Generator:
        """For what is drawn beside the subject: drafts, and the ends of short rounds."""
        return np.random.default_rng([self.seed, zlib.crc32(self.name.encode()), self.number, call])


@dataclass(frozen=True)
class Counted:
    """How often what was emitted, one entry a stratum, with the law it must have."""

    outcomes: tuple[tuple[Tokens, ...], ...]
    """What the cells stand for; sequences that the target excludes share the last cell if they have
    none of their own."""
    counts: tuple[NDArray[np.int64], ...]
    """[cells] a stratum."""
    laws: tuple[NDArray[np.float64], ...]
    """The same shapes."""
    tokens: int
    """Tokens that could each have been an impossible one."""

    @property
    def n(self) -> int:
        """Samples."""
        return sum(int(counts.sum()) for counts in self.counts)

    @property
    def impossible(self) -> int:
        """Samples that the target excludes."""
        return impossible_hits(self.counts, self.laws)

    def plus(self, other: "Counted") -> "Counted":
        """Both together; laws and outcomes are the same."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Counted(self.outcomes, counts, self.laws, self.tokens + other.tokens)

    def log_e(self, coin_dtype: str) -> float:
        """Ln of an e-process against the laws, see `statistics.cells.log_cells`.

        Args:
            coin_dtype: of the subject's uniforms.
        """
        return log_cells(self.counts, self.laws, self.tokens, dtype=coin_dtype)

    def frequencies(self) -> tuple[Joint, Joint]:
        """Observed and expected shares of the stratum that is furthest off."""
        found = zip(self.outcomes, self.counts, self.laws, strict=True)
        pairs = [
            (
                dict(zip(names, (counts / max(1, counts.sum())).tolist(), strict=True)),
                dict(zip(names, law.tolist(), strict=True)),
            )
            for names, counts, law in found
        ]
        return max(pairs, key=lambda pair: sum(abs(pair[0][t] - pair[1][t]) for t in pair[0]))


@dataclass(frozen=True)
class Confirmed:
    """What a candidate came to on fresh randomness."""

    number: int
    """Which confirmation of the run it was, from 1."""
    share: float
    """Its level, fixed before it began."""
    log_e: float
    counted: Counted

    @property
    def stands(self) -> bool:
        """Whether ln E has reached its level."""
        return self.log_e >= -math.log(self.share)


@dataclass
class Confirmations(Generic[T]):
    """All confirmations of one run.

    The k-th is a test at level alpha 6 / (pi^2 k^2) on a stream of its own, whatever led to it.
    The levels sum to alpha, so a right subject is ever accused with probability at most alpha
    (union bound; each is an e-process, stopped at its level: Ville 1939).
    """

    alpha: float
    seed: int
    count: Callable[[T, Stream, int], Counted]
    coin_dtype: str
    done: int = 0
    standing: int = 0
    samples: int = field(default=0)

    @property
    def unconfirmed(self) -> int:
        """Candidates that did not stand."""
        return self.done - self.standing

    def share(self, number: int) -> float:
        """Level of the `number`-th confirmation, from 1."""
        return share_of(self.alpha, number)

    def confirm(self, value: T) -> Confirmed | None:
        """Sample a candidate anew, until its level is reached or the samples are used up.

        Raises:
            SubjectError: it raised.
        """
        self.done += 1
        found = confirmation(
            value, self.done, self.share(self.done), self.seed, self.count, self.coin_dtype
        )
        self.standing += found.stands
        self.samples += found.counted.n
        return found if found.stands else None


def confirmation(
    value: T,
    number: int,
    share: float,
    seed: int,
    count: Callable[[T, Stream, int], Counted],
    coin_dtype: str,
) -> Confirmed:
    """Run one confirmation; it stands if ln E has reached ln(1/share).

    Args:
        value: the input.
        number: which it is, from 1: says what stream it draws from.
        share: its level.
        seed: of the run.
        count: samples the subject.
        coin_dtype: of its uniforms.

    Raises:
        SubjectError: it raised.
    """
    stream = Stream.of_confirmation(seed, number)
    counted = count(value, stream, 0)
    log_e = counted.log_e(coin_dtype)
    for call in range(1, CALLS):
        if log_e >= -math.log(share):
            break
        counted = counted.plus(count(value, stream, call))
        log_e = counted.log_e(coin_dtype)
    return Confirmed(number, share, log_e, counted)
