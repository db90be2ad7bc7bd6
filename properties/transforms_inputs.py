"""Chapter transforms: sizes, widths and degenerate rows on which shortcuts fail."""

from collections.abc import Callable

import torch

from specverify.certification.probes.transform_laws import (
    Parameters,
    has_reference,
    laws_of,
    obeys,
)
from specverify.certification.probes.transform_rows import (
    LARGE_LIMIT,
    UNIT,
    Batch,
    batch,
    beside,
    decided,
    differs,
    distance,
    expected,
    first,
    limit,
    possible,
    probabilities,
)
from specverify.certification.probes.transform_trial import Apply, TransformTrial
from specverify.certification.registry import Outcome, register
from specverify.certification.transform_case import PARAMETERS
from specverify.errors import SubjectError, SubjectTimeout
from specverify.subjects.protocols import TRANSFORMS

WIDTHS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

COLD, HOT = (1e-6, 1e-3), (1e3, 1e6)

BUILDS_ON = ("transforms.equals_reference",)


@register(
    "transforms.sizes",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("small-vocabulary", "large-vocabulary", "short-history", "long-history"),
    needs=has_reference,
    after=BUILDS_ON,
)
def sizes(trial: TransformTrial, alpha: float) -> Outcome:
    """At any size of vocabulary and history the transform is its reference.

    Why it holds: no definition speaks of size.

    What breaks it: token ids in 16 bits, counts in 8, only the first thousand candidates sorted, a
    fast path for small vocabularies that lacks a step, a history shorter than an n-gram.

    Error rate: none, on rows that no rounding decides; with 50,000 tokens, where sums of float32
    are less exact, a TV of 1e-3.
    """
    laws, rows = laws_of(trial.subject), batch(trial.input, trial.seed)
    if trial.input == "large-vocabulary":
        most = torch.full((len(rows),), LARGE_LIMIT)

        def check(parameters: Parameters, apply: Apply) -> str | None:
            wanted = probabilities(expected(trial.reference, parameters, rows))
            found = probabilities(apply(rows.ids, rows.logits))
            wrong = distance(wanted, found) > most
            return first(wrong, lambda row: beside(rows, row, wanted, found))

        return trial.each((laws.large,), check)
    choices = PARAMETERS[trial.reference] + laws.more
    return trial.each(choices, _like_reference(trial, [rows]))


@register(
    "transforms.dtypes",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=tuple(WIDTHS),
    needs=has_reference,
    after=BUILDS_ON,
)
def dtypes(trial: TransformTrial, alpha: float) -> Outcome:
    """On logits of any width the transform is its reference, up to the rounding of that width.

    Why it holds: the values are the same; results are compared after rounding to the width, and
    where sums of that width cannot decide otherwise. A width that the subject refuses is not
    applicable, and float32 is not to be refused.

    What breaks it: widths that fall through to no change at all, counts kept in the logits' dtype,
    constants for masked tokens that overflow.

    Error rate: none, on rows that no rounding to the width decides.
    """
    laws, width = laws_of(trial.subject), WIDTHS[trial.input]
    kinds = [batch(kind, trial.seed) for kind in ("random", "masked", "long-history")]
    choices = PARAMETERS[trial.reference] + laws.more
    check = _like_reference(trial, [Batch(b.ids, b.logits.to(width)) for b in kinds])
    try:
        return trial.each(choices, check)
    except SubjectTimeout:
        raise
    except SubjectError as error:
        if width == torch.float32:
            raise
        return Outcome(not_applicable=f"refuses logits of {trial.input}: {error}")


@register(
    "transforms.extremes",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("one-token", "equal", "huge", "strictest"),
    needs=has_reference,
    after=BUILDS_ON,
)
def extremes(trial: TransformTrial, alpha: float) -> Outcome:
    """Degenerate rows and the strictest parameters give what the reference gives, never NaN.

    Why it holds: a row with one possible token, with equal tokens or with gaps that no exponential
    holds is still a distribution, and a truncation keeps at least one token.

    What breaks it: 0 times -inf in an entropy, a deviation of one token, a threshold that rounds to
    1 and removes everything.

    Error rate: none, on rows that no rounding decides; on the others only NaN, +inf and rows
    without a token are told.
    """
    if trial.input != "strictest":
        rows = batch(trial.input, trial.seed)
        return trial.each(PARAMETERS[trial.reference], _like_reference(trial, [rows]))
    strictest = laws_of(trial.subject).strictest
    if strictest is None:
        return Outcome(not_applicable=f"{trial.reference} keeps or bans whatever its strictness")
    kinds = [batch(kind, trial.seed) for kind in ("random", "masked")]
    return trial.each((strictest,), _like_reference(trial, kinds))


@register(
    "transforms.extreme_temperature",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("cold", "hot"),
    needs=obeys(lambda laws: laws.effect == "tempers", "has no temperature"),
    after=BUILDS_ON,
)
def extreme_temperature(trial: TransformTrial, alpha: float) -> Outcome:
    """The temperature that is asked for is the one that is applied, from 1e-6 to 1e6.

    Why it holds: logits times the temperature, divided by it, are the logits, and masked tokens
    stay masked at any temperature.

    What breaks it: temperatures raised to a least one or read as 0, a quotient that overflows, a
    mask that a hot temperature brings within reach.

    Error rate: none; 1e-6 in TV for logits of at most 8.
    """
    plain, masked = batch("random", trial.seed), batch("masked", trial.seed)

    def check(parameters: Parameters, apply: Apply) -> str | None:
        scaled = Batch(masked.ids, masked.logits * parameters["temperature"])
        judge = _like_reference(trial, [plain, scaled])
        return judge(parameters, apply)

    chosen = COLD if trial.input == "cold" else HOT
    return trial.each([{"temperature": each} for each in chosen], check)


def _like_reference(
    trial: TransformTrial, batches: list[Batch]
) -> Callable[[Parameters, Apply], str | None]:
    """A check that the subject does what the reference does, within the rounding of the logits."""
    reference = trial.reference

    def one(parameters: Parameters, apply: Apply, rows: Batch) -> str | None:
        eps = torch.finfo(rows.logits.dtype).eps
        values = Batch(rows.ids, rows.logits.double())
        wanted = expected(reference, parameters, values)
        observed = apply(rows.ids, rows.logits)
        most = limit(values.logits, possible(wanted), possible(observed), unit=max(UNIT, eps))
        clear = decided(reference, parameters, values, eps)
        should, does = probabilities(wanted), probabilities(observed)
        wrong = clear & differs(should, does, most)
        return first(wrong, lambda row: beside(values, row, should, does))

    def check(parameters: Parameters, apply: Apply) -> str | None:
        return next(filter(None, (one(parameters, apply, rows) for rows in batches)), None)

    return check
