"""Chapter transforms: transformers' own processors pass, other conventions do not."""

import math
from dataclasses import replace

import pytest
import torch
from transformers.generation import logits_process as hf

from specverify.certification.certificate import Certificate
from specverify.certification.run import certify
from specverify.certification.transform_case import PARAMETERS
from specverify.properties.transforms import transformed_round
from specverify.subjects.protocols import Subject
from specverify.transforms import REFERENCE, TopK
from tests.properties.by_hand import evidence, moved
from tests.transformers_constraints import CONSTRAINTS

HUGGINGFACE = {
    "temperature": lambda temperature: hf.TemperatureLogitsWarper(temperature),
    "top_k": lambda top_k: hf.TopKLogitsWarper(top_k),
    "top_p": lambda top_p: hf.TopPLogitsWarper(top_p),
    "min_p": lambda min_p: hf.MinPLogitsWarper(min_p),
    "typical_p": lambda typical_p: hf.TypicalLogitsWarper(typical_p),
    "epsilon": lambda epsilon: hf.EpsilonLogitsWarper(epsilon),
    "eta": lambda epsilon: hf.EtaLogitsWarper(epsilon),
    "repetition_penalty": lambda penalty: hf.RepetitionPenaltyLogitsProcessor(penalty),
    "no_repeat_ngram": lambda ngram_size: hf.NoRepeatNGramLogitsProcessor(ngram_size),
    "bad_words": lambda bad_words: hf.NoBadWordsLogitsProcessor(bad_words, eos_token_id=None),
    "logit_bias": lambda bias: hf.SequenceBiasLogitsProcessor([[[t], b] for t, b in bias.items()]),
    **CONSTRAINTS,
}
MASKED = -math.inf
WIDTHS = ["as it comes", pytest.param("float32", marks=pytest.mark.slow)]


def judged(factory, reference: str, seed: int = 0) -> Certificate:
    return certify(
        Subject("mine", "transform", factory, reference=reference), seed=seed, exact=False
    )


def details(certificate: Certificate) -> str:
    return "\n".join(test.detail for case in certificate.cases for test in case.tests)


def narrow(factory):
    """The same in float32 throughout, as kernels are."""

    def build(**parameters):
        transform = factory(**parameters)
        return lambda ids, logits: transform(ids, logits.float())

    return build


@pytest.mark.parametrize("reference", HUGGINGFACE)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_transformers_own_are_preserved(reference, seed):
    for factory in (HUGGINGFACE[reference], narrow(HUGGINGFACE[reference])):
        certificate = judged(factory, reference, seed)
        assert certificate.verdict == "preserved", details(certificate)
        assert all(not case.findings for case in certificate.cases)


@pytest.mark.parametrize("reference", PARAMETERS)
def test_the_references_themselves_are_preserved(reference):
    certificate = judged(REFERENCE[reference], reference)
    assert certificate.verdict == "preserved", details(certificate)
    assert [case.id for case in certificate.cases] == [
        f"{reference}{list(parameters.values())}" for parameters in PARAMETERS[reference]
    ]


# Wrong in one way each, as plain functions of (ids, logits).


def top_p_without_crossing_token(top_p):
    def transform(ids, logits):
        descending, order = logits.sort(dim=-1, descending=True)
        removed = descending.softmax(-1).cumsum(-1) > top_p
        removed[..., 0] = False
        return logits.masked_fill(removed.scatter(-1, order, removed), MASKED)

    return transform


def top_p_keeps_at_the_boundary(top_p):
    """Drops a token only if the mass above it exceeds p, as SGLang does."""

    def transform(ids, logits):
        ascending, order = logits.sort(dim=-1)
        removed = ascending.softmax(-1).cumsum(-1) < 1 - top_p
        removed[..., -1] = False
        return logits.masked_fill(removed.scatter(-1, order, removed), MASKED)

    return transform


def min_p_strict(min_p):
    def transform(ids, logits):
        probs = logits.softmax(-1)
        largest = probs.amax(-1, keepdim=True)
        return logits.masked_fill((probs <= min_p * largest) & (probs < largest), MASKED)

    return transform


def epsilon_strict(epsilon):
    def transform(ids, logits):
        removed = logits.softmax(-1) <= epsilon
        return logits.masked_fill(removed & (logits < logits.amax(-1, keepdim=True)), MASKED)

    return transform


def top_n_sigma_strict(n):
    def transform(ids, logits):
        possible = logits > MASKED
        zero = torch.zeros_like(logits)
        number = possible.sum(-1, keepdim=True)
        mean = torch.where(possible, logits, zero).sum(-1, keepdim=True) / number
        variance = torch.where(possible, logits - mean, zero).square().sum(-1, keepdim=True)
        largest = logits.amax(-1, keepdim=True)
        threshold = largest - n * (variance / number).sqrt()
        return logits.masked_fill((logits <= threshold) & (logits < largest), MASKED)

    return transform


def repetition_penalty_divides(penalty):
    def transform(ids, logits):
        seen = torch.zeros_like(logits).scatter(1, ids, 1.0) > 0
        return torch.where(seen, logits / penalty, logits)

    return transform


def presence_as_frequency(penalty):
    return REFERENCE["frequency_penalty"](penalty)


