"""The search itself: stored inputs, then random ones, and a failure made smaller."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Generic, Literal, TypeVar

from hypothesis import Phase, find
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import NoSuchExample

from specverify.certification.counterexamples.search import Limits, nothing_kept
from specverify.certification.fuzzing.database import Database
from specverify.certification.fuzzing.limits import Clock
from specverify.certification.fuzzing.problem import Computed, Problem, Region, T
from specverify.certification.fuzzing.sampled import SCREEN, Confirmations, Confirmed, Stream
from specverify.errors import CannotSteer, SubjectError

BATCH = 20
"""Inputs of one region that are drawn before the next region has its turn."""
SMALLER = 12
"""Inputs of a smaller region that are drawn in place of a failing one."""
REFUSALS = 3
"""Inputs refused from the start, after which a subject is one that cannot be steered."""
SHRINKING_TRIES = 300
"""Inputs that are tried at most to make a failure smaller."""
SHRINKING_SECONDS = 60.0
"""Seconds that it may take, of a search that time limits; one that inputs limit has to do the same
on every machine."""

Failure = Literal["violated", "crash"]
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Judged:
    """What came of one input."""

    failure: Failure | None = None
    computed: Computed | None = None
    confirmed: Confirmed | None = None
    crash: str = ""
    stream: int = 0
    """Which stream of the search it was sampled with, from 1; 0 for what was computed."""

    @classmethod
    def of(cls, computed: Computed) -> "Judged":
        """What a computation says: a violation comes before a crash."""
        if computed.violation:
            return cls("violated", computed)
        if computed.crash:
            return cls("crash", computed, crash=computed.crash.removeprefix("SubjectError: "))
        return cls(None, computed)


@dataclass(frozen=True)
class Found(Generic[T]):
    """A failing input, as small as it became."""

    value: T
    judged: Judged
    tried: int
    """Inputs on which the subject was tried to find it and to make it smaller."""
    complete: bool
    """Whether it was not the time that ended making it smaller."""


@dataclass
class Tally:
    """What a search has done."""

    stored: int = 0
    """Inputs of the database that were tried."""
    regions: Counter[str] = field(default_factory=Counter)
    """Inputs that were tried, by region."""
    computed: int = 0
    sampled: int = 0
    samples: int = 0
    passed_over: int = 0
    """Inputs on which nothing can be said."""
    crashed: int = 0
    candidates: int = 0
    """Sampled inputs that looked wrong and were sampled anew."""


@dataclass
class Search(Generic[T]):
    """One search; `run` it once."""

    problem: Problem[T]
    clock: Clock
    confirmations: Confirmations[T]
    database: Database
    tally: Tally = field(default_factory=Tally)
    found: dict[Failure, Found[T]] = field(default_factory=dict)
    interrupted: bool = False
    refusal: str = ""
    """Why the subject cannot be steered, where it cannot."""
    _streams: int = 0
    _refusals: int = 0
    _smallest: "_Condition[T] | None" = None

    def run(self) -> Iterator[int]:
        """Search until the limits, a violation, or Ctrl-C; yields how many inputs were tried."""
        try:
            with nothing_kept():
                yield from self._stored()
                yield from self._drawn()
        except KeyboardInterrupt:
            self.interrupted = True
            if self._smallest is not None:
                self._keep(self._smallest)

    def _stored(self) -> Iterator[int]:
        for inputs in self.database.stored(self.problem.kind):
            if self.clock.ended or "violated" in self.found:
                return
            value = self.problem.load(inputs)
            judged = self.judge(value)
            self.clock.tried += 1
            self.tally.stored += 1
            if judged.failure is not None and judged.failure not in self.found:
                self.found[judged.failure] = Found(value, judged, self.clock.tried, complete=True)
            yield self.clock.tried

    def _drawn(self) -> Iterator[int]:
        regions = self.problem.regions()
        subject, seed = self.problem.subject, self.problem.seed
        batch, idle = self.database.position(subject, seed), 0
        while not self.clock.ended and "violated" not in self.found and idle < len(regions):
            before = self.clock.tried
            self._batch(regions[batch % len(regions)], f"{seed} {batch}")
            batch += 1
            self.database.advance(subject, seed, batch)
            # Regions that hold nothing to try, one after another, would go on for ever.
            idle = 0 if self.clock.tried > before else idle + 1
            yield self.clock.tried

    def _batch(self, region: Region[T], seed: str) -> None:
        """Draw from a region; make a failure smaller in a smaller region, or else where it is."""
        condition = _Condition(self, region.name)
        self._smallest = condition
        first = self._find(region, condition, seed, BATCH, shrink=False)
        if first is not None:
            self._shrink(region, condition, first, seed)
        self._keep(condition)
        self._smallest = None

    def _shrink(self, region: Region[T], condition: "_Condition[T]", first: T, seed: str) -> None:
        condition.end = first
        for smaller in self.problem.smaller(first):
            found = self._find(smaller, condition, seed, SMALLER, shrink=True)
            if found is not None:
                condition.end = found
                return
        # The same draws lead to the same failure, which is known by now.
        again = self._find(region, condition, seed, BATCH, shrink=True)
        condition.end = first if again is None else again

    def _find(
        self,
        region: Region[T],
        condition: "_Condition[T]",
        seed: str,
        examples: int,
        *,
        shrink: bool,
    ) -> T | None:
        options = hypothesis_settings(
            database=None,
            deadline=None,
            max_examples=examples,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        )
        with suppress(NoSuchExample):
            return find(region.inputs, condition, settings=options, random=Random(seed))
        return None

    def _keep(self, condition: "_Condition[T]") -> None:
        """Note and store what a batch found, the smallest there is."""
        value = condition.smallest
        if condition.failure is None or value is None:
            return
        judged = condition.known[value]
        tried = self.clock.tried + condition.limits.tried
        self.found[condition.failure] = Found(value, judged, tried, condition.limits.complete)
        problem = self.problem
        problem_id, name = problem.property_id, problem.subject.name
        self.database.keep(problem.kind, problem_id, name, problem.inputs(value))

    def judge(self, value: T) -> Judged:
        """Try the subject on an input: computed where that is possible, else sampled."""
        if self.problem.passes_over(value):
            self.tally.passed_over += 1
            return Judged()
        try:
            if not self.refusal:
                return self._computed(value)
        except CannotSteer as refusal:
            self._refusals += 1
            if self._refusals == REFUSALS and not self.tally.computed:
                self.refusal = str(refusal)
        except SubjectError as error:
            return self._crashed(str(error))
        try:
            return self._sampled(value)
        except SubjectError as error:
            return self._crashed(str(error), stream=self._streams)

    def _computed(self, value: T) -> Judged:
        computed = self.problem.compute(value)
        self.tally.computed += 1
        judged = Judged.of(computed)
        self.tally.crashed += judged.failure == "crash"
        return judged

    def _sampled(self, value: T) -> Judged:
        """Screen an input, and call it wrong only if it is on fresh randomness too."""
        self._streams += 1
        counted = self.problem.count(value, Stream.of_search(self.problem.seed, self._streams), 0)
        self.tally.sampled += 1
        self.tally.samples += counted.n
        if counted.log_e(self.problem.subject.capabilities.coin_dtype) < SCREEN:
            return Judged()
        self.tally.candidates += 1
        confirmed = self.confirmations.confirm(value)
        return Judged() if confirmed is None else Judged("violated", confirmed=confirmed)

    def _crashed(self, text: str, stream: int = 0) -> Judged:
        self.tally.crashed += 1
        return Judged("crash", crash=text, stream=stream)


@dataclass
class _Condition(Generic[T]):
    """Whether an input fails: each judged once, in one batch, and for one failure."""

    search: Search[T]
    region: str
    known: dict[T, Judged] = field(default_factory=dict)
    failure: Failure | None = None
    """What the first failing input showed; smaller ones must show the same."""
    limits: Limits = field(default_factory=lambda: Limits(0, 0.0))
    end: T | None = None
    _failing: list[T] = field(default_factory=list)

    def __call__(self, value: T) -> bool:
        judged = self.known.get(value)
        if judged is None:
            if self._spent():
                return False
            judged = self.known[value] = self.search.judge(value)
            self._count()
        if judged.failure is None:
            return False
        if self.failure is None and judged.failure not in self.search.found:
            self.failure = judged.failure
            timed = math.isfinite(self.search.clock.seconds)
            self.limits = Limits(SHRINKING_TRIES, SHRINKING_SECONDS if timed else math.inf)
        if judged.failure != self.failure:
            return False
        self._failing.append(value)
        return True

    @property
    def smallest(self) -> T | None:
        """What Hypothesis ended at, or, where it was interrupted, the shortest that failed."""
        if self.end is not None:
            return self.end
        return min(self._failing, key=lambda value: len(repr(value)), default=None)

    def _spent(self) -> bool:
        return self.search.clock.ended if self.failure is None else self.limits.spent

    def _count(self) -> None:
        if self.failure is None:
            self.search.clock.tried += 1
            self.search.tally.regions[self.region] += 1
        else:
            self.limits.tried += 1
