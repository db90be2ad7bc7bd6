"""Certificates of real runs, one of each outcome, small enough to be made anew by the tests."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from specverify.certification.certificate import Certificate
from specverify.certification.run import certify
from specverify.decoding.output import DecoderOutput
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.models.pairs import Pair
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN
from specverify.transforms import REFERENCE
from specverify.verification.lossy import lenience

OUTCOMES = (
    "preserved",
    "inconclusive",
    "violated",
    "suspect",
    "overlong",
    "error",
    "lossy",
    "interrupted",
    "transform",
)

_PLAIN = {"plain": SamplingSettings()}


def _tables(_: object) -> tuple[TableModel, TableModel]:
    target = TableModel.random(4, 1, seed=3)
    return target, target.near(seed=4, noise=0.8)


PAIR = Pair(
    name="small",
    summary="",
    prompts=((0,), (1, 2, 3)),
    load=_tables,
    num_draft_tokens=2,
    model_classes=("language_model",),
)


def decoder(call: Callable[..., Any] = TOKEN.call, **capabilities: Any) -> Subject:
    """A decoder of specverify's own models."""
    takes = replace(TOKEN.capabilities, models=frozenset({"language_model"}))
    return Subject("mine", "decoder", call, replace(takes, **capabilities))


def accept_all(draft_tokens, draft_probs, target_probs, generator):
    """Accepts every draft token."""
    last = torch.multinomial(target_probs[:, -1], 1, generator=generator)
    return torch.cat([draft_tokens, last], 1)


def crash(*_):
    raise RuntimeError("out of cheese <script>alert('x')</script>")


def interrupted_at(number: int) -> Callable[..., Any]:
    """A decoder during whose n-th call the user presses Ctrl-C."""
    calls = []

    def generate(*arguments):
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return TOKEN.call(*arguments)

    return generate


def misreported(*arguments):
    """A right decoder that calls every token a correction."""
    output = TOKEN.call(*arguments)
    accepted = torch.zeros_like(output.tokens)
    return DecoderOutput(output.tokens, accepted=accepted, drafted=accepted + 2)


def overlong(*arguments):
    """A decoder that emits a token more than it was asked for."""
    tokens = TOKEN.call(*arguments).tokens
    return torch.cat([tokens, tokens[:, -1:]], 1)


@cache
def certified(outcome: str) -> Certificate:
    """The certificate of a run that came out so."""
    with pytest.MonkeyPatch.context() as patch:
        # A bound that a second of sampling reaches.
        patch.setattr("specverify.properties.joint.TV_LIMIT", 0.02)
        return _RUNS[outcome]()


def _sampled(subject: Subject, tokens: int) -> Certificate:
    return certify(subject, PAIR, settings=_PLAIN, tokens=tokens, exact=False)


def _lossy() -> Certificate:
    subject = {mutant.id: mutant.subject for mutant in RULE_MUTANTS}["lenient"]
    declared = replace(subject.capabilities, lossy=lenience(0.9))
    only = ("joint.round", "support.nothing_outside")
    return certify(replace(subject, capabilities=declared), PAIR, settings=_PLAIN, only=only)


_RUNS: dict[str, Callable[[], Certificate]] = {
    "preserved": lambda: _sampled(decoder(), 300_000),
    "inconclusive": lambda: _sampled(decoder(), 4_000),
    "violated": lambda: certify(
        Subject("mine", "rule", accept_all, Capabilities()),
        PAIR,
        settings=_PLAIN,
        tokens=4_000,
        only=("joint.*", "support.*", "stopping.run_length", "batch.rows_of_rule"),
    ),
    "suspect": lambda: _sampled(decoder(misreported), 40_000),
    "overlong": lambda: _sampled(decoder(overlong), 4_000),
    "error": lambda: _sampled(Subject("mine", "rule", crash, Capabilities()), 400),
    "lossy": _lossy,
    "interrupted": lambda: _sampled(decoder(interrupted_at(3)), 200_000),
    "transform": lambda: certify(
        Subject("mine", "transform", REFERENCE["top_k"], Capabilities(), reference="top_k")
    ),
}
