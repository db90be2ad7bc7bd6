"""Code under test is run within limits: failures named, forks ended, randomness watched."""

import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.errors import SubjectError, SubjectTimeout, UsageError
from specverify.settings import SamplingSettings
from specverify.subjects.guard import Call, run_guarded
from specverify.subjects.protocols import Capabilities, Subject

torch.set_num_threads(1)
GOOD = torch.tensor([[0, 4, -1], [1, 2, 3]])


def run(
    call: Callable[..., Any],
    limit: float = 60.0,
    source: torch.Generator | None = None,
    **capabilities: Any,
) -> Call[Any]:
    """Call with a generator as the last argument."""
    made = Subject("mine", "decoder", call, Capabilities(**capabilities))
    source = source or torch.Generator().manual_seed(0)
    return run_guarded(made, call, source, generator=source, limit=limit)


class TestFailures:
    def test_an_exception_names_itself_and_its_place(self) -> None:
        def deep() -> None:
            raise ZeroDivisionError("no mass left")

        with pytest.raises(SubjectError) as caught:
            run(lambda *_: deep())
        message = str(caught.value)
        assert message.startswith("subject 'mine' raised ZeroDivisionError: no mass left\n")
        assert "subjects/test_guard.py" in message
        assert "in deep: raise ZeroDivisionError" in message
        assert "subjects/guard.py" not in message
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_exit_and_long_messages(self) -> None:
        with pytest.raises(SubjectError, match="raised SystemExit"):
            run(lambda *_: exec("raise SystemExit"))
        with pytest.raises(SubjectError) as caught:
            run(lambda *_: exec("raise ValueError('x' * 10_000)"))
        assert len(str(caught.value)) < 1000

    def test_a_message_that_cannot_be_read(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise ValueError

        def call(*_: Any) -> None:
            raise Mute

        with pytest.raises(SubjectError, match=r"raised Mute: \(its message cannot be read"):
            run(call)

    @pytest.mark.parametrize("raised", [ValueError, SubjectError])
    def test_a_message_that_no_terminal_should_print(self, raised: type[Exception]) -> None:
        def call(*_: Any) -> None:
            raise raised("\x1b[31mred\x1b[0m\x07 \udc80 end")

        with pytest.raises(SubjectError) as caught:
            run(call)
        message = str(caught.value)
        assert "red ? end" in message
        assert "\x1b" not in message
        message.encode()

    def test_a_forked_process_does_not_go_on_with_the_run(self) -> None:
        statuses = []

        def call(*_: Any) -> Tensor:
            child = os.fork()
            if child == 0:
                raise SystemExit(7)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return GOOD

        assert torch.equal(run(call).value, GOOD)
        assert statuses == [7]

    def test_a_limit_no_timer_can_keep_is_bad_usage(self) -> None:
        with pytest.raises(UsageError, match="at most 31536000"):
            run(lambda *_: GOOD, limit=1e300)

    def test_a_hang(self) -> None:
        with pytest.raises(SubjectTimeout, match=r"subject 'mine': .*0\.05 s.*--time-limit"):
            run(lambda *_: time.sleep(30), limit=0.05)

    def test_control_c_comes_through(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            run(lambda *_: exec("raise KeyboardInterrupt"))

    def test_bad_usage_inside_a_subject_is_its_own_failure(self) -> None:
        with pytest.raises(SubjectError, match=r"raised SettingsError: .*temperature=-1"):
            run(lambda *_: SamplingSettings(temperature=-1))

    def test_its_own_subject_errors_are_left_as_they_are(self) -> None:
        error = SubjectError("the server is down")

        def call(*_: Any) -> None:
            raise error

        with pytest.raises(SubjectError) as caught:
            run(call)
        assert caught.value is error


class TestGlobalGenerators:
    @pytest.mark.parametrize(
        ("name", "draw"),
        [
            ("torch", lambda: torch.rand(1)),
            ("torch", lambda: torch.manual_seed(0)),
            ("numpy", np.random.rand),
            ("python", random.random),
        ],
    )
    def test_touching_one_is_a_finding_when_a_generator_is_declared(
        self, name: str, draw: Callable[[], Any]
    ) -> None:
        def call(*_: Any) -> Tensor:
            draw()
            return GOOD

        (finding,) = run(call).findings
        assert f"{name}'s global generator" in finding

    @pytest.mark.parametrize("before", [0, 1, 2])
    def test_a_normal_number_that_numpy_held_back_counts_too(self, before: int) -> None:
        """It makes two at once: the second moves nothing but a flag."""

        def call(*_: Any) -> Tensor:
            np.random.randn()
            return GOOD

        state = np.random.get_state()
        try:
            np.random.seed(before)
            np.random.randn(before)
            assert len(run(call).findings) == 1
            np.random.randn(before)
            assert run(lambda *_: GOOD).findings == ()
        finally:
            np.random.set_state(state)

    def test_own_generators_are_no_finding(self) -> None:
        def call(*arguments: Any) -> Tensor:
            torch.rand(3, generator=arguments[-1])
            torch.rand(3, generator=torch.Generator().manual_seed(1))
            np.random.default_rng(0).random()
            random.Random(0).random()
            with torch.random.fork_rng(devices=[]):
                torch.rand(3)
            return GOOD

        assert run(call).findings == ()

    def test_without_a_declared_generator_they_are_seeded_and_put_back(self) -> None:
        drawn: list[tuple[float, float, float]] = []

        def call(*_: Any) -> Tensor:
            drawn.append((torch.rand(1).item(), np.random.rand(), random.random()))
            return GOOD

        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
        generator = torch.Generator().manual_seed(3)
        for _ in range(2):
            run(call, generator=False, source=generator)
        again = run(call, generator=False, source=torch.Generator().manual_seed(3))
        assert drawn[0] != drawn[1]
        assert drawn[0] == drawn[2]
        assert again.findings == ()
        assert torch.equal(states[0], torch.get_rng_state())
        assert states[1] == random.getstate()
        assert np.array_equal(states[2], np.random.get_state()[1])

    def test_they_are_put_back_after_a_failure(self) -> None:
        def call(*_: Any) -> None:
            random.random()
            raise ValueError

        state = random.getstate()
        with pytest.raises(SubjectError):
            run(call, generator=False)
        assert state == random.getstate()
