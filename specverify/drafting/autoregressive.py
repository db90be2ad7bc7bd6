"""Drafting by sampling from a model session, one token of every row a pass."""

import torch
from torch import Generator, Tensor

from specverify.categorical import draw
from specverify.drafting.protocol import DraftBlock, Histories
from specverify.errors import UsageError
from specverify.models.protocol import Session
from specverify.transforms.pipeline import Pipeline


def sample_block(
    session: Session,
    histories: Histories,
    limits: Tensor,
    pipeline: Pipeline,
    generator: Generator,
    confidence_threshold: float | None = None,
) -> DraftBlock:
    """Sample up to `limits[b]` tokens per row, each from its own transformed distribution.

    The session first reads the committed tokens it lacks: one after a rejection, two after full
    acceptance (the last draft token and the bonus), more after rounds without drafts
    (algorithms.md section 4, I2). The last token drafted is not read.

    With a threshold, a row stops after *keeping* a token less probable than it. Whether position
    `i` is offered then depends on earlier tokens only; dropping the token instead would bias the
    output (algorithms.md section 1.12). The probability is q(x); at temperature 0, where q is
    one-hot, that of the untransformed logits.

    Args:
        session: what drafts; holds a prefix, not the whole, of each row's committed tokens.
        histories: committed tokens; candidates are written behind them.
        limits: long [B]; rows with limit 0 read nothing.
        pipeline: the run's transforms.
        generator: source of all draws; untouched at temperature 0.
        confidence_threshold: None never stops early.

    Returns:
        A block as wide as its longest row, with `probs` 0 where nothing was offered; None at
        temperature 0, where the drafts are deterministic given the outcomes of random transforms.
    """
    steps = int(limits.max()) if len(limits) else 0
    if steps <= 0:
        return DraftBlock(limits.new_empty((len(limits), 0)), torch.zeros_like(limits), None)
    histories.reserve(steps)
    greedy = pipeline.settings.greedy
    active = limits > 0
    logits = _catch_up(session, histories, active)
    tokens: list[Tensor] = []
    probs: list[Tensor] = []
    everyone = bool((limits == steps).all()) and confidence_threshold is None
    for step in range(steps):
        starts = histories.lengths + step
        resting = None if everyone else ~active[:, None]
        q = _distribution(logits, resting, histories, starts, pipeline)
        token = q.argmax(1) if greedy else draw(q, generator)
        histories.tokens.scatter_(1, starts[:, None], token[:, None])
        tokens.append(token if everyone else torch.where(active, token, -1))
        if not greedy:
            probs.append(q if resting is None else q.masked_fill(resting, 0.0))
        if step + 1 == steps:
            break
        if not everyone:
            active = active & (step + 1 < limits)
            if confidence_threshold is not None:
                confidence = logits.double().softmax(1) if greedy else q
                active &= confidence.gather(1, token[:, None]).squeeze(1) >= confidence_threshold
            if not bool(active.any()):
                break
        logits = session.extend(token[:, None], None if everyone else active.long())[:, 0]
    block = torch.stack(tokens, 1)
    offered = block >= 0
    if greedy:
        return DraftBlock(block, offered.sum(1), None)
    return DraftBlock(
        block, offered.sum(1), torch.stack(probs, 1).masked_fill_(~offered.unsqueeze(2), 0.0)
    )


def _catch_up(session: Session, histories: Histories, active: Tensor) -> Tensor:
    """Read the committed tokens the session lacks; logits [B, V] after the last one."""
    counts = torch.where(active, histories.lengths - session.lengths, 0)
    offsets = torch.arange(int(counts.max()), device=counts.device)
    position = (session.lengths[:, None] + offsets).clamp(max=histories.tokens.shape[1] - 1)
    unread = torch.where(offsets < counts[:, None], histories.tokens.gather(1, position), -1)
    logits = session.extend(unread, counts)
    rows = torch.arange(len(counts), device=counts.device)
    return logits[rows, (counts - 1).clamp(min=0)]


def _distribution(
    logits: Tensor,
    resting: Tensor | None,
    histories: Histories,
    starts: Tensor,
    pipeline: Pipeline,
) -> Tensor:
    """Transformed probabilities [B, V] of the next token; rows that rest ([B, 1], None if none
    do), whose logits may be anything, get a flat row that a draw passes over."""
    if resting is not None:
        logits = logits.masked_fill(resting, 0.0)
    q = pipeline.probabilities(
        logits[:, None],
        histories.tokens,
        starts,
        histories.prompt_lengths,
        None if resting is None else (~resting).squeeze(1).long(),
    ).squeeze(1)
    return q if resting is None else q.masked_fill(resting, 1.0)


def check_confidence(threshold: float | None) -> None:
    """Raise `UsageError` unless the threshold is a probability or None."""
    if threshold is not None and not 0.0 <= threshold <= 1.0:
        raise UsageError(
            f"confidence_threshold={threshold!r} is not a probability; choose one between 0 "
            "(never stop) and 1, or None"
        )
