"""A small input on which a transform gives another distribution than its reference."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from specverify.certification.certificate import CounterexampleRecord
from specverify.certification.counterexamples.search import Limits
from specverify.certification.counterexamples.transform_input import (
    TransformInput,
    compute_transform,
    observed_logits,
)
from specverify.certification.counterexamples.transform_record import row_record
from specverify.certification.counterexamples.transform_rows import (
    LARGEST,
    exact_rows,
    plain_inputs,
    simpler,
    sizes,
)
from specverify.certification.exact_evidence import NUMERICAL
from specverify.certification.registry import properties_of
from specverify.certification.transform_case import TransformCase, corpus, transform_cases
from specverify.certification.transform_evidence import (
    ROUNDING,
    Compared,
    TransformEvidence,
    largest,
    run_transform,
)
from specverify.errors import SettingsError, SubjectError
from specverify.subjects.protocols import Subject

EVALUATIONS = 20_000
"""Each is one call for one row."""

_CLAIM = "transforms.equals_reference"
_NUDGES = (48, 2_048)
"""Ways in which a row is nudged; where none of the first changes what is kept, many more are tried,
since there are many ways to break a tie among several tokens."""
_SEED = 20260201
"""Of the nudges."""
_FROM_CORPUS = 32
"""Rows of each kind that are tried where no small one fails."""


@dataclass(frozen=True)
class _Trial:
    """A subject under test, and what it may cost."""

    subject: Subject
    seed: int
    time_limit: float
    limits: Limits

    def differs(self, value: TransformInput) -> Tensor | None:
        """The subject's logits where they are not the reference's, for whatever reason."""
        try:
            self.limits.tried += 1
            observed = observed_logits(self.subject, value, self.seed, self.time_limit)
            expected = value.expected
        except (SettingsError, SubjectError):
            return None  # nothing is expected, or a crash: another fault than this
        apart = (observed.softmax(-1) - expected.softmax(-1)).abs().sum() / 2
        unsupported = (observed.softmax(-1) > 0) & (expected.softmax(-1) == 0)
        return observed if float(apart) > NUMERICAL or bool(unsupported.any()) else None


def smallest_row(
    subject: Subject,
    property: str,
    seed: int,
    time_limit: float,
    seconds: float,
    case_id: str = "",
) -> CounterexampleRecord | None:
    """Search for a small row on which a transform is wrong; None if none of those tried is.

    A row counts only where `transforms.equals_reference` calls it wrong, and where the reference
    keeps the same tokens when logits and thresholds are moved by rounding. A row exactly at a
    boundary counts where the property says that the subject has another convention there.

    Args:
        subject: a transform, which names its reference.
        property: that it is searched for.
        seed: of what is random in the subject, and of the corpus.
        time_limit: seconds for one call.
        seconds: for the search.
        case_id: of the case that is violated, whose parameters are tried first.
    """
    limits = Limits(EVALUATIONS, seconds)
    trial = _Trial(subject, seed, time_limit, limits)
    cases = transform_cases(subject.reference)
    cases.sort(key=lambda case: not case_id.endswith(case.id))
    for value in _wrong_rows(trial, cases):
        with suppress(SubjectError):
            result = compute_transform(subject, value, seed, time_limit)
            if result.wrong:
                return row_record(property, value, result, limits)
    return None


def _wrong_rows(trial: _Trial, cases: list[TransformCase]) -> Iterator[TransformInput]:
    """Rows on which the subject is wrong: small ones, ones at boundaries, then those of cases."""
    widths = sorted({size for case in cases for size in sizes(case)})
    for width in widths:
        for case in cases:
            if width in sizes(case):
                yield from _wrong_of(trial, _plain(case, width))
    for case in cases:
        if not trial.limits.spent and _other_convention(trial, case):
            yield from _wrong_at_boundaries(trial, case)
    for case in cases:
        for value in _wrong_of(trial, _of_corpus(case, trial.seed)):
            yield _simplest(trial, value)


def _wrong_of(trial: _Trial, values: Iterator[TransformInput]) -> Iterator[TransformInput]:
    for value in values:
        if trial.limits.spent:
            return
        observed = trial.differs(value)
        if observed is not None and _wrong(trial.subject, value, observed):
            yield value


def _simplest(trial: _Trial, value: TransformInput) -> TransformInput:
    """A wrong row with all left out of it that can be."""
    while True:
        inputs = simpler(value.case, value.history, value.logits)
        smaller = (replace(value, history=history, logits=row) for history, row in inputs)
        found = next(_wrong_of(trial, smaller), None)
        if found is None:
            return value
        value = found


def _plain(case: TransformCase, width: int) -> Iterator[TransformInput]:
    for history, logits in plain_inputs(case, width):
        exact = tuple(torch.tensor(logits, dtype=torch.float32).tolist())
        yield TransformInput(case, history, exact, "float32")


def _of_corpus(case: TransformCase, seed: int) -> Iterator[TransformInput]:
    """Rows that every transform is tried on, where they are plain enough."""
    for rows in corpus(seed).values():
        logits = rows.logits[:_FROM_CORPUS].float()
        near = (largest(logits) <= LARGEST).squeeze(1).tolist()
        for index in range(len(logits)):
            if near[index]:
                history = tuple(rows.histories[index].tolist())
                yield TransformInput(case, history, tuple(logits[index].tolist()), "float32")


def _wrong(subject: Subject, value: TransformInput, observed: Tensor) -> bool:
    """Whether the property calls a row wrong on which rounding decides nothing."""
    for count in _NUDGES:
        alternatives = _alternatives(value, count)
        if bool(((alternatives > -torch.inf) != (value.expected > -torch.inf)).any()):
            return False
        compared = Compared(value.row, value.expected, observed, alternatives, exact=False)
        if not _violations(TransformEvidence(subject, value.case, {"searched": compared}, ())):
            return False
    return True


def _alternatives(value: TransformInput, count: int) -> Tensor:
    """What the reference makes of logits and thresholds moved as little as rounding may.

    Returns:
        float64 [A, 1, V].
    """
    generator = Generator().manual_seed(_SEED)
    size = ROUNDING * largest(value.row).clamp(min=1.0)
    factors = (1.0, 1 - ROUNDING, 1 + ROUNDING) if value.case.thresholds else (1.0,)
    shape = (count, value.row.shape[1])
    noise = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    nudged = torch.cat([value.row, value.row + noise * size])
    histories = value.ids.expand(len(nudged), -1)
    made = [value.case.build_reference(scaled=factor)(histories, nudged) for factor in factors]
    return torch.cat(made)[:, None]


def _other_convention(trial: _Trial, case: TransformCase) -> bool:
    """Whether the property calls exact rows of the corpus wrong, dozens of them together."""
    try:
        evidence = run_transform(trial.subject, case, trial.seed, trial.time_limit)
    except SubjectError:
        return False
    exact = {kind: compared for kind, compared in evidence.results.items() if compared.exact}
    return _violations(replace(evidence, results=exact))


def _wrong_at_boundaries(trial: _Trial, case: TransformCase) -> Iterator[TransformInput]:
    """Exact rows on which the convention shows, and not which of several tied tokens is taken."""
    for logits in exact_rows(case):
        for dtype in ("float64", "float32"):
            value = TransformInput(case, (0,), logits, dtype)
            if trial.differs(value) is not None and _ties_stand(value):
                yield value


def _ties_stand(value: TransformInput) -> bool:
    """Whether the reference gives tied tokens the same, so that their order does not matter."""
    kept: dict[float, set[float]] = {}
    for logit, mass in zip(value.logits, value.expected.softmax(-1)[0].tolist(), strict=True):
        kept.setdefault(logit, set()).add(round(mass, 12))
    return all(len(masses) == 1 for masses in kept.values())


def _violations(evidence: TransformEvidence) -> bool:
    (property,) = (found for found in properties_of("transform") if found.id == _CLAIM)
    return bool(property.check(evidence, 0.0).violations)
