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
"""What the ids of cases whose distribution is computed begin with."""
PROBE = "probe/"
"""What the ids of cases that a property made for itself begin with."""
FUZZ = "fuzz/"
"""What the ids of cases that a search by random inputs made begin with."""
SMALL = (EXACT, PROBE)
"""There are dozens of these, so reports put them together."""

NOT_ASKED = "not asked for"
"""Why a property was not checked that the request left out."""

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
    """Cases for a reader: all that were sampled, the first of the small ones of either kind."""
    shown = [id for id in ids if not id.startswith(SMALL)]
    rests = []
    for prefix, noun in ((EXACT, "exact case"), (PROBE, "probe")):
        small = [id for id in ids if id.startswith(prefix)]
        shown += small[:1]
        if rest := len(small[1:]):
            rests.append(f"{rest} more {noun}{'s' * (rest != 1)}")
    return " and ".join([", ".join(shown), *rests])


def exit_code(verdict: Verdict, *, interrupted: bool = False, stale: bool = False) -> int:
    """0 preserved or lossy as declared, 1 violated, 2 inconclusive, 3 error; 130 interrupted.

    Args:
        verdict: of the run.
        interrupted: whether the user ended it.
        stale: whether a failure is expected that does not occur: 1, unless something is worse.
    """
    if interrupted:
        return EXIT_INTERRUPTED
    if stale and verdict != "error":
        return _EXIT_CODES["violated"]
    return _EXIT_CODES[verdict]


def worst_exit_code(codes: Sequence[int]) -> int:
    """The code of several runs: an interrupt, else the worst verdict's."""
    by_verdict = [_EXIT_CODES[verdict] for verdict in VERDICTS]
    return min(codes, key=[EXIT_INTERRUPTED, *by_verdict].index)
