"""Calls of a subject whose randomness is steered: guarded like all others, and limited in all."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from specverify.errors import CannotSteer, SubjectError, SubjectTimeout
from specverify.exact.distribution import JointDistribution
from specverify.exact.programs import SEPARATOR
from specverify.subjects.guard import run_guarded
from specverify.subjects.protocols import Subject

MAXIMUM_RUNS = 4_000
"""Calls of a decoder or a transform for one case."""
SECONDS = 60.0
"""Wall time for one case; a subject that is followed at all needs less in most cases."""


@dataclass
class SteeredCalls:
    """Calls into a subject, to be made while its randomness is steered."""

    subject: Subject
    time_limit: float
    """Seconds for a single call."""
    seconds: float | None = None
    """Seconds for all of them together; `SECONDS` when omitted, or the limit of a call if it is
    larger."""
    function: Callable[..., Any] | None = None
    """What to call in place of the subject's own function."""
    findings: dict[str, None] = field(default_factory=dict)
    """Remarks of the calls, each once."""

    def __post_init__(self) -> None:
        if self.seconds is None:
            self.seconds = max(SECONDS, self.time_limit)
        self._end = time.monotonic() + self.seconds
        self._function = self.subject.call if self.function is None else self.function

    def __call__(self, *arguments: Any, **coins: Any) -> Any:
        """Call the subject.

        No generator is lent to a subject without one: what it draws from torch's global generator
        is steered, and all else is seeded anew for each run.

        Raises:
            CannotSteer: the time is up, for this call or for all; steered calls are many times
                slower than others, so this is no failure of the subject.
            SubjectError: it raised; one kind of failure has one text.
        """
        if time.monotonic() > self._end:
            raise CannotSteer(f"its paths are not followed to the end in {self.seconds:g} s")
        call: Callable[..., Any] = partial(self._function, **coins)
        try:
            result = run_guarded(self.subject, call, *arguments, limit=self.time_limit)
        except SubjectTimeout:
            raise CannotSteer(
                f"a single call is not followed to its end in {self.time_limit:g} s"
            ) from None
        except SubjectError as error:
            if isinstance(error.__cause__, CannotSteer):
                raise error.__cause__ from None
            raise
        self.findings |= dict.fromkeys(result.findings)
        return result.value

    def remarks(self, joint: JointDistribution) -> tuple[str, ...]:
        """Findings of the calls; that torch's global generator moved is known by its lines."""
        known = bool(joint.global_draws)
        return tuple(text for text in self.findings if not (known and "torch's global" in text))


def check_tokens(subject: Subject, joint: JointDistribution, vocab_size: int) -> None:
    """Refuse outcomes that are no output at all, of one row or of several.

    Raises:
        SubjectError: no token, or one outside the vocabulary, is emitted with some probability.
    """
    for tokens, mass in joint.probabilities.items():
        wrong = [token for token in tokens if token >= vocab_size]
        # Rows that hold tokens: one more than there are separators, if none is empty.
        rows = sum(not between for between, _ in groupby(tokens, SEPARATOR.__eq__))
        if wrong or rows <= tokens.count(SEPARATOR):
            what = f"the token {wrong[0]}" if wrong else "a row that holds no token"
            raise SubjectError(
                f"subject {subject.name!r} emits {what} with probability {mass:.3g}; every call "
                f"must emit at least one token, and token ids run from 0 to {vocab_size - 1}"
            )
