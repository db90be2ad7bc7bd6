"""Chapter stopping against decoders that look for stops too late or too far."""

import pytest
import torch

from specverify.properties.stopping import run_length
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN

ALPHA = 1e-6


def decoder(call):
    return Subject("mine", "decoder", call, Capabilities(models=frozenset({"language_model"})))


@pytest.mark.parametrize(
    ("mutant", "settings"), [("stops-at-block-end", "stopping"), ("last-block-dropped", "plain")]
)
def test_mutants_are_caught(mutant, settings, evidence, rejects):
    outcome = run_length(evidence(mutant, settings), ALPHA)
    assert rejects(outcome)
    assert "end in the wrong place, e.g. [" in outcome.violations[0]


@pytest.mark.parametrize(
    "name", ["reference", "reference-block", "no-bonus-token", "common-cut", "random-block-lengths"]
)
@pytest.mark.parametrize("settings", ["plain", "stopping"])
def test_right_ones_pass(name, settings, evidence, calm):
    assert calm(run_length(evidence(name, settings), ALPHA))


def test_one_run_in_many_is_enough(evidence):
    def careless(*arguments):
        tokens = TOKEN.call(*arguments).tokens
        tokens[0, -1] = -1
        return tokens

    outcome = run_length(evidence(decoder(careless)), ALPHA)
    (violation,) = outcome.violations
    assert "from prompt [3] end in the wrong place" in violation
    assert "max_new_tokens=6" in violation


def test_every_prompt_with_wrong_ends_is_named(evidence):
    def short(target, draft, ids, mask, settings, k, generator):
        return torch.zeros(len(ids), 2, dtype=torch.long)

    assert len(run_length(evidence(decoder(short), tokens=600), ALPHA).violations) == 4
