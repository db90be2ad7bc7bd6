"""Searching for the smallest input that fails: Hypothesis, with neither chance nor memory."""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar

from hypothesis import HealthCheck, Phase, find
from hypothesis import settings as hypothesis_settings
from hypothesis.configuration import set_hypothesis_home_dir, storage_directory
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from specverify.errors import CannotSteer, SubjectError

T = TypeVar("T", bound=Hashable)

_SEED = 20240914
_PATIENCE = 15


@dataclass(frozen=True)
class Stage(Generic[T]):
    """Inputs of one size."""

    inputs: SearchStrategy[T]
    examples: int
    """How many are tried before it is given up."""


@dataclass
class Limits:
    """How much a search may cost, over all its stages."""

    evaluations: int
    """Inputs on which the subject is computed: what ends a search, the same on every machine."""
    seconds: float
    """Processor time after which it ends too, for subjects that are slow; and `_PATIENCE` times as
    much on the clock, for those that wait."""
    tried: int = 0
    complete: bool = True
    """Whether it was not the time that ended it."""
    refused: bool = False
    """Whether the subject turned out to be one that cannot be steered."""
    _begin: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self._begin = time.process_time(), time.monotonic()

    @property
    def spent(self) -> bool:
        """Whether nothing more may be tried."""
        used, passed = time.process_time() - self._begin[0], time.monotonic() - self._begin[1]
        if used > self.seconds or passed > _PATIENCE * self.seconds:
            self.complete = False
        return self.refused or not self.complete or self.tried >= self.evaluations


@dataclass
class _Condition(Generic[T]):
    """Whether an input fails, computed once for each and never after the limits."""

    fails: Callable[[T], bool]
    limits: Limits
    known: dict[T, bool] = field(default_factory=dict)

    def __call__(self, value: T) -> bool:
        if value not in self.known:
            if self.limits.spent:
                return False
            self.limits.tried += 1
            self.known[value] = self._computed(value)
        return self.known[value]

    def _computed(self, value: T) -> bool:
        try:
            return self.fails(value)
        except CannotSteer:
            self.limits.refused = True
        except SubjectError:
            # A crash is another fault than the one that is looked for.
            pass
        return False


def smallest(stages: Sequence[Stage[T]], fails: Callable[[T], bool], limits: Limits) -> T | None:
    """The smallest input of the first stage that has one that fails.

    Args:
        stages: inputs of growing size, so that a small one is found without trying large ones.
        fails: computes the subject on an input.
        limits: of the whole search; what it cost is noted there.

    Returns:
        The input, smallest by Hypothesis's order; None if none of them fails.
    """
    condition = _Condition(fails, limits)
    with nothing_kept():
        for stage in stages:
            if limits.spent:
                return None
            try:
                return find(stage.inputs, condition, settings=_options(stage), random=Random(_SEED))
            except NoSuchExample:
                continue
    return None


def _options(stage: Stage[T]) -> hypothesis_settings:
    return hypothesis_settings(
        database=None,
        derandomize=True,
        deadline=None,
        max_examples=stage.examples,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Let Hypothesis write its caches elsewhere than to the user's folder."""
    before = storage_directory(intent_to_write=False).path
    with TemporaryDirectory() as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(before)
