"""What a wrong transform looks like: the mistake by name, however it is written."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specverify.certification.case_records import DiagnosisRecord
from specverify.certification.diagnosis_bets import UNKNOWN
from specverify.certification.diagnosis_transforms import (
    compared_transform,
    diagnose_transform,
    seen_of,
)
from specverify.certification.run import certify
from specverify.certification.signatures import library, of_transform
from specverify.certification.transform_case import PARAMETERS
from specverify.certification.transform_looks import looks
from specverify.fixtures.controls import CONTROLS
from specverify.fixtures.lookalikes.transforms_algebra import LOOKALIKES
from specverify.fixtures.mutants.any_transform import GeneralMistake
from specverify.fixtures.mutants.catalogue import Mutant
from specverify.subjects.protocols import Subject
from specverify.transforms import REFERENCE, TopP

Made = Callable[[Tensor, Tensor], Tensor]

MUTANTS = {
    control.id: control.origin
    for control in CONTROLS
    if isinstance(control.origin, Mutant) and control.subject.reference in PARAMETERS
}


def diagnosed(reference: str, factory: Callable[..., Made]) -> DiagnosisRecord | None:
    return diagnose_transform(Subject("mine", "transform", factory, reference=reference))


def sorted_nucleus(top_p: float) -> Made:
    """Top-p without the token that crosses p, as one writes it with sort and scatter."""

    def apply(ids: Tensor, logits: Tensor) -> Tensor:
        descending, order = logits.float().softmax(-1).sort(dim=-1, descending=True)
        removed = descending.cumsum(-1) > top_p
        removed[:, 0] = False
        return logits.masked_fill(removed.scatter(1, order, removed), -torch.inf)

    return apply


def looped_nucleus(top_p: float) -> Made:
    """The same, with a loop that adds up."""

    def one(row: Tensor) -> Iterator[int]:
        probs, total = row.double().softmax(-1), 0.0
        for place, token in enumerate(probs.argsort(descending=True, stable=True).tolist()):
            total += float(probs[token])
            if place == 0 or total <= top_p:
                yield token

    def apply(ids: Tensor, logits: Tensor) -> Tensor:
        result = torch.full_like(logits, -torch.inf)
        for row, kept in enumerate(map(list, map(one, logits))):
            result[row, kept] = logits[row, kept]
        return result

    return apply


def exact_k(top_k: int) -> Made:
    """Keeps k of several tied tokens, others than the mutant keeps."""

    def apply(ids: Tensor, logits: Tensor) -> Tensor:
        order = logits.flip(-1).sort(dim=-1, descending=True, stable=True).indices
        kept = logits.shape[-1] - 1 - order[:, :top_k]
        return torch.full_like(logits, -torch.inf).scatter(1, kept, logits.gather(1, kept))

    return apply


def divided_in_place(temperature: float) -> Made:
    return lambda ids, logits: logits.div_(temperature)


def always_divided(penalty: float) -> Made:
    """The repetition penalty without its case for negative logits."""

    def apply(ids: Tensor, logits: Tensor) -> Tensor:
        return logits.scatter(1, ids, logits.gather(1, ids) / penalty)

    return apply


def each_seen_once(penalty: float) -> Made:
    """A frequency penalty that is a presence penalty."""
    return lambda ids, logits: logits - penalty * torch.zeros_like(logits).scatter(1, ids, 1.0)


def into_one_tensor(top_p: float) -> Made:
    right, buffers = TopP(top_p), dict[int, Tensor]()

    def apply(ids: Tensor, logits: Tensor) -> Tensor:
        width = logits.shape[1]
        buffer = buffers.setdefault(width, torch.zeros(300, width, dtype=torch.float64))
        buffer[: len(logits)] = right(ids, logits)
        return buffer[: len(logits)]

    return apply


WRITTEN = [
    ("top_p", sorted_nucleus, "top-p-crossing-dropped"),
    ("top_p", looped_nucleus, "top-p-crossing-dropped"),
    ("top_k", exact_k, "top-k-ties-cut"),
    ("temperature", divided_in_place, "temperature-written-in-place"),
    ("repetition_penalty", always_divided, "repetition-penalty-always-divides"),
    ("frequency_penalty", each_seen_once, "frequency-penalty-as-presence-penalty"),
    ("top_p", into_one_tensor, "top-p-one-buffer"),
]
"""A reference, somebody's own code, and the mistake that is in it."""


@pytest.mark.parametrize(
    ("reference", "factory", "id"), WRITTEN, ids=[f.__name__ for _, f, _ in WRITTEN]
)
def test_a_mistake_is_named_however_it_is_written(
    reference: str, factory: Callable[..., Made], id: str
) -> None:
    found = diagnosed(reference, factory)
    assert found is not None
    assert (found.mutant, found.basis) == (id, "exact")
    assert found.confidence > 0.9
    assert found.suspects[0].mutant == id
    assert found.kind == found.suspects[0].kind != UNKNOWN


