"""What a transform is asked, to see which known mistake it makes: rows, and one call after another.

Beside the corpus that `transforms.equals_reference` compares there are a few rows for each of the
places where shortcuts fail (sizes, widths, parameters), and calls after which something is looked
at that must not have changed. All are seen as distributions, so that all are compared alike.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from specverify.certification.probes.transform_laws import LAWS, Parameters
from specverify.certification.probes.transform_rows import (
    LARGE_LIMIT,
    UNIT,
    Batch,
    batch,
    decided,
    limit,
    possible,
    ties_sorted,
)
from specverify.certification.transform_case import PARAMETERS, corpus
from specverify.certification.transform_seeing import CALLS, Seeing, result
from specverify.subjects.protocols import Transform
from specverify.transforms import REFERENCE

SEED = 0
"""Of the rows: a diagnosis is the same under every seed of a run."""

TEMPERATURES = (1e-6, 1e-3, 1e3, 1e6)
"""Beside those of the cases: out of the range that shortcuts are made for."""

_WIDTHS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_SIZES = ("short-history", "long-history", "small-vocabulary")
Factory = Callable[..., Transform]
"""Builds a transform from its parameters."""


@dataclass(frozen=True, eq=False)
class Look:
    """One question under one set of parameters."""

    kind: str
    """Of rows, or what is looked at after a call."""
    reference: str
    parameters: Parameters
    rows: Batch
    limit: Tensor
    """Total variation [B] that rounding explains."""
    seeing: Seeing
    judged: Tensor | None = None
    """Rows bool [B] that no rounding decides; None for all."""
    corpus: bool = False
    """Whether the rows are those of the corpus."""
    tied: bool = False
    """Whether logits tie, so that either of two equal tokens is as good."""

    def variation(self, one: Tensor, other: Tensor) -> Tensor:
        """Total variation [B] of what was seen of two transforms, 0 where rounding explains it."""
        apart = (one - other).abs().sum(-1) / 2
        apart = apart.where(apart > self.limit, 0.0)
        return apart if self.judged is None else apart.where(self.judged, 0.0)

    @cached_property
    def expected(self) -> Tensor:
        """What the reference makes of it; see `seen`."""
        return self.seen(REFERENCE[self.reference])

    def seen(self, factory: Factory, *, narrow: bool = False) -> Tensor:
        """What a transform makes of it.

        Args:
            factory: builds the transform from the parameters.
            narrow: whether to hand over float32 where the rows have float64.

        Returns:
            Distributions float64 [B, V+1]; the last entry is 1 where the logits are none: NaN, +inf
            or -inf throughout. For `history handed in` it has an entry for each place and token.

        Raises:
            SubjectError: the result has another shape or is no tensor of floats.
        """
        transform = factory(**deepcopy(self.parameters))
        rows = self.rows
        handed = rows.logits.float() if narrow else rows.logits.clone()
        logits = self.seeing(transform, rows.ids.clone(), handed).double()
        undefined = logits.isnan() | (logits == torch.inf)
        none = undefined.any(-1, keepdim=True) | (logits == -torch.inf).all(-1, keepdim=True)
        probs = logits.masked_fill(none, 0.0).softmax(-1).masked_fill(none, 0.0)
        if self.tied:
            probs = ties_sorted(probs, rows.logits)
        return torch.cat([probs, none.double()], -1)

    def distance(self, one: Tensor, other: Tensor) -> float:
        """How far apart what was seen of two transforms is, in the mean over rows, in [0, 1].

        On each row it is the total variation or, if that is larger, the share of the impossible
        tokens that are possible in one only: what brings them back may be of little weight.
        """
        impossible = self.expected == 0
        unlike = ((one > 0) != (other > 0)) & impossible
        support = unlike.sum(-1) / impossible.sum(-1).clamp(min=1)
        if self.judged is not None:
            support = support.where(self.judged, 0.0)
        return float(torch.maximum(self.variation(one, other), support.double()).mean())


@cache
def looks(reference: str) -> tuple[Look, ...]:
    """What transforms are compared on that claim to be a reference.

    Args:
        reference: a key of `transform_case.PARAMETERS`.
    """
    parts = (_of_corpus, _of_parameters, _of_sizes, _of_widths, _of_calls)
    return tuple(look for part in parts for look in part(reference))


def _of_corpus(reference: str) -> Iterator[Look]:
    for kind, rows in corpus(SEED).items():
        for parameters in PARAMETERS[reference]:
            # See `transform_evidence.called_on`.
            logits = rows.logits if rows.exact else rows.logits.float()
            given = Batch(rows.histories, logits)
            most = _rounded(reference, parameters, given)
            yield Look(
                kind,
                reference,
                parameters,
                given,
                most,
                result,
                corpus=True,
                tied=rows.exact,
            )


def _of_parameters(reference: str) -> Iterator[Look]:
    """Parameters at the ends of what is allowed, and those that switch a transform off."""
    laws, rows = LAWS[reference], batch("random", SEED)
    more = [*laws.ladder, *laws.neutral]
    if laws.strictest is not None:
        more.append(laws.strictest)
    for parameters in more:
        yield _decided(reference, parameters, "random", rows, result)
    for temperature in TEMPERATURES if reference == "temperature" else ():
        scaled = Batch(rows.ids, rows.logits * temperature)
        yield _decided(reference, {"temperature": temperature}, "scaled", scaled, result)


def _of_sizes(reference: str) -> Iterator[Look]:
    laws = LAWS[reference]
    for kind in _SIZES:
        for parameters in PARAMETERS[reference] + laws.more:
            yield _decided(reference, parameters, kind, batch(kind, SEED), result)
    rows = batch("large-vocabulary", SEED)
    most = torch.full((len(rows),), LARGE_LIMIT)
    yield Look("large-vocabulary", reference, laws.large, rows, most, result)


def _of_widths(reference: str) -> Iterator[Look]:
    for name, width in _WIDTHS.items():
        for kind in ("random", "long-history"):
            rows = batch(kind, SEED)
            for parameters in PARAMETERS[reference] + LAWS[reference].more:
                yield _decided(
                    reference,
                    parameters,
                    f"{name} {kind}",
                    Batch(rows.ids, rows.logits.to(width)),
                    result,
                )


def _of_calls(reference: str) -> Iterator[Look]:
    rows = batch("mixed", SEED)
    for parameters in PARAMETERS[reference]:
        for name, seeing in CALLS.items():
            yield _decided(reference, parameters, name, rows, seeing)


def _decided(
    reference: str, parameters: Parameters, name: str, rows: Batch, seeing: Seeing
) -> Look:
    """A look at rows that no rounding decides."""
    eps = torch.finfo(rows.logits.dtype).eps
    values = Batch(rows.ids, rows.logits.double())
    return Look(
        name,
        reference,
        parameters,
        rows,
        _rounded(reference, parameters, values, max(UNIT, eps)),
        seeing,
        judged=decided(reference, parameters, values, eps),
    )


def _rounded(reference: str, parameters: Parameters, rows: Batch, unit: float = UNIT) -> Tensor:
    """Distance [B] that rounding explains."""
    expected = REFERENCE[reference](**parameters)(rows.ids, rows.logits.double())
    return limit(rows.logits.double(), possible(expected), unit=unit)
