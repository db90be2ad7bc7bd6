"""Histories, logits and parameters on which a transform is held against its reference."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from pydantic import JsonValue
from torch import Generator, Tensor

from specverify.certification.fuzzing.problem import Computed, Problem, Region
from specverify.certification.fuzzing.sampled import Counted, Stream
from specverify.certification.generated.rows import KINDS, logit_rows
from specverify.certification.generated.transformed import histories, transform_parameters
from specverify.certification.transform_case import TransformCase, loaded_parameters
from specverify.certification.transform_evidence import (
    ROUNDING,
    Compared,
    TransformEvidence,
    largest,
)
from specverify.errors import CannotSteer, SettingsError, SubjectError, UsageError
from specverify.subjects.calling import build_transform, call_transform

NUDGES = 48
"""Ways in which a row is nudged at first; where the subject differs from all, many more are tried,
since there are many ways to break a tie among several tokens."""
MANY_NUDGES = 2_048

_SMALL = 4
"""Vocabulary up to which smaller inputs than a failing one are looked for."""
_SEED = 20260201
"""Of the nudges."""
_REGIONS = (
    ("simple", (2, 3), ("dyadic", "zeros", "tied")),
    ("mixed", (2, 6), KINDS),
    ("wide", (7, 40), ("any", "masked", "peaked")),
)


@dataclass(frozen=True)
class TransformInput:
    """What a transform is built with and handed, in plain numbers."""

    reference: str
    parameters: str
    """JSON; token ids that are keys are texts there."""
    history: tuple[tuple[int, ...], ...]
    logits: tuple[tuple[float, ...], ...]
    """Exact in float32."""

    @cached_property
    def case(self) -> TransformCase:
        """Reference and keyword arguments."""
        parameters = loaded_parameters(json.loads(self.parameters))
        return TransformCase("fuzz", self.reference, parameters)

    @cached_property
    def ids(self) -> Tensor:
        """Long [B, T]."""
        return torch.tensor(self.history)

    @cached_property
    def rows(self) -> Tensor:
        """float64 [B, V]."""
        return torch.tensor(self.logits, dtype=torch.float64)

    @cached_property
    def expected(self) -> Tensor:
        """float64 [B, V], what the reference makes of it."""
        return self.case.build_reference()(self.ids, self.rows)


@st.composite
def transform_inputs(
    draw: DrawFn, reference: str, sizes: st.SearchStrategy[int], kinds: tuple[str, ...]
) -> TransformInput:
    """What a transform is tried on.

    Args:
        draw: of Hypothesis.
        reference: name of the transform that it must equal.
        sizes: V.
        kinds: of logits.
    """
    size = draw(sizes)
    case = TransformCase("fuzz", reference, draw(transform_parameters(reference, size)))
    parameters = {name: entry for name, entry in case.record.items() if name != "reference"}
    count = draw(st.integers(1, 2))
    history = draw(histories(size, rows=count))
    rows = draw(logit_rows(count, size, kinds=kinds, dtype=torch.float32))
    return TransformInput(
        reference,
        json.dumps(parameters, sort_keys=True),
        tuple(map(tuple, history.tolist())),
        tuple(map(tuple, rows.tolist())),
    )


class TransformProblem(Problem[TransformInput]):
    """On every row the transform gives the reference's distribution, with the same support."""

    kind = "row"
    property_id = "transforms.equals_reference"

    def regions(self) -> Sequence[Region[TransformInput]]:
        reference = str(self.subject.reference)
        return [
            Region(name, transform_inputs(reference, st.integers(*sizes), kinds))
            for name, sizes, kinds in _REGIONS
        ]

    def smaller(self, value: TransformInput) -> Sequence[Region[TransformInput]]:
        sizes = range(2, min(value.rows.shape[1], _SMALL + 1))
        reference = str(self.subject.reference)
        return [Region("smaller", transform_inputs(reference, st.just(n), KINDS)) for n in sizes]

    def passes_over(self, value: TransformInput) -> bool:
        if value.reference != self.subject.reference:
            return True
        try:
            _ = value.expected
        except SettingsError:
            return True  # bans left no token at all, of which nothing is claimed
        try:
            build_transform(self.subject, time_limit=self.time_limit, **value.case.parameters)
        except SubjectError:
            return True  # what cannot be built emits nothing wrong
        return False

    def compute(self, value: TransformInput) -> Computed:
        parameters = value.case.parameters
        transform = build_transform(self.subject, time_limit=self.time_limit, **parameters)
        # Some of those that change their arguments change what they keep too.
        call = call_transform(
            self.subject,
            transform,
            value.ids,
            value.rows.float(),
            generator=Generator().manual_seed(self.seed),
            time_limit=self.time_limit,
        )
        observed = call.value.double()
        for nudges in (NUDGES, MANY_NUDGES):
            alternatives = _nudged(value, nudges)
            result = Compared(value.rows, value.expected, observed, alternatives, exact=False)
            evidence = TransformEvidence(self.subject, value.case, {"searched": result}, ())
            violations = self.property.check(evidence, 0.0).violations
            if not violations:
                break
        return Computed("; ".join(violations))

    def count(self, value: TransformInput, stream: Stream, call: int) -> Counted:
        raise CannotSteer("a transform is computed, never sampled")

    def given(self, value: TransformInput) -> str:
        named = ", ".join(f"{name} = {entry}" for name, entry in value.case.parameters.items())
        rows = "; ".join(
            f"[{', '.join(f'{entry:g}' for entry in row)}] after {' '.join(map(str, history))}"
            for row, history in zip(value.logits, value.history, strict=True)
        )
        return f"Let {named}, logits {rows}."

    def inputs(self, value: TransformInput) -> dict[str, JsonValue]:
        return {
            "reference": value.reference,
            "parameters": value.parameters,
            "history": [list(row) for row in value.history],
            "logits": [
                ["-Infinity" if entry == -math.inf else entry for entry in row]
                for row in value.logits
            ],
        }

    def load(self, inputs: Mapping[str, JsonValue]) -> TransformInput:
        given: Any = inputs
        try:
            found = TransformInput(
                str(given["reference"]),
                str(given["parameters"]),
                tuple(tuple(map(int, row)) for row in given["history"]),
                tuple(tuple(map(float, row)) for row in given["logits"]),
            )
            _ = found.ids, found.rows, found.case
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"the input of a transform cannot be read ({type(error).__name__}: {error})"
            ) from None
        return found

    def tolerance(self, value: TransformInput) -> float:
        return ROUNDING


def _nudged(value: TransformInput, count: int) -> Tensor:
    """What the reference makes of logits and thresholds moved as little as rounding may.

    Returns:
        float64 [A, B, V].
    """
    generator = Generator().manual_seed(_SEED)
    size = ROUNDING * largest(value.rows).clamp(min=1.0)
    factors = (1.0, 1 - ROUNDING, 1 + ROUNDING) if value.case.thresholds else (1.0,)
    references = [value.case.build_reference(scaled=factor) for factor in factors]
    found = [reference(value.ids, value.rows) for reference in references]
    for index in range(count):
        noise = torch.rand(value.rows.shape, generator=generator, dtype=torch.float64) * 2 - 1
        reference = references[index % len(references)]
        found.append(reference(value.ids, value.rows + noise * size))
    return torch.stack(found)
