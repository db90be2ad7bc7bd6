"""Rules whose randomness is steered, fed or refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from specverify.certification.exact_evidence import ExactEvidence
from specverify.certification.exact_rounds import RoundCase, exact_rounds
from specverify.certification.exact_rule import steer_rule
from specverify.errors import CannotSteer, OutsideRandomness
from specverify.exact.coins import Coins
from specverify.subjects.protocols import Capabilities, Subject
from tests.certification.written_rules import coins, fed, last, one_noise, token_rule

CASES = {case.id.removeprefix("exact/"): case for case in exact_rounds()}
SMALL = CASES["random-V3-K2-float64"]
FED = Coins({"accept": "[B,K]", "final": "[B]"}, "float64", "numpy")


def steered(
    call: Callable[..., Any], case: RoundCase = SMALL, limit: float = 60.0, **capabilities: Any
) -> ExactEvidence:
    declared = Capabilities(**{"coin_dtype": "float64"} | capabilities)
    return steer_rule(Subject("mine", "rule", call, declared), case, 0, limit)


def test_a_right_rule_has_the_targets_distribution() -> None:
    evidence = steered(token_rule())
    assert evidence.comparison.total_variation < evidence.tolerance == 1e-12
    assert evidence.joint.method == "forcing"
    assert evidence.findings == ()
    assert evidence.rows is not None
    assert max(evidence.rows.together, evidence.rows.apart) < 1e-12


def test_float32_is_judged_by_what_float32_can_do() -> None:
    evidence = steered(token_rule(), CASES["ulp-apart-float32"])
    assert 1e-12 < evidence.comparison.total_variation < evidence.tolerance == 1e-6
    assert steered(token_rule(), coin_dtype="float32").tolerance == 1e-6


def test_one_row_a_call_and_no_generator() -> None:
    def rule(tokens: Tensor, q: Tensor, p: Tensor) -> Tensor:
        assert len(tokens) == 1
        return token_rule(
            lambda ratio: torch.rand_like(ratio),
            lambda weights: torch.multinomial(weights, 1)[:, 0],
        )(tokens, q, p)

    evidence = steered(rule, batch=False, generator=False)
    assert evidence.comparison.total_variation < 1e-12
    assert evidence.joint.method == "branching"
    assert (evidence.rows, evidence.draws_elsewhere) == (None, ())


@pytest.mark.parametrize("batch", [True, False])
def test_coins_are_fed_where_they_are_declared(batch: bool) -> None:
    def rule(tokens: Any, q: Any, p: Any, *, accept: Any, final: Any) -> Any:
        assert batch or len(tokens) == 1
        return fed(tokens, q, p, accept=accept, final=final)

    case = CASES["random-V3-K1-float64"]
    evidence = steered(rule, case, coins=FED, batch=batch)
    assert evidence.joint.method == "coins"
    assert evidence.comparison.total_variation < 1e-12


def test_an_ignored_generator_is_named_by_its_line() -> None:
    evidence = steered(token_rule(lambda ratio, _: torch.rand_like(ratio)))
    assert evidence.comparison.total_variation < 1e-12
    (line,) = evidence.draws_elsewhere
    assert "torch.rand_like(ratio)" in line
    assert evidence.findings == ()


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize(
    "draw",
    [
        lambda ratio: np.random.random(ratio.shape),
        lambda ratio: np.random.default_rng().random(ratio.shape),
    ],
    ids=["global", "own"],
)
def test_randomness_of_numpy_is_refused(draw: Callable[..., np.ndarray], batch: bool) -> None:
    rule = token_rule(lambda ratio, _: torch.from_numpy(draw(ratio)))
    with pytest.raises(OutsideRandomness):
        steered(rule, CASES["random-V4-K3-float64"], batch=batch)


def test_a_fallback_to_single_rows_sees_hidden_coins_too() -> None:
    own = np.random.default_rng(1)

    def hidden(ratio: Tensor, generator: Generator) -> Tensor:
        if len(ratio) > 1:
            coins(ratio, generator).data_ptr()  # what steering refuses
        return torch.from_numpy(own.random(ratio.shape))

    with pytest.raises(OutsideRandomness):
        steered(token_rule(hidden), CASES["random-V4-K3-float64"])


def test_rows_that_share_coins_are_seen_together_only() -> None:
    def shared(ratio: Tensor, generator: Generator) -> Tensor:
        return coins(ratio[:1], generator).expand(ratio.shape)

    evidence = steered(token_rule(shared))
    assert evidence.comparison.total_variation < 1e-12
    assert evidence.rows is not None
    assert evidence.rows.together > 0.1
    assert evidence.rows.apart < 1e-12
    assert evidence.rows.blocks[0][0] == evidence.rows.blocks[1][0]


def test_rows_that_share_the_noise_of_a_race_are_told() -> None:
    def race(weights: Tensor, generator: Generator) -> Tensor:
        noise = torch.empty(1, weights.shape[1], dtype=weights.dtype)
        return (weights / noise.exponential_(generator=generator)).argmax(-1)

    evidence = steered(token_rule(last=race))
    assert evidence.rows is None
    assert evidence.rows_share is not None
    assert "exponential_" in evidence.rows_share


def test_noise_shared_by_values_that_are_never_used_together_is_right() -> None:
    evidence = steered(one_noise)
    assert evidence.comparison.total_variation < 1e-12
    assert evidence.joint.findings == ()
    assert evidence.rows is not None
    assert evidence.rows.together < 1e-12
    assert evidence.rows_share is None


def test_a_row_that_looks_at_its_neighbour_is_seen() -> None:
    def neighbours(weights: Tensor, generator: Generator) -> Tensor:
        return last(weights.roll(1, 0), generator)

    evidence = steered(token_rule(last=neighbours))
    assert evidence.rows is not None
    assert evidence.rows.apart > 0.01


def test_crashes_have_their_mass() -> None:
    def fragile(weights: Tensor, generator: Generator) -> Tensor:
        if bool((weights.sum(-1) < 0.3).any()):
            raise ArithmeticError("too small")
        return last(weights, generator)

    evidence = steered(token_rule(last=fragile))
    ((text, mass),) = evidence.joint.crashes.items()
    assert "subject 'mine' raised ArithmeticError: too small" in text
    assert 0 < mass == pytest.approx(evidence.comparison.missing)
    assert evidence.comparison.certain < 1e-12 < evidence.comparison.total_variation


def test_time_is_limited_and_a_slow_call_no_failure() -> None:
    def slow(*arguments: Any) -> Tensor:
        while True:
            pass

    with pytest.raises(CannotSteer, match=r"not followed to its end in 0\.1 s"):
        steered(slow, limit=0.1)
