"""The exact check of one position: draft tokens in chunks of bounded memory, resumable."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from specverify.errors import CannotSteer, SubjectError, SubjectTimeout, UsageError
from specverify.exact.branching import MAXIMUM_RUNS, Crash, Exploration
from specverify.exact.forcing import Explored, Rule, check_rows
from specverify.exact.large.chunk import Chunk
from specverify.exact.large.position import DraftedPosition, normalised
from specverify.exact.large.result import Outside, PositionResult
from specverify.exact.large.tally import Tally

Progress = Callable[[int, int], None]
"""Told after each chunk how many draft tokens are done, and of how many."""

MEMORY = 1 << 30
"""Bytes, by default."""

_BYTES = 450
"""Bytes that a race in float64 needs per row and token, the most of all ways to draw; measured."""
_TENSOR_BYTES = 24 << 20
"""Larger tensors come fresh from the operating system each time, which takes ten times as long."""
_CHECKED_ROWS = 8
_SAVING_SECONDS = 1.0
_WORST = 5


def check_position(
    rule: Rule,
    position: DraftedPosition,
    *,
    name: str = "",
    batch: bool = True,
    memory: int = MEMORY,
    resume: Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    maximum_runs: int = MAXIMUM_RUNS,
) -> PositionResult:
    """Compute what a rule emits at one position of a block, and behind it, for a large vocabulary.

    What is compared. Let c be the draft tokens before position i. A lossless rule that emits draft
    tokens, and one more, must emit after c the target's distribution, given that it emits c and
    goes on: rounds that end within c are completed by the target, which leaves the others to be
    right by themselves. If that holds for every i and c, the joint distribution is the target's.
    So it is checked for all tokens y at position i

        sum over x of q(x) P(c y ... is emitted | c x ... is drafted) = P(c ... is emitted) p(y | c)

    and for each drafted and emitted x, that the token behind it is distributed as p(. | c x). For
    K = 1 that is everything: c is empty and the token behind is the bonus token. For larger K the
    prefix c is one of many, so it should be sampled; the decision is not. Nothing is assumed about
    how the rule decides: token and block verification both satisfy it, at every position, since
    the draft proposes the tokens behind position i with certainty (`DraftedPosition`).

    Rounds that emit another token than the drafted one at position i and then go on, as no known
    lossless rule does, are bounded, see `PositionResult.stray_deviation` and `unchecked`.

    That rows do not influence each other is checked on some rows of the first chunk.

    Cost: time V^2 times the rule's number of paths (2 at K = 1), memory proportional to V.

    Args:
        rule: called with many rows at once, see `forcing.Rule`.
        position: what it is handed.
        name: of the subject; a progress file of another one is refused.
        batch: whether the rule takes more than one row a call; without, it is called V times per
            path.
        memory: bytes that one chunk may take, an estimate on the safe side.
        resume: file to keep progress in, and to continue from if it is there. Results are the same,
            bit by bit, as without an interruption.
        progress: called after each chunk.
        seed: of checks and of whatever is not steered.
        maximum_runs: calls after which to give up, for one chunk.

    Raises:
        CannotSteer: something cannot be followed, or rows depend on each other.
        SubjectError: the output is no tensor of token ids [R, K+1], or the rule raises for each of
            the likeliest tokens.
        UsageError: the progress file belongs to another computation.

    Example:
        >>> import torch
        >>> p, q = torch.rand(2, 1, 50, dtype=torch.float64).softmax(-1)
        >>> after = torch.rand(50, 1, 50, dtype=torch.float64).softmax(-1)
        >>> def rule(tokens, q, p, generator):
        ...     x = tokens[..., None]
        ...     ratio = (p[:, :1].gather(2, x) / q.gather(2, x))[..., 0]
        ...     kept = torch.rand(ratio.shape, dtype=p.dtype, generator=generator) < ratio
        ...     weights = torch.where(kept, p[:, 1], (p[:, 0] - q[:, 0]).clamp(min=0))
        ...     last = torch.multinomial(weights, 1, generator=generator)
        ...     return torch.cat([tokens.where(kept, last), last.where(kept, -1)], 1)
        >>> result = check_position(rule, DraftedPosition(p, q, after.__getitem__))
        >>> result.upper < 1e-12, result.runs >= 2
        (True, True)
    """
    size = chunk_size(position, memory) if batch else 1
    key: dict[str, str | int] = {}
    if resume is not None:
        key = {
            "subject": name,
            "distributions": position.digest(),
            "chunk size": size,
            "seed": seed,
        }
    tally = Tally.empty(position.vocab_size)
    if resume is not None and resume.exists():
        tally = Tally.load(resume, key)
    tokens = position.tokens
    saved = time.monotonic()
    if batch and not tally.done:
        _check_independence(rule, position, tokens, seed, maximum_runs)
    try:
        for start in range(tally.done, len(tokens), size):
            part = tokens[start : start + size]
            _add(rule, position, part, tally, seed, maximum_runs)
            if progress is not None:
                progress(tally.done, len(tokens))
            if resume is not None and time.monotonic() - saved > _SAVING_SECONDS:
                tally.save(resume, key)
                saved = time.monotonic()
    finally:
        if resume is not None:
            tally.save(resume, key)
    return _result(position, tally)


def chunk_size(position: DraftedPosition, memory: int) -> int:
    """Draft tokens to hand over at once.

    Raises:
        UsageError: not even one fits.
    """
    width = position.vocab_size * (_BYTES + 32 * (position.num_draft_tokens - 1))
    if memory < width:
        raise UsageError(
            f"{memory:,} bytes of memory hold not a single row of a vocabulary of "
            f"{position.vocab_size:,}; allow at least {width:,}"
        )
    return max(1, min(memory // width, _TENSOR_BYTES // (8 * position.vocab_size)))


def _add(
    rule: Rule,
    position: DraftedPosition,
    tokens: Tensor,
    tally: Tally,
    seed: int,
    maximum_runs: int,
) -> None:
    """Add some draft tokens; if the rule raises for them, find out for which."""
    pending = [tokens]
    while pending:
        part = pending.pop()
        chunk = Chunk(position, part, _row_count(len(part), position))
        exploration = Exploration(chunk.program(rule), maximum_runs, seed, replays=0)
        try:
            chunk.add(exploration, tally)
        except CannotSteer as error:
            cause = _raised(error)
            if cause is None or len(part) == 1:
                raise
            if isinstance(cause, SubjectError):
                raise cause from None
            pending += [half for half in reversed(part.tensor_split(2)) if len(half)]


def _row_count(count: int, position: DraftedPosition) -> int:
    """Rows to hand over for some tokens: no other dimension's size, unless there is one row."""
    if count == 1:
        return 1
    taken = {
        position.num_draft_tokens,
        position.num_draft_tokens + 1,
        position.vocab_size,
    }
    return next(rows for rows in range(count, count + 4) if rows not in taken)