def off_by_one_ngram(ngram_size):
    return REFERENCE["no_repeat_ngram"](ngram_size + 1)


def top_k_with_one_more(top_k):
    return REFERENCE["top_k"](top_k + 1)


WRONG = {
    "top-p drops the crossing token": (top_p_without_crossing_token, "top_p"),
    "top-p keeps a token at the boundary": (top_p_keeps_at_the_boundary, "top_p"),
    "exactly k of several tied tokens": (lambda top_k: TopK(top_k, keep_ties=False), "top_k"),
    "one more than k": (top_k_with_one_more, "top_k"),
    "min-p drops a token at the threshold": (min_p_strict, "min_p"),
    "epsilon drops a token at the threshold": (epsilon_strict, "epsilon"),
    "top-n-sigma drops a token at the threshold": (top_n_sigma_strict, "top_n_sigma"),
    "repetition penalty divides negative logits": (
        repetition_penalty_divides,
        "repetition_penalty",
    ),
    "presence counted as often as it occurs": (presence_as_frequency, "presence_penalty"),
    "n-grams one longer": (off_by_one_ngram, "no_repeat_ngram"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("width", WIDTHS)
def test_another_convention_is_violated(wrong, width):
    factory, reference = WRONG[wrong]
    certificate = judged(narrow(factory) if width == "float32" else factory, reference)
    assert certificate.verdict == "violated"
    assert "the reference gives tokens" in details(certificate)


# Right, and different from the reference where rounding or a sort decides.


def top_p_descending(top_p):
    """From the most likely token down, ties by lowest id: most engines."""

    def transform(ids, logits):
        if top_p == 1.0:
            return logits
        descending, order = logits.sort(dim=-1, descending=True, stable=True)
        probs = descending.softmax(-1)
        removed = probs.cumsum(-1) - probs >= top_p
        return logits.masked_fill(removed.scatter(-1, order, removed), MASKED)

    return transform


def top_p_of_log_softmax(top_p):
    def transform(ids, logits):
        ascending, order = logits.sort(dim=-1)
        removed = ascending.log_softmax(-1).exp().cumsum(-1) <= 1 - top_p
        removed[..., -1] = False
        return logits.masked_fill(removed.scatter(-1, order, removed), MASKED)

    return transform


def min_p_of_log_softmax(min_p):
    def transform(ids, logits):
        probs = logits.log_softmax(-1).exp()
        return logits.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), MASKED)

    return transform


def temperature_of_log_softmax(temperature):
    return lambda ids, logits: (logits.log_softmax(-1) / temperature).log_softmax(-1)


LOOKALIKES = {
    "top-p from above": (top_p_descending, "top_p"),
    "top-p of log_softmax": (top_p_of_log_softmax, "top_p"),
    "min-p of log_softmax": (min_p_of_log_softmax, "min_p"),
    "temperature on log probabilities": (temperature_of_log_softmax, "temperature"),
}


@pytest.mark.parametrize("lookalike", LOOKALIKES)
@pytest.mark.parametrize("width", WIDTHS)
def test_another_arithmetic_is_not(lookalike, width):
    factory, reference = LOOKALIKES[lookalike]
    certificate = judged(narrow(factory) if width == "float32" else factory, reference)
    assert certificate.verdict == "preserved", details(certificate)


def test_another_order_of_ties_is_a_finding():
    findings = [f for case in judged(top_p_descending, "top_p").cases for f in case.findings]
    assert any("chooses other ones of tokens that tie" in finding for finding in findings)


def test_one_wrong_row_is_proof():
    """Only where a row's largest logit is the last token."""

    def factory(temperature):
        def transform(ids, logits):
            wrong = logits.argmax(-1) == logits.shape[1] - 1
            return torch.where(wrong[:, None], logits, logits / temperature)

        return transform

    certificate = judged(factory, "temperature")
    assert certificate.verdict == "violated"
    assert [case.verdict for case in certificate.cases] == ["violated", "preserved", "violated"]


def test_a_small_leak_to_a_masked_token_is_violated():
    def factory(top_k):
        right = REFERENCE["top_k"](top_k)
        return lambda ids, logits: right(ids, logits).clamp(min=-60.0)

    assert judged(factory, "top_k").verdict == "violated"


def test_half_width_arithmetic_is_violated():
    def factory(temperature):
        return lambda ids, logits: (logits.bfloat16() / temperature).float()

    assert judged(factory, "temperature").verdict == "violated"


class TestTransformedRound:
    def test_judged_by_distance(self) -> None:
        assert transformed_round(evidence(), 0.0).violations == ()
        (said,) = transformed_round(evidence(moved(1e-3)), 0.0).violations
        assert "is 0.001 in TV" in said

    def test_rows_that_had_to_be_followed_alone_are_told(self) -> None:
        made = evidence()
        joint = replace(made.joint, alone="rows differ", rows_depend=True)
        (finding,) = transformed_round(replace(made, joint=joint), 0.0).findings
        assert finding == "is followed only with one row a call: rows differ"
        looped = replace(made.joint, alone="rows draw one after another")
        assert transformed_round(replace(made, joint=looped), 0.0).findings == ()
