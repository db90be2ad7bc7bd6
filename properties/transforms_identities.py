"""Chapter transforms: changes of the input that change the result in a known way, or not at all.

Like the rest of the algebra these compare the subject with itself, see `transforms_algebra`.
"""

import torch

from specverify.certification.probes.transform_laws import (
    Parameters,
    has_reference,
    laws_of,
    obeys,
    renamed,
)
from specverify.certification.probes.transform_rows import (
    Batch,
    batch,
    beside,
    decided,
    differs,
    first,
    limit,
    possible,
    probabilities,
    ties_sorted,
)
from specverify.certification.probes.transform_trial import Apply, TransformTrial
from specverify.certification.registry import Outcome, register
from specverify.certification.transform_case import PARAMETERS
from specverify.subjects.protocols import TRANSFORMS

SHIFTS = {"up": 256.0, "down": -256.0}
"""Constants whose exponentials float32 cannot hold, so the largest logit must be subtracted first;
sums with the rows' logits are exact."""

TEMPERATURES = {"hotter": 2.0, "colder": 0.5}


@register(
    "transforms.idempotent",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("random", "masked"),
    needs=obeys(lambda laws: laws.idempotent, "does more each time it is applied"),
    after=("transforms.equals_reference",),
    why_kept="names the mistake: a second application cuts more",
)
def idempotent(trial: TransformTrial, alpha: float) -> Outcome:
    """Applied to its own result, the transform changes nothing.

    Why it holds: top-k, min-p, epsilon and bans judge a token by what a renormalisation of the
    survivors does not turn against it (algorithms.md section 2).

    What breaks it: a threshold on cumulated mass, or on a statistic of the survivors.

    Error rate: none, on rows that no rounding decides.
    """
    rows = batch(trial.input, trial.seed)

    def check(parameters: Parameters, apply: Apply) -> str | None:
        once = apply(rows.ids, rows.logits)
        again = Batch(rows.ids, once)
        wanted, found = probabilities(once), probabilities(apply(rows.ids, once))
        clear = decided(trial.reference, parameters, rows)
        clear &= decided(trial.reference, parameters, Batch(rows.ids, possible(once)))
        wrong = clear & differs(wanted, found, limit(rows.logits))
        return first(wrong, lambda row: beside(again, row, wanted, found))

    return trial.each(PARAMETERS[trial.reference], check)


@register(
    "transforms.shift",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=tuple(SHIFTS),
    needs=obeys(lambda laws: laws.shift, "sees where the logits' zero is"),
    after=("transforms.equals_reference",),
    why_kept="names the mistake: a constant added to all logits shows",
)
def shift(trial: TransformTrial, alpha: float) -> Outcome:
    """A constant added to all logits changes nothing.

    Why it holds: logits that differ by a constant are the same distribution, and a model may
    return either. The repetition penalty, which divides logits, is the exception.

    What breaks it: exponentials without the largest logit subtracted, a threshold on logits.

    Error rate: none, on rows that no rounding decides.
    """
    rows = batch("masked", trial.seed)
    moved = Batch(rows.ids, rows.logits + SHIFTS[trial.input])

    def check(parameters: Parameters, apply: Apply) -> str | None:
        wanted = probabilities(apply(rows.ids, rows.logits))
        found = probabilities(apply(moved.ids, moved.logits))
        clear = decided(trial.reference, parameters, rows)
        wrong = clear & differs(wanted, found, limit(moved.logits))
        return first(wrong, lambda row: beside(moved, row, wanted, found))

    return trial.each(PARAMETERS[trial.reference], check)


@register(
    "transforms.cooling",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=tuple(TEMPERATURES),
    needs=obeys(lambda laws: laws.cooled, "does something else at every temperature"),
    after=("transforms.equals_reference",),
    why_kept="names the mistake: something goes by the scale of the logits that should not",
)
def cooling(trial: TransformTrial, alpha: float) -> Outcome:
    """Before a temperature or after it, the transform does the same.

    Why it holds: top-k, top-n-sigma and bans go by what a temperature leaves alone, min-p by a
    ratio of which it makes a power, so that MinP(m) T = T MinP(m^T), and the repetition penalty
    multiplies (algorithms.md section 2).

    What breaks it: top-n-sigma measured on probabilities, a limit of min-p on logits, a penalty
    that is subtracted.

    Error rate: none, on rows that no rounding decides.
    """
    laws, rows = laws_of(trial.subject), batch("random", trial.seed)
    assert laws.cooled is not None
    cool, temperature = laws.cooled, TEMPERATURES[trial.input]
    cooled = Batch(rows.ids, rows.logits / temperature)

    def check(parameters: Parameters, apply: Apply) -> str | None:
        inside = cool(parameters, temperature)
        wanted = probabilities(possible(apply(rows.ids, rows.logits)).double() / temperature)
        found = probabilities(trial.call(trial.build(**inside), cooled.ids, cooled.logits))
        clear = decided(trial.reference, parameters, rows)
        clear &= decided(trial.reference, inside, cooled)
        wrong = clear & differs(wanted, found, limit(rows.logits, cooled.logits))
        return first(
            wrong,
            lambda row: (
                f"and {inside} after a temperature of {temperature}, "
                + beside(cooled, row, wanted, found)
            ),
        )

    return trial.each(PARAMETERS[trial.reference], check)


@register(
    "transforms.permutation",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("random", "tied"),
    needs=has_reference,
    after=("transforms.equals_reference",),
    why_kept="names the mistake: an id, and not its logit, decides",
)
def permutation(trial: TransformTrial, alpha: float) -> Outcome:
    """Renaming the tokens, in logits, history and parameters alike, renames the result.

    Why it holds: a token id is a name. Which of several tied tokens a truncation keeps may go by
    their ids; how many of them may not.

    What breaks it: an id used as a rank, a mask left in sorted order, a special token treated by
    its number.

    Error rate: none, on rows that no rounding decides.
    """
    truncates = laws_of(trial.subject).effect == "truncates"
    rows = batch(trial.input, trial.seed)
    names = torch.randperm(rows.logits.shape[-1], generator=trial.generator(1))
    other = Batch(names[rows.ids], rows.logits[:, names.argsort()])

    def check(parameters: Parameters, apply: Apply) -> str | None:
        wanted = probabilities(apply(rows.ids, rows.logits))
        transform = trial.build(**renamed(parameters, names.tolist()))
        found = probabilities(trial.call(transform, other.ids, other.logits))[:, names]
        wrong = differs(wanted, found, limit(rows.logits))
        if truncates:
            mine, theirs = (ties_sorted(each, rows.logits) for each in (wanted, found))
            wrong &= differs(mine, theirs, limit(rows.logits))
        if trial.input != "tied":
            wrong &= decided(trial.reference, parameters, rows)
        return first(
            wrong,
            lambda row: (
                f"with tokens renamed {names.tolist()} and back, "
                + beside(rows, row, wanted, found)
            ),
        )

    return trial.each(PARAMETERS[trial.reference], check)
