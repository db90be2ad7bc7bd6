import random
import time
import uuid

import numpy as np
import pytest
import torch

from specverify.certification.probes.surroundings import surroundings, watched


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.random()), random.random()


def test_the_numbers_decide_what_is_drawn() -> None:
    made = []
    for seed in (1, 2, 1):
        with surroundings(seed):
            made.append(drawn())
    assert made[0] == made[2]
    assert all(first != second for first, second in zip(made[0], made[1], strict=True))


def seeded() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)


def failing() -> None:
    with surroundings(1, 3):
        drawn()
        raise ZeroDivisionError


def test_everything_is_put_back_whatever_happens() -> None:
    clock = time.time, time.time_ns
    with torch.random.fork_rng():
        seeded()
        with pytest.raises(ZeroDivisionError):
            failing()
        after = drawn()
        seeded()
        assert drawn() == after
    assert (time.time, time.time_ns) == clock


def test_the_clock_runs_from_a_time_of_its_own() -> None:
    with surroundings(0, 1):
        early, begin = time.time(), time.time_ns()
        assert abs(early - begin / 1e9) < 1
        while time.time_ns() == begin:
            pass
    with surroundings(0, 2):
        assert time.time() - early > 86_400


def test_what_a_call_does_to_global_generators() -> None:
    with surroundings(3) as idle:
        pass
    with surroundings(3) as busy:
        np.random.random()
    assert (idle.touched, busy.touched) == ([], ["numpy"])


def test_a_call_is_watched_and_does_what_it_did() -> None:
    def call(value: int) -> int:
        uuid.uuid4()
        time.time_ns()
        return value + (id(call) > 0)

    seen: dict[str, None] = {}
    assert watched(call, seen)(1) == 2
    here = "certification/test_surroundings.py:"
    assert [text.partition(" at ")[0] for text in seen] == [
        "the randomness of the operating system (urandom)",
        "the clock (time_ns)",
        "the address of an object (id)",
    ]
    assert all(here in text for text in seen)
