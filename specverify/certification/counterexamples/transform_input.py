"""One row that a transform is handed, in plain numbers, and what the subject makes of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from pydantic import JsonValue
from torch import Generator, Tensor

from specverify.certification.counterexamples.result import Result
from specverify.certification.exact_evidence import NUMERICAL, Comparison
from specverify.certification.transform_case import TransformCase, loaded_parameters
from specverify.exact.joint import Joint
from specverify.subjects.calling import build_transform, call_transform
from specverify.subjects.protocols import Subject

_INFINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}
_DTYPES = ("float64", "float32")


@dataclass(frozen=True)
class TransformInput:
    """Parameters, a history of T tokens and a row of V logits."""

    case: TransformCase
    history: tuple[int, ...]
    logits: tuple[float, ...]
    dtype: str
    """In which the subject is handed the logits."""

    @cached_property
    def ids(self) -> Tensor:
        """Long [1, T]."""
        return torch.tensor([self.history], dtype=torch.long)

    @cached_property
    def row(self) -> Tensor:
        """float64 [1, V], what the subject is handed but for the dtype."""
        return torch.tensor([self.logits], dtype=torch.float64)

    @cached_property
    def expected(self) -> Tensor:
        """float64 [1, V], what the reference makes of it.

        Raises:
            SettingsError: bans leave no token, so nothing is expected.
        """
        return self.case.build_reference()(self.ids, self.row)


def observed_logits(
    subject: Subject, value: TransformInput, seed: int, time_limit: float
) -> Tensor:
    """What a transform makes of a row, built anew and called once: float64 [1, V].

    Raises:
        SubjectError: it raised or returned something malformed.
    """
    transform = build_transform(subject, time_limit=time_limit, **value.case.parameters)
    call = call_transform(
        subject,
        transform,
        value.ids,
        value.row.to(getattr(torch, value.dtype)),
        generator=Generator().manual_seed(seed),
        time_limit=time_limit,
    )
    return call.value.double()


def compute_transform(
    subject: Subject, value: TransformInput, seed: int, time_limit: float
) -> Result:
    """Compute what a transform makes of a row, as probabilities of the next token.

    Raises:
        SubjectError: it raised or returned something malformed.
    """
    observed = probabilities(observed_logits(subject, value, seed, time_limit))
    expected = probabilities(value.expected)
    compared = Comparison.of_runs(observed, expected, 0.0)
    return Result(observed, expected, compared, NUMERICAL, support=True)


def probabilities(logits: Tensor) -> Joint:
    """Of logits [1, V], those that are not 0, by token."""
    masses = logits.softmax(-1)[0].tolist()
    return {(token,): mass for token, mass in enumerate(masses) if mass > 0}


def transform_inputs(value: TransformInput) -> dict[str, JsonValue]:
    """The numbers of a row as `load_transform_input` reads them."""
    parameters = dict(value.case.record)
    return {
        "reference": parameters.pop("reference"),
        "parameters": parameters,
        "history": list(value.history),
        "logits": [_INFINITE.get(logit, logit) for logit in value.logits],
        "dtype": value.dtype,
    }


def load_transform_input(inputs: Mapping[str, JsonValue]) -> TransformInput:
    """The row of these numbers.

    Raises:
        KeyError: one is missing.
        TypeError: one has another type.
        ValueError: one is malformed.
    """
    given: Any = inputs
    parameters = loaded_parameters(given["parameters"])
    if given["dtype"] not in _DTYPES:
        raise ValueError(f"dtype {given['dtype']!r} is none of {', '.join(_DTYPES)}")
    case = TransformCase("counterexample", str(given["reference"]), parameters)
    history = tuple(map(int, given["history"]))
    value = TransformInput(case, history, tuple(map(float, given["logits"])), given["dtype"])
    _ = value.expected  # parameters that the reference does not take show here
    return value
