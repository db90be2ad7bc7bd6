"""Chapter transforms: what a single transform may do to a row.

These laws hold for parameters and rows that `transforms.equals_reference` does not compare, and
name the mistake where that shows only that there is one. Which reference obeys which is a table,
`certification.probes.transform_laws.LAWS`.
"""

import torch
from torch import Tensor

from specverify.certification.probes.transform_laws import (
    Parameters,
    favoured,
    has_reference,
    laws_of,
    obeys,
)
from specverify.certification.probes.transform_rows import (
    TV_LIMIT,
    Batch,
    batch,
    beside,
    decided,
    differs,
    expected,
    first,
    limit,
    numbers,
    probabilities,
)
from specverify.certification.probes.transform_trial import Apply, TransformTrial
from specverify.certification.registry import Outcome, register
from specverify.certification.transform_case import PARAMETERS
from specverify.subjects.protocols import TRANSFORMS

ORDER = 1e-5
"""Relative difference of two probabilities that rounding explains, for logits of at most 8."""


@register(
    "transforms.support",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("masked", "dyadic", "one-token"),
    needs=has_reference,
    after=("transforms.equals_reference",),
    why_kept="names the mistake: a masked token comes back, or an allowed one goes",
)
def support(trial: TransformTrial, alpha: float) -> Outcome:
    """An impossible token stays impossible, and only truncations and bans make one impossible.

    Why it holds: a transform without memory of the logits before the mask cannot know what to put
    back, and constraints of earlier transforms would be void.

    What breaks it: a mask that is a large negative number, later divided, clamped or compared; a
    minimum of tokens to keep that is filled up with masked ones; NaN where -inf meets 0.

    Error rate: none, one token is proof. Tokens less likely than 1e-6 may be lost to rounding.
    """
    laws, rows = laws_of(trial.subject), batch(trial.input, trial.seed)

    def check(parameters: Parameters, apply: Apply) -> str | None:
        before, after = probabilities(rows.logits), probabilities(apply(rows.ids, rows.logits))
        revived = (after > 0) & (before == 0)
        said = first(
            revived.any(-1), lambda row: f"of {_tokens(revived, row, after)} all were impossible"
        )
        if said is not None or laws.masks:
            return said
        wanted = probabilities(expected(trial.reference, parameters, rows))
        lost = (after == 0) & (wanted > TV_LIMIT)
        return first(lost.any(-1), lambda row: f"{_tokens(lost, row, wanted)} come out impossible")

    return trial.each(PARAMETERS[trial.reference], check)


@register(
    "transforms.survivors",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("random", "masked", "peaked"),
    needs=obeys(lambda laws: laws.masks, "does more than make tokens impossible"),
    after=("transforms.equals_reference",),
    why_kept="names the mistake: what is kept is not kept in proportion",
)
def survivors(trial: TransformTrial, alpha: float) -> Outcome:
    """What a truncation or a ban keeps, it keeps in proportion.

    Why it holds: it conditions the distribution on a set of tokens and nothing else.

    What breaks it: probabilities returned where logits are expected, a temperature left in, a
    residual of the removed mass given to one token.

    Error rate: none; 1e-6 in TV for logits of at most 8.
    """
    rows = batch(trial.input, trial.seed)

    def check(parameters: Parameters, apply: Apply) -> str | None:
        found = probabilities(apply(rows.ids, rows.logits))
        kept = rows.logits.masked_fill(found == 0, -torch.inf)
        empty = (kept == -torch.inf).all(-1)
        wanted = probabilities(torch.where(empty[:, None], rows.logits, kept))
        wrong = differs(wanted, found, limit(rows.logits))
        return first(wrong, lambda row: beside(rows, row, wanted, found))

    return trial.each(PARAMETERS[trial.reference], check)


@register(
    "transforms.order",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("random", "tied", "masked"),
    needs=obeys(
        lambda laws: laws.effect in ("truncates", "tempers"), "goes by more than the logits' order"
    ),
    after=("transforms.equals_reference",),
    why_kept="names the mistake: tokens change places, or are cut from the middle",
)
def order(trial: TransformTrial, alpha: float) -> Outcome:
    """A likelier token stays likelier, a tie stays a tie, and what is cut is cut from below.

    Why it holds: temperature and truncations are functions of the logits that rise with them.
    Typical sampling alone may cut the likeliest token, so there only survivors are compared.

    What breaks it: a mask scattered back to the wrong places, the first id kept in place of the
    likeliest token, an order taken before another transform.

    Error rate: none, one pair of tokens is proof.
    """
    laws, rows = laws_of(trial.subject), batch(trial.input, trial.seed)
    above = rows.logits[:, :, None] > rows.logits[:, None, :]
    level = rows.logits[:, :, None] == rows.logits[:, None, :]

    def check(parameters: Parameters, apply: Apply) -> str | None:
        found = probabilities(apply(rows.ids, rows.logits))
        upper, lower = found[:, :, None], found[:, None, :]
        both = (upper > 0) & (lower > 0)
        wrong = both & (above | level) & (upper < lower * (1 - ORDER))
        if laws.from_the_top:
            wrong |= above & (upper == 0) & (lower > 0)
        return first(wrong.flatten(1).any(-1), lambda row: _pair(wrong, row, rows, found))

    return trial.each(PARAMETERS[trial.reference], check)


