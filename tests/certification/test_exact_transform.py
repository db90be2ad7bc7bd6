"""Rule and transform together: references and transformers' own pass, what differs does not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from specverify.certification.certificate import CaseRecord
from specverify.certification.exact_evidence import ExactEvidence
from specverify.certification.exact_run import exact_cases, run_exact_case
from specverify.certification.exact_transform import (
    NUM_DRAFT_TOKENS,
    PROMPT,
    VOCAB_SIZE,
    logits,
    steer_transform,
    transformed_cases,
)
from specverify.certification.registry import properties_of
from specverify.certification.run import certify
from specverify.certification.transform_case import PARAMETERS
from specverify.errors import CannotSteer, OutsideRandomness, SubjectError
from specverify.fixtures.mutants import MUTANTS
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject
from specverify.transforms import REFERENCE, XTC, RepetitionPenalty, TopK
from tests.transformers_constraints import CONSTRAINTS

EXACT = [p for p in properties_of("transform") if p.evidence == "exact"]
SEEDS = (11, 12)


def subject(factory: Callable[..., Any], reference: str) -> Subject:
    return Subject("mine", "transform", factory, reference=reference)


def records(made: Subject) -> list[Any]:
    return [
        run_exact_case(made, case, EXACT, Budget(1e-6), 0, 60.0) for case in exact_cases(made, ())
    ]


def verdicts(made: Subject) -> list[str]:
    found = records(made)
    assert all(isinstance(record, CaseRecord) for record in found), found
    return [record.verdict for record in found]


def steered(call: Callable[[Tensor, Tensor], Tensor], reference: str = "top_k") -> ExactEvidence:
    case = transformed_cases(reference)[1]
    return steer_transform(subject(lambda **parameters: call, reference), case, 0, 60.0)


@pytest.mark.parametrize("reference", PARAMETERS)
def test_references_are_preserved(reference: str) -> None:
    for record in records(subject(REFERENCE[reference], reference)):
        assert record.verdict == "preserved"
        assert record.tv_bound < 1e-14
        assert record.findings == ()
        assert record.settings["reference"] == reference
        assert record.num_draft_tokens == NUM_DRAFT_TOKENS


def prefixes(depth: int) -> np.ndarray:
    """All of one length, int64 [V^t, t]."""
    return np.indices((VOCAB_SIZE,) * depth).reshape(depth, VOCAB_SIZE**depth).T


NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "penalty": 1.0, "top_k": 100}


@pytest.mark.parametrize("reference", PARAMETERS)
def test_parameters_change_the_target_unless_they_are_neutral(reference: str) -> None:
    """Otherwise a transform that does nothing would pass."""
    for case in transformed_cases(reference):
        parameters = case.transform.parameters
        neutral = any(NEUTRAL.get(name) == value for name, value in parameters.items())
        neutral |= parameters.get("top_k") == 8  # of 6 tokens
        neutral |= reference == "eta" and parameters["epsilon"] == 0.001  # none is that rare
        round = case.round()
        changed = [
            np.abs(round.p(t) - logits(prefixes(t), SEEDS[0]).double().softmax(1).numpy()).max()
            for t in range(NUM_DRAFT_TOKENS + 1)
        ]
        assert (max(changed) < 1e-12) == neutral, case


TRANSFORMERS = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical_p": lambda typical_p: TypicalLogitsWarper(mass=typical_p),
    "epsilon": EpsilonLogitsWarper,
    "eta": EtaLogitsWarper,
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "no_repeat_ngram": NoRepeatNGramLogitsProcessor,
    **CONSTRAINTS,
}


@pytest.mark.parametrize("reference", TRANSFORMERS)
def test_transformers_own_are_preserved(reference: str) -> None:
    for record in records(subject(TRANSFORMERS[reference], reference)):
        assert record.verdict == "preserved", record.reason


@pytest.mark.parametrize(
    "id", ["top-p-crossing-dropped", "repetition-penalty-on-log-probabilities"]
)
def test_a_wrong_transform_is_violated(id: str) -> None:
    assert "violated" in verdicts(MUTANTS[id].subject)


def test_rows_that_are_mixed_up_are_told() -> None:
    class Neighbours(RepetitionPenalty):
        def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
            return super().__call__(input_ids.roll(1, 0), logits)

    case = transformed_cases("repetition_penalty")[2]
    made = subject(Neighbours, "repetition_penalty")
    record = run_exact_case(made, case, EXACT, Budget(1e-6), 0, 60.0)
    assert isinstance(record, CaseRecord)
    (finding,) = record.findings
    assert finding.startswith("is followed only with one row a call: ")


def test_a_frozen_history_is_seen() -> None:
    class Frozen(RepetitionPenalty):
        def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
            return super().__call__(input_ids[:, : len(PROMPT)], logits)

    found = verdicts(subject(Frozen, "repetition_penalty"))
    assert found == ["violated", "preserved", "violated"]


def test_coins_of_a_transform_are_followed() -> None:
    """Top-3 three times in four and nothing otherwise: a mixture, by the weights of its coin."""

    def at_times(ids: Tensor, scores: Tensor) -> Tensor:
        coins = torch.rand(len(scores), 1, dtype=torch.float64)
        return torch.where(coins < 0.75, TopK(3)(ids, scores), scores.double())

    evidence = steered(at_times)
    first = np.zeros(VOCAB_SIZE)
    for tokens, mass in evidence.joint.probabilities.items():
        first[tokens[0]] += mass
    raw = logits(np.zeros((1, 0), np.int64), SEEDS[0]).double()
    mixed = 0.75 * TopK(3)(torch.tensor([PROMPT]), raw).softmax(1) + 0.25 * raw.softmax(1)
    assert first == pytest.approx(mixed[0].numpy(), abs=1e-7)
    assert evidence.comparison.certain > 0.01


def test_coins_of_xtc_are_followed_in_a_round_of_one_draft_token() -> None:
    for record in records(subject(XTC, "xtc")):
        assert record.verdict == "preserved"
        assert record.tv_bound < 1e-14
        assert record.num_draft_tokens == 1


def test_a_coin_tossed_by_the_factory_is_one_of_the_round() -> None:
    """Both positions go by it, so it is wrong together; the first token alone is right."""

    class Early(XTC):
        def __init__(self, probability: float, threshold: float, generator: Generator) -> None:
            super().__init__(probability, threshold)
            self.heads = torch.rand((), dtype=torch.float64, generator=generator) < probability

        def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
            raw, cut = (made for _, made in self.outcomes(input_ids, logits))
            return torch.where(self.heads, cut, raw)

    case = transformed_cases("xtc")[1]
    evidence = steer_transform(subject(Early, "xtc"), case, 0, 60.0)
    assert evidence.comparison.certain > 0.01
    first = np.zeros(VOCAB_SIZE)
    for tokens, mass in evidence.joint.probabilities.items():
        first[tokens[0]] += mass
    assert first == pytest.approx(case.round().p(0)[0], abs=1e-12)
    assert verdicts(subject(Early, "xtc"))[1] == "violated"


def test_coins_without_effect_do_not_accuse() -> None:
    def idle(ids: Tensor, scores: Tensor) -> Tensor:
        torch.rand(1)
        return TopK(3)(ids, scores)

    assert steered(idle).comparison.total_variation < 1e-14


@pytest.mark.parametrize("draw", [np.random.random, np.random.default_rng(3).random])
def test_randomness_of_numpy_is_refused(draw: Callable[[], float]) -> None:
    def noisy(ids: Tensor, scores: Tensor) -> Tensor:
        return scores + draw()

    with pytest.raises(OutsideRandomness):
        steered(noisy)


def test_calls_that_remember_are_refused() -> None:
    calls: list[int] = []

    def tiring(ids: Tensor, scores: Tensor) -> Tensor:
        calls.append(1)
        return scores / len(calls)

    with pytest.raises(CannotSteer, match="when the subject is run again"):
        steered(tiring)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda ids, scores: scores[:, 1:], "it must be that of the logits handed in"),
        (lambda ids, scores: scores / 0, "logits are finite, or -inf"),
        (lambda ids, scores: scores - torch.inf, "must leave at least one token"),
    ],
)
def test_what_is_no_transform_is_an_error(wrong: Callable[..., Tensor], message: str) -> None:
    for record in records(subject(lambda **parameters: wrong, "top_k")):
        assert record.verdict == "error"
        assert message in record.reason


def test_a_factory_that_fails_is_an_error() -> None:
    def fails(**parameters: Any) -> None:
        raise RuntimeError("no")

    with pytest.raises(SubjectError, match="raised RuntimeError: no"):
        steer_transform(subject(fails, "top_k"), transformed_cases("top_k")[0], 0, 60.0)


def test_rows_are_generic() -> None:
    """No two tokens of a row are near a tie, which float32 would decide by rounding."""
    for seed in SEEDS:
        for depth in range(NUM_DRAFT_TOKENS + 1):
            rows = logits(prefixes(depth), seed)
            assert rows.dtype == torch.float32
            assert len(rows.unique(dim=0)) == len(rows)
            assert float(rows.sort(1).values.diff(dim=1).min()) > 1e-4


def test_a_certificate_has_both_kinds_of_evidence() -> None:
    certificate = certify(subject(TopK, "top_k"))
    ids = [case.id for case in certificate.cases]
    assert ids[4:8] == [f"exact/{id}" for id in ids[:4]]
    assert all(id.startswith("probe/") for id in ids[8:])
    assert certificate.verdict == "preserved"
    assert certificate.reason.endswith(" in 4 exact cases")
    assert len(certify(subject(TopK, "top_k"), exact=False).cases) == 4
