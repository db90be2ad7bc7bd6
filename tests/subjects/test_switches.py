"""Switches of the process: put back whatever a subject does with them, and told only if thrown."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from specverify.errors import SubjectError
from specverify.subjects.guard import run_guarded
from specverify.subjects.protocols import Subject
from specverify.subjects.switches import switches_kept

SUBJECT = Subject("mine", "rule", len)
THROWN: dict[str, Callable[[], object]] = {
    "torch's default dtype": partial(torch.set_default_dtype, torch.float16),
    "torch's default device": partial(torch.set_default_device, "meta"),
    "torch's gradient mode": partial(torch.set_grad_enabled, False),
    "torch's number of threads": partial(torch.set_num_threads, 2),
    "torch's deterministic algorithms": partial(torch.use_deterministic_algorithms, True),
    "numpy's error handling": partial(np.seterr, all="raise"),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def state() -> list[object]:
    return [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        np.geterr(),
    ]


@pytest.mark.parametrize("name", THROWN)
def test_a_thrown_switch_is_put_back_and_told(name: str) -> None:
    before = state()
    call = run_guarded(SUBJECT, THROWN[name])
    assert state() == before
    assert call.findings == (
        f"changes {name} for the whole process; it was put back after the call",
    )
    # No function mode stays behind, which would cost every call something.
    assert len(torch.overrides._get_current_function_mode_stack()) == 0


@pytest.mark.parametrize("name", THROWN)
def test_it_is_put_back_after_a_failure_too(name: str) -> None:
    before = state()

    def fail() -> None:
        THROWN[name]()
        raise ValueError("no")

    with pytest.raises(SubjectError, match="raised ValueError: no"):
        run_guarded(SUBJECT, fail)
    assert state() == before


def test_what_a_subject_puts_back_itself_is_no_finding() -> None:
    def call() -> None:
        with torch.no_grad(), np.errstate(all="raise"), torch.device("meta"):
            torch.set_default_dtype(torch.float64)
            torch.set_default_dtype(torch.float32)

    assert run_guarded(SUBJECT, call).findings == ()


def test_a_callers_own_switches_stay() -> None:
    with np.errstate(divide="ignore"), torch.device("meta"):
        with switches_kept() as changed:
            np.seterr(divide="raise")
            torch.set_default_device("cpu")
        assert np.geterr()["divide"] == "ignore"
        assert torch.get_default_device().type == "meta"
        torch.set_default_device(None)
    assert sorted(changed) == ["numpy's error handling", "torch's default device"]
