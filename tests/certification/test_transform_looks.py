"""Looks at a transform: rounding is no difference, and every kind of shortcut is one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specverify.certification.transform_case import PARAMETERS
from specverify.certification.transform_looks import Look, looks
from specverify.errors import SubjectError
from specverify.transforms import REFERENCE, Temperature, TopK


def differing(reference: str, factory: Callable[..., Any]) -> set[str]:
    """Kinds of looks at which a transform is not its reference."""
    return {
        look.kind
        for look in looks(reference)
        if look.distance(look.seen(factory), look.expected) > 0
    }


def look_at(reference: str, kind: str) -> Look:
    return next(look for look in looks(reference) if look.kind == kind)


@pytest.mark.parametrize("reference", ["top_k", "repetition_penalty", "logit_bias"])
def test_rounding_to_float32_is_no_difference(reference: str) -> None:
    def rounded(**parameters: Any) -> Callable[[Tensor, Tensor], Tensor]:
        right = REFERENCE[reference](**parameters)
        return lambda ids, logits: right(ids, logits).float()

    assert differing(reference, rounded) == set()


def test_what_works_for_some_calls_only_is_seen_where_it_does_not() -> None:
    def only(works: Callable[[Tensor, Tensor], bool]) -> Callable[..., Any]:
        def made(temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
            right = Temperature(temperature)
            return lambda ids, logits: right(ids, logits) if works(ids, logits) else logits

        return made

    assert differing("temperature", only(lambda ids, logits: len(logits) > 1)) == {"alone"}
    half = only(lambda ids, logits: logits.dtype != torch.bfloat16)
    assert {kind.split()[0] for kind in differing("temperature", half)} == {"bfloat16"}
    small = only(lambda ids, logits: logits.shape[1] < 1_000)
    assert differing("temperature", small) == {"large-vocabulary"}
    brief = only(lambda ids, logits: ids.shape[1] < 100)
    assert {kind.split()[-1] for kind in differing("temperature", brief)} == {"long-history"}


def test_a_mask_that_weighs_nothing_is_a_difference() -> None:
    def lowered(top_k: int) -> Callable[[Tensor, Tensor], Tensor]:
        right = TopK(top_k)

        def apply(ids: Tensor, logits: Tensor) -> Tensor:
            kept = right(ids, logits)
            return kept.where(kept > -torch.inf, logits.double() - 60.0)

        return apply

    look = look_at("top_k", "random")
    seen = look.seen(lowered)
    assert float(look.variation(seen, look.expected).max()) == 0
    assert look.distance(seen, look.expected) > 0.9


def test_no_distribution_is_as_far_off_as_can_be() -> None:
    look = look_at("temperature", "random")
    for nothing in (torch.nan, torch.inf, -torch.inf):
        seen = look.seen(lambda temperature, n=nothing: lambda ids, x: torch.full_like(x, n))
        assert bool((seen[:, -1] == 1).all())
        assert float(look.variation(seen, look.expected).min()) == pytest.approx(1.0)


def test_what_is_no_tensor_of_floats_of_that_shape_is_an_error() -> None:
    look = look_at("temperature", "random")
    for wrong in (lambda x: x.tolist(), lambda x: x[:1], lambda x: x.long()):
        with pytest.raises(SubjectError):
            look.seen(lambda temperature, w=wrong: lambda ids, x: w(x))


def test_every_reference_has_looks_at_its_cases_and_beyond() -> None:
    for reference, cases in PARAMETERS.items():
        found = looks(reference)
        assert sum(look.corpus for look in found) == 6 * len(cases)
        assert {"large-vocabulary", "kept", "grown"} <= {look.kind for look in found}