@register(
    "transforms.monotone",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("random", "masked"),
    needs=has_reference,
    after=("transforms.equals_reference",),
    why_kept="names the mistake: a threshold that does not go by one order of the tokens",
)
def monotone(trial: TransformTrial, alpha: float) -> Outcome:
    """A more permissive parameter keeps all that a stricter one keeps; a penalty only grows.

    Why it holds: thresholds on one order of the tokens cut nested sets, and a row's distribution
    depends on temperature, penalty and bias in one direction.

    What breaks it: values near an end read as switched off, limits of a kernel on k, a parameter
    used with its sign or its inverse mistaken.

    Error rate: none, on rows that no rounding decides.
    """
    laws, rows = laws_of(trial.subject), batch(trial.input, trial.seed)
    before: list[tuple[Parameters, Tensor, Tensor]] = []

    def check(parameters: Parameters, apply: Apply) -> str | None:
        found = probabilities(apply(rows.ids, rows.logits))
        clear = decided(trial.reference, parameters, rows)
        previous = before.pop() if before else None
        before.append((parameters, found, clear))
        if previous is None:
            return None
        stricter, less, was_clear = previous
        if laws.masks:
            gone = (less > 0) & (found == 0) & (clear & was_clear)[:, None]
            return first(
                gone.any(-1), lambda row: f"{_tokens(gone, row, less)} go that {stricter} keeps"
            )
        gains = favoured(trial.reference, parameters, rows.ids, rows.logits)
        fewer = (less - found).where(gains, 0.0).sum(-1)
        return first(
            fewer > limit(rows.logits),
            lambda row: (
                f"tokens {gains[row].nonzero().squeeze(1).tolist()} have "
                f"{float(fewer[row]):.4g} less together than with {stricter}"
            ),
        )

    return trial.each(laws.ladder, check)


@register(
    "transforms.neutral",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("random", "tied", "masked", "peaked"),
    needs=has_reference,
    after=("transforms.equals_reference",),
)
def neutral(trial: TransformTrial, alpha: float) -> Outcome:
    """With its neutral parameter the transform changes nothing.

    Why it holds: temperature 1, k and p that keep everything, penalties of 1 or 0 and so on are
    how a setting is switched off.

    What breaks it: a zero taken for a missing value and replaced by a default, a sum of
    probabilities that rounding brings above 1.

    Error rate: none; 1e-6 in TV for logits of at most 8.
    """
    rows = batch(trial.input, trial.seed)
    wanted = probabilities(rows.logits)
    accepted = [each for each in laws_of(trial.subject).neutral if trial.accepts(each)]
    if not accepted:
        refused = ", ".join(str(each) for each in laws_of(trial.subject).neutral)
        return Outcome(not_applicable=f"refuses {refused}, with which nothing would change")

    def check(parameters: Parameters, apply: Apply) -> str | None:
        found = probabilities(apply(rows.ids, rows.logits))
        wrong = differs(wanted, found, limit(rows.logits))
        return first(wrong, lambda row: beside(rows, row, wanted, found))

    return trial.each(accepted, check)


def _tokens(chosen: Tensor, row: int, probs: Tensor) -> str:
    """The tokens of a row of a bool tensor [B, V], with their probabilities."""
    tokens = chosen[row].nonzero().squeeze(1)
    return f"tokens {tokens.tolist()} with probabilities {numbers(probs[row, tokens])}"


def _pair(wrong: Tensor, row: int, rows: Batch, found: Tensor) -> str:
    """The first pair of tokens of a row of a bool tensor [B, V, V]."""
    pair = wrong[row].nonzero()[0]
    return (
        f"on logits {numbers(rows.logits[row])}, tokens {pair.tolist()} with logits "
        f"{numbers(rows.logits[row, pair])} come out with {numbers(found[row, pair])}"
    )