def _check_independence(
    rule: Rule, position: DraftedPosition, tokens: Tensor, seed: int, maximum_runs: int
) -> None:
    """Make sure that what a row emits does not depend on the others, on a few rows.

    Raises:
        CannotSteer: it does.
    """
    likely = position.draft[-1][tokens].argsort(descending=True)[:_CHECKED_ROWS]
    part = tokens[likely.sort().values]
    if len(part) < 2:
        return
    chunk = Chunk(position, part, _row_count(len(part), position))
    exploration = Exploration(chunk.program(rule), maximum_runs, seed, replays=0)
    rows = torch.arange(chunk.rows)
    try:
        ends = list(exploration.paths(rows))
    except CannotSteer as error:
        cause = _raised(error)
        if cause is None:
            raise
        if isinstance(cause, SubjectTimeout):
            raise cause from None
        if all(_always_raises(rule, position, token, seed) for token in part.split(1)):
            raise SubjectError(
                f"the rule raises for each of {len(part)} draft tokens tried: {cause!r}"
            ) from cause
        return  # rows are taken apart until the one that raises is alone
    leaves = [end for end in ends if not isinstance(end, Crash)]
    explored = Explored(part[:, None], rows, exploration, leaves, [])
    check_rows(explored, seed, position.target.dtype)


def _always_raises(rule: Rule, position: DraftedPosition, token: Tensor, seed: int) -> bool:
    exploration = Exploration(Chunk(position, token, 1).program(rule), seed=seed, replays=0)
    return all(isinstance(end, Crash) for end in exploration.paths(torch.zeros(1).long()))


def _raised(error: CannotSteer) -> Exception | None:
    """What the rule raised, if that is why a batch cannot be followed."""
    cause = error.__cause__
    return cause if isinstance(cause, Exception) and not isinstance(cause, CannotSteer) else None


def _result(position: DraftedPosition, tally: Tally) -> PositionResult:
    target = normalised(position.target[-1])
    first = not position.prefix
    crashed = sum(tally.crashes.values())
    reach = 1.0 - crashed if first else float(tally.emitted.sum()) + tally.unfit
    expected = reach * target
    beyond = tally.unfit + (tally.missing if first else 0.0)
    deviation = float((tally.emitted - expected).abs().sum() + beyond) / 2
    outside = dict(_outside(tally.emitted, target))
    if tally.unfit > 0:
        outside[-1] = tally.unfit
    masses = sorted(outside.items(), key=lambda entry: (-entry[1], entry[0]))
    return PositionResult(
        position=len(position.prefix) + 1,
        reach=reach,
        token_deviation=deviation,
        next_deviation=float(tally.deviation.sum()),
        stray_deviation=tally.stray,
        unchecked=tally.unchecked,
        largest_ratio=torch.inf if outside else _largest_ratio(tally, expected),
        outside_support=tuple(Outside(*entry) for entry in masses[:_WORST]),
        outside_mass=sum(outside.values()) + float(tally.outside.sum()),
        accepted=float(tally.accepted.sum()),
        missing=tally.missing if first else 0.0,
        crashes=dict(tally.crashes),
        findings=tuple(tally.findings),
        reuses=tuple(tally.reuses),
        runs=tally.runs,
    )


def _outside(emitted: Tensor, target: Tensor) -> Iterator[tuple[int, float]]:
    for token in ((target == 0) & (emitted > 0)).nonzero()[:, 0].tolist():
        yield token, float(emitted[token])


def _largest_ratio(tally: Tally, expected: Tensor) -> float:
    """Of completed pairs: what is not continued by the rule is continued by the target."""
    more = tally.continued * (tally.ratio - 1)
    more = torch.where(tally.continued > 0, more, 0.0)
    ratio = ((tally.emitted + more) / expected)[expected > 0]
    return float(ratio.max()) if len(ratio) else 0.0
