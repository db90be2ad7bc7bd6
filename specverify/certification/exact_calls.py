"""Calls of a subject whose randomness is steered: guarded like all others, and limited in all."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from specverify.errors import CannotSteer, SubjectError, SubjectTimeout
from specverify.exact.distribution import MASS_TOLERANCE, JointDistribution
from specverify.exact.joint import total_variation
from specverify.subjects.guard import run_guarded
from specverify.subjects.protocols import Subject

MAXIMUM_RUNS = 4_000
"""Calls of a subject for one case."""
_OTHER_SEED = 1 << 20
_RUNS_AGAIN = 64
"""Runs, about, to look for randomness outside in; at least all runs once more."""
SECONDS = 60.0
"""Wall time for one case; a subject that is followed at all needs less in most cases."""


class OutsideRandomness(CannotSteer):
    """Something that is not steered decides, so that nothing computed for the subject holds."""


@dataclass
class SteeredCalls:
    """Calls into a subject, to be made while its randomness is steered."""

    subject: Subject
    time_limit: float
    """Seconds for a single call."""
    seconds: float = SECONDS
    """Seconds for all of them together."""
    function: Callable[..., Any] | None = None
    """What to call in place of the subject's own function."""
    findings: dict[str, None] = field(default_factory=dict)
    """Remarks of the calls, each once."""

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds
        self._function = self.subject.call if self.function is None else self.function

    def __call__(self, *arguments: Any, **coins: Any) -> Any:
        """Call the subject.

        No generator is lent to a subject without one: what it draws from torch's global generator
        is steered, and all else is seeded anew for each run.

        Raises:
            CannotSteer: the time is up, for this call or for all; steered calls are many times
                slower than others, so this is no failure of the subject.
            OutsideRandomness: it drew from a global generator that is not torch's.
            SubjectError: it raised; one kind of failure has one text.
        """
        if time.monotonic() > self._end:
            raise CannotSteer(f"its paths are not followed to the end in {self.seconds:g} s")
        call: Callable[..., Any] = partial(self._function, **coins)
        before = _other_generators()
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
        for name, state in _other_generators().items():
            if state != before[name]:
                raise OutsideRandomness(
                    f"it draws from or seeds {name}'s global generator, and only torch's "
                    "randomness is steered"
                )
        self.findings |= dict.fromkeys(result.findings)
        return result.value

    def remarks(self, joint: JointDistribution) -> tuple[str, ...]:
        """Findings of the calls; that torch's global generator moved is known by its lines."""
        known = bool(joint.global_draws)
        return tuple(text for text in self.findings if not (known and "torch's global" in text))


def check_tokens(subject: Subject, joint: JointDistribution, vocab_size: int) -> None:
    """Refuse tuples that are no output at all.

    Raises:
        SubjectError: no token, or one outside the vocabulary, is emitted with some probability.
    """
    for tokens, mass in joint.probabilities.items():
        wrong = [token for token in tokens if token >= vocab_size]
        if wrong or not tokens:
            what = f"the token {wrong[0]}" if wrong else "a row that holds no token"
            raise SubjectError(
                f"subject {subject.name!r} emits {what} with probability {mass:.3g}; every call "
                f"must emit at least one token, and token ids run from 0 to {vocab_size - 1}"
            )


def check_again(
    joint: JointDistribution, compute: Callable[[int], JointDistribution], seed: int
) -> None:
    """Compute a distribution again while all randomness outside is another.

    A path that shares no decision with another one is run once, so that nothing else would tell.

    Raises:
        OutsideRandomness: it is not the same.
    """
    for attempt in range(max(1, _RUNS_AGAIN // joint.runs)):
        again = compute(seed + (attempt + 1) * _OTHER_SEED)
        distance = total_variation(joint.probabilities, again.probabilities)
        if distance > MASS_TOLERANCE:
            raise OutsideRandomness(
                f"what it emits is another distribution when it is computed again ({distance:.3g} "
                "in TV): something outside torch's randomness decides"
            )


def _other_generators() -> dict[str, int]:
    """Digests of the states of the global generators that cannot be steered."""
    name, keys, *rest = np.random.get_state()
    return {
        "numpy": hash((name, np.asarray(keys).tobytes(), *rest)),
        "Python": hash(random.getstate()),
    }
