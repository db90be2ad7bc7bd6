"""Lossy rules: held against their declared contract, and never called preserved."""

from dataclasses import replace

import numpy as np
import pytest

from specverify.certification.run import certify
from specverify.errors import UsageError
from specverify.exact.enumerate import round_distribution
from specverify.exact.joint import total_variation
from specverify.exact.lossy_round import lossy_round_distribution
from specverify.exact.round import Round
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.subjects.protocols import Capabilities, Subject
from specverify.verification.lossy import LossyContract, ensemble, lenience

MUTANTS = {mutant.id: mutant.subject for mutant in RULE_MUTANTS}


def declared(id: str, contract: LossyContract) -> Subject:
    subject = MUTANTS[id]
    return replace(subject, capabilities=replace(subject.capabilities, lossy=contract))


@pytest.mark.parametrize("contract", [lenience(1.0), ensemble(1.0)])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_contract_that_loses_nothing_is_token_verification(
    contract: LossyContract, count: int
) -> None:
    round = Round.random(3, count, seed=2)
    emitted = lossy_round_distribution(contract.acceptance, contract.correction, round)
    assert total_variation(emitted, round_distribution("token", round)) < 1e-15


def test_the_kernel_of_one_position_by_hand() -> None:
    half = Round(lambda x: [[0.75, 0.25]] * len(x), lambda x: [[0.25, 0.75]] * len(x), 2, 1)
    contract = lenience(0.5)
    emitted = lossy_round_distribution(contract.acceptance, contract.correction, half)
    # Token 0 is always accepted, token 1 with 2/3; the residual is all on token 0.
    expected = {(0,): 0.25, (0, 0): 0.1875, (0, 1): 0.0625, (1, 0): 0.375, (1, 1): 0.125}
    assert emitted == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("id", "contract"), [("lenient", lenience(0.9)), ("ensemble", ensemble(0.9))]
)
def test_what_does_as_it_declares_is_lossy_as_declared(id: str, contract: LossyContract) -> None:
    certificate = certify(declared(id, contract), tokens=1000, only=["joint.*"])
    assert certificate.verdict == "lossy-as-declared", certificate.reason
    assert {case.verdict for case in certificate.cases if case.id.startswith("exact/")} == {
        "lossy-as-declared"
    }
    assert max(case.tv_bound or 0 for case in certificate.cases) > 0.01
    assert "TV" in certificate.cases[0].reason
    (reason,) = {e.reason for e in certificate.not_applicable if e.property.startswith("joint.")}
    assert "declares a lossy contract" in reason


@pytest.mark.parametrize(
    ("id", "contract"),
    [
        ("lenient", lenience(0.88)),
        ("ensemble", ensemble(0.91)),
        ("residual-not-subtracted", lenience(0.9)),
    ],
)
def test_what_does_otherwise_is_violated(id: str, contract: LossyContract) -> None:
    subject = MUTANTS[id]
    without = replace(subject.capabilities, algorithm=None, lossy=contract)
    certificate = certify(replace(subject, capabilities=without), tokens=1000, only=["joint.*"])
    assert certificate.verdict == "violated"
    assert "joint.round" in certificate.reason


@pytest.mark.parametrize(
    ("kind", "capabilities", "message"),
    [
        ("decoder", {}, "declares a lossy contract and is a decoder"),
        ("rule", {"algorithm": "token"}, "and the algorithm 'token', which is lossless"),
    ],
)
def test_contracts_that_make_no_sense(kind, capabilities, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Subject("mine", kind, len, Capabilities(lossy=lenience(0.9), **capabilities))


@pytest.mark.parametrize("make", [lenience, ensemble])
@pytest.mark.parametrize("value", [0.0, -1.0, 1.5, float("nan")])
def test_parameters_out_of_range(make, value: float) -> None:
    with pytest.raises(UsageError, match="must lie above 0 and be at most 1"):
        make(value)


def test_a_contract_that_is_none_is_refused() -> None:
    round = Round.random(3, 1, seed=0)
    right = lenience(0.9)
    with pytest.raises(UsageError, match="returns probabilities of the shape of p"):
        lossy_round_distribution(lambda p, q: p + 1, right.correction, round)
    with pytest.raises(UsageError, match="wherever something is rejected"):
        lossy_round_distribution(right.acceptance, lambda p, q: np.zeros_like(p), round)
