"""Inputs that a subject can be asked about: greedy ones have one right answer, some refuse some."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specverify.certification.probes.world import World
from specverify.errors import SubjectError, SubjectTimeout
from specverify.exact.round import Round
from specverify.subjects.protocols import Subject


def suited_world(world: World, subject: Subject) -> World:
    """The world itself, at temperature 0 for a subject that decodes greedily only."""
    if subject.capabilities.algorithm != "greedy":
        return world
    return replace(world, settings=world.settings.model_copy(update={"temperature": 0.0}))


def suited_round(round: Round, subject: Subject) -> Round:
    """The round itself; for a greedy rule, the target's most likely tokens are the only ones."""
    if subject.capabilities.algorithm != "greedy":
        return round

    def rows(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.eye(round.vocab_size)[np.asarray(round.target(prefixes)).argmax(1)]

    return replace(round, target=rows)


def refusal(call: Callable[[], object]) -> str | None:
    """What a subject says when it refuses a call, None if it answers.

    Nothing wrong is emitted by a subject that refuses, so where no caller needs an input to be
    accepted, refusing it is right.

    Args:
        call: lets the subject answer, once.

    Raises:
        SubjectError: it hangs or returns something malformed, which is no refusal.
    """
    try:
        call()
    except SubjectError as error:
        if not refuses(error):
            raise
        return str(error).partition("\n")[0]
    return None


def refuses(error: SubjectError) -> bool:
    """Whether a subject failed because it did not take what it was handed.

    That is any exception of its own, in words or from an operation whose shapes do not fit: either
    way nothing wrong is emitted. A timeout, the end of its process or an output of the wrong shape
    has no such exception behind it.
    """
    cause = error.__cause__
    if isinstance(error, SubjectTimeout) or isinstance(cause, SubjectError):
        return False
    return isinstance(cause, Exception)