def every_third_lowered(top_p: float) -> Made:
    """Nothing that anybody would write."""

    def apply(ids: Tensor, logits: Tensor) -> Tensor:
        result = logits.clone()
        result[:, ::3] -= 2 * top_p
        return result

    return apply


def counts_added_up(penalty: float) -> Made:
    """Counts of a call are added to those of the calls before it."""
    before: dict[torch.Size, Tensor] = {}

    def apply(ids: Tensor, logits: Tensor) -> Tensor:
        counts = torch.zeros_like(logits).scatter_add(1, ids, torch.ones_like(ids).to(logits))
        before[counts.shape] = before.get(counts.shape, 0.0) + counts
        return logits - penalty * before[counts.shape]

    return apply


def larger_p(top_p: float) -> Made:
    return TopP(min(1.0, top_p + 0.05))


@pytest.mark.parametrize(
    ("reference", "factory"),
    [
        ("top_p", every_third_lowered),
        ("frequency_penalty", counts_added_up),
        ("top_p", larger_p),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_mistake_nobody_made_before_is_unknown(
    reference: str, factory: Callable[..., Made]
) -> None:
    found = diagnosed(reference, factory)
    assert found is not None
    assert (found.kind, found.mutant) == (UNKNOWN, "")


@pytest.mark.parametrize("lookalike", LOOKALIKES, ids=lambda lookalike: lookalike.id)
def test_what_is_right_has_no_diagnosis(lookalike: Any) -> None:
    assert diagnose_transform(lookalike.subject) is None


def test_what_names_no_reference_with_cases_has_none() -> None:
    assert diagnosed("xtc", REFERENCE["xtc"]) is None
    unnamed = Subject("mine", "transform", every_third_lowered)
    assert diagnose_transform(unnamed) is None


def test_what_fails_on_some_rows_is_compared_on_the_others() -> None:
    def narrow(top_p: float) -> Made:
        right = sorted_nucleus(top_p)

        def apply(ids: Tensor, logits: Tensor) -> Tensor:
            if logits.dtype != torch.float32:
                raise TypeError("float32 only")
            return right(ids, logits)

        return apply

    subject = Subject("narrow", "transform", narrow, reference="top_p")
    assert 0 < len(seen_of(subject)) < len(looks("top_p"))
    found = diagnose_transform(subject)
    assert found is not None
    assert found.mutant == "top-p-crossing-dropped"


def test_what_takes_float32_alone_is_shown_exact_rows_in_that() -> None:
    def narrow(top_k: int) -> Made:
        right = exact_k(top_k)

        def apply(ids: Tensor, logits: Tensor) -> Tensor:
            assert logits.dtype == torch.float32
            return right(ids, logits)

        return apply

    found = diagnosed("top_k", narrow)
    assert found is not None
    assert found.mutant == "top-k-ties-cut"


def test_what_fails_always_has_none() -> None:
    def fails(top_p: float) -> Made:
        raise ValueError("no")

    assert diagnosed("top_p", fails) is None


def test_logits_that_are_none_are_a_mistake_to_be_compared() -> None:
    found = diagnose_transform(MUTANTS["entropy-of-masked-tokens"].subject)
    assert found is not None
    assert found.mutant == "entropy-of-masked-tokens"


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.id)
def test_mutants_are_told_apart_and_unknown_ones_mislead_nobody(mutant: Mutant) -> None:
    reference = str(mutant.subject.reference)
    seen = seen_of(mutant.subject)
    known = compared_transform(reference, seen)
    left_out = compared_transform(reference, seen, without=frozenset({mutant.id}))
    assert known is not None
    assert left_out is not None
    assert (known.kind, known.mutant) == (mutant.family, mutant.id)
    assert known.confidence > 0.9
    assert left_out.kind in (UNKNOWN, mutant.family) or left_out.confidence < 0.9


def test_the_library_has_all_mutants_and_what_any_transform_may_do_wrong() -> None:
    known = library("transform")
    assert len({mistake.id for mistake in known}) == len(known)
    assert {mistake.id for mistake in known} >= MUTANTS.keys()
    for reference in PARAMETERS:
        general = [m for m in of_transform(reference) if isinstance(m, GeneralMistake)]
        assert len(general) > 10
        assert {m.subject.reference for m in general} == {reference}
        assert all(m.subject.summary == m.description for m in general)


def test_a_diagnosis_is_the_same_every_time() -> None:
    first, second = (diagnosed("top_p", partial(sorted_nucleus)) for _ in range(2))
    assert first == second


def test_a_certificate_says_it_once() -> None:
    subject = Subject("mine", "transform", sorted_nucleus, reference="top_p")
    certificate = certify(subject, only=["transforms.equals_reference"])
    (shown,) = [case for case in certificate.cases if case.diagnosis is not None]
    assert shown.counterexample is not None
    assert shown.diagnosis is not None
    assert shown.diagnosis.mutant == "top-p-crossing-dropped"
    quick = certify(subject, only=["transforms.equals_reference"], shrink=False)
    assert [case for case in quick.cases if case.diagnosis is not None] == []
