"""Refusals told apart from timeouts, ended processes and malformed output."""

import pytest
import torch

from specverify.certification.probes.suited import refusal, refuses
from specverify.errors import SubjectError, SubjectTimeout, UsageError
from specverify.subjects.guard import run_guarded
from specverify.subjects.reference import TOKEN


def says_no() -> None:
    raise ValueError(
        "this decoder rolls its cache back after every rejection, and the one of this model cannot "
        "be cropped; hand over a model with another"
    )


def asserts() -> None:
    assert torch.zeros(1) > 1, "a positive number is needed"


def wraps() -> None:
    try:
        runs_out()
    except IndexError as error:
        raise RuntimeError("too long") from error


def is_missing() -> None:
    torch.zeros(2, dtype=torch.float8_e5m2).sort()


def runs_out() -> None:
    [][1]


def does_not_fit() -> None:
    torch.zeros(3).view(2)


def raises_again() -> None:
    try:
        runs_out()
    except IndexError:
        raise


def divides() -> float:
    return 1 / len([])


def exits() -> None:
    raise SystemExit(2)


def failure(function) -> SubjectError:
    with pytest.raises(SubjectError) as caught:
        run_guarded(TOKEN, function)
    return caught.value


@pytest.mark.parametrize(
    "function", [says_no, asserts, wraps, is_missing, runs_out, does_not_fit, raises_again, divides]
)
def test_an_exception_is_a_refusal(function):
    assert refuses(failure(function))
    said = refusal(lambda: run_guarded(TOKEN, function))
    assert said is not None
    assert "\n" not in said


def test_the_end_of_the_process_is_none():
    assert not refuses(failure(exits))
    with pytest.raises(SubjectError):
        refusal(lambda: run_guarded(TOKEN, exits))


def test_neither_is_a_timeout_or_a_malformed_output():
    malformed = SubjectError("output has shape [1, 2]")
    assert not refuses(malformed)
    timeout = SubjectTimeout("ran past its limit")
    timeout.__cause__ = UsageError("raised meanwhile")
    assert not refuses(timeout)


def test_an_answer_is_none():
    assert refusal(lambda: run_guarded(TOKEN, lambda: 1)) is None
