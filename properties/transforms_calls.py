"""Chapter transforms: however it is called, it is the same function and nothing more."""

import torch

from specverify.certification.probes.transform_laws import (
    Parameters,
    has_reference,
)
from specverify.certification.probes.transform_rows import (
    batch,
    beside,
    decided,
    differs,
    distance,
    first,
    limit,
    probabilities,
)
from specverify.certification.probes.transform_trial import Apply, TransformTrial
from specverify.certification.registry import Outcome, register
from specverify.certification.transform_case import PARAMETERS
from specverify.subjects.guard import run_guarded
from specverify.subjects.protocols import TRANSFORMS, Subject

ALONE = 12
"""Rows that are handed over one by one."""

BUILDS_ON = ("transforms.equals_reference",)


def _takes_batches(subject: Subject) -> str | None:
    alone = None if subject.capabilities.batch else "takes one row a call"
    return has_reference(subject) or alone


@register(
    "transforms.batch",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("alone", "reordered"),
    needs=_takes_batches,
    why_kept="names the mistake: a row is not what it is alone, or in another place",
)
def rows_apart(trial: TransformTrial, alpha: float) -> Outcome:
    """A row comes out the same alone, among others, and wherever it stands.

    Why it holds: rows of a batch are requests of different people.

    What breaks it: a statistic taken over the whole batch, the history of the first row used for
    all, results written back to the wrong rows, a dimension squeezed away.

    Error rate: none, on rows that no rounding decides.
    """
    rows = batch("mixed", trial.seed)
    places = torch.randperm(len(rows), generator=trial.generator(1))
    alone = trial.input == "alone"
    chosen = torch.arange(ALONE) if alone else places

    def check(parameters: Parameters, apply: Apply) -> str | None:
        together = probabilities(apply(rows.ids, rows.logits))[chosen]
        asked = rows[chosen]
        parts = [asked[i : i + 1] for i in range(ALONE)] if alone else [asked]
        apart = probabilities(torch.cat([apply(part.ids, part.logits) for part in parts]))
        wrong = decided(trial.reference, parameters, asked)
        wrong &= differs(apart, together, limit(asked.logits))
        return first(wrong, lambda row: beside(asked, row, apart, together))

    return trial.each(PARAMETERS[trial.reference], check)


@register(
    "transforms.arguments",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("mixed", "masked"),
    needs=has_reference,
)
def arguments(trial: TransformTrial, alpha: float) -> Outcome:
    """A call changes neither the history nor the logits it is handed.

    Why it holds: both belong to the caller. Verification asks for the distributions of several
    positions of one tensor of logits, and histories are prefixes of one tensor of tokens. What is
    handed in may be handed back where nothing is to be done.

    What breaks it: `masked_fill_`, `div_`, assignment to an index.

    Error rate: none, one entry is proof.
    """
    rows = batch(trial.input, trial.seed)
    violations: list[str] = []
    for parameters in PARAMETERS[trial.reference]:
        ids, logits = rows.ids.clone(), rows.logits.clone()
        run_guarded(
            trial.subject,
            trial.build(**parameters),
            ids,
            logits,
            generator=trial.generator(),
            limit=trial.time_limit,
        )
        for name, now, before in (("ids", ids, rows.ids), ("logits", logits, rows.logits)):
            changed = int((now != before).sum())
            if changed:
                violations.append(f"with {parameters}: changes {changed} of the {name} in place")
    return Outcome(violations=tuple(violations))


@register(
    "transforms.results",
    kinds=TRANSFORMS,
    evidence="probed",
    inputs=("kept", "overwritten"),
    needs=has_reference,
)
def results(trial: TransformTrial, alpha: float) -> Outcome:
    """A result stays what it is, and the same call gives it again, whatever happens in between.

    Why it holds: a transform has no state; a decoder calls it for candidates that it rejects.

    What breaks it: a buffer that every call writes its result to, counts kept from call to call,
    a memory of results that is handed out without a copy.

    Error rate: none; 1e-6 in TV for logits of at most 8.
    """
    rows, others = batch("mixed", trial.seed), batch("masked", trial.seed)[:5]

    def check(parameters: Parameters, apply: Apply) -> str | None:
        result = apply(rows.ids, rows.logits)
        wanted = probabilities(result)
        apply(others.ids.flip(1), others.logits)
        if not torch.equal(probabilities(result), wanted):
            return "the result of one call changes with the next"
        writable = result.is_contiguous() and not result.is_inference()
        if trial.input == "overwritten" and writable:
            result.zero_()
        found = probabilities(apply(rows.ids, rows.logits))
        wrong = distance(wanted, found) > limit(rows.logits)
        return first(
            wrong,
            lambda row: "the same call differs the next time: " + beside(rows, row, wanted, found),
        )

    return trial.each(PARAMETERS[trial.reference], check)
