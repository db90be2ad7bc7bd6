"""Verdicts, how they combine, and the exit codes they become."""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

Verdict = Literal["violated", "error", "inconclusive", "lossy-as-declared", "preserved"]
"""Outcome of a case or a run, worst first.

violated: the distribution is wrong, or a run ends in the wrong place. error: the subject crashed,
hung or returned something of the wrong shape. inconclusive: too little evidence. lossy-as-declared:
deviates exactly as its contract says. preserved: nothing found, and the bounds are tight enough.
"""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

EXACT = "exact/"
"""What the ids of cases with exact evidence begin with."""

EXIT_USAGE = 4
EXIT_ERROR = 3
EXIT_INTERRUPTED = 130

_EXIT_CODES: dict[Verdict, int] = {
    "preserved": 0,
    "lossy-as-declared": 0,
    "violated": 1,
    "inconclusive": 2,
    "error": EXIT_ERROR,
}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; inconclusive if there are none, since nothing was checked."""
    found = set(verdicts)
    for verdict in VERDICTS:
        if verdict in found:
            return verdict
    return "inconclusive"


def listed(ids: Sequence[str]) -> str:
    """Cases for a reader: all that were sampled, the first of those with exact evidence."""
    shown = [id for id in ids if not id.startswith(EXACT)]
    computed = [id for id in ids if id.startswith(EXACT)]
    rest = len(computed) - 1
    shown += computed[:1]
    return ", ".join(shown) + (
        f" and {rest} more exact case{'s' * (rest != 1)}" if rest > 0 else ""
    )


def exit_code(verdict: Verdict, *, interrupted: bool = False) -> int:
    """0 preserved or lossy as declared, 1 violated, 2 inconclusive, 3 error; 130 interrupted."""
    return EXIT_INTERRUPTED if interrupted else _EXIT_CODES[verdict]
