"""Evidence of a control on the toy pair, sampled once for all properties."""

from collections.abc import Callable
from functools import cache

import pytest

from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.plan import pair_presets, plan_decoder
from specverify.certification.registry import Outcome
from specverify.certification.sampled import DecoderSampler
from specverify.fixtures.lookalikes import LOOKALIKES
from specverify.fixtures.mutants import MUTANTS
from specverify.models.pairs import load_pair
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import BLOCK, MATCH, TOKEN

ALPHA = 1e-6
TOKENS = 60_000
REFERENCES = {subject.name: subject for subject in (TOKEN, BLOCK, MATCH)}


@cache
def _sampled(subject: Subject, settings: str, tokens: int) -> DecoderEvidence:
    pair = load_pair("toy")
    named = pair_presets(pair, pair.open("language_model")[0])
    chosen = SamplingSettings.model_validate_json(settings) if "{" in settings else named[settings]
    plan = plan_decoder(
        subject,
        pair,
        {settings: chosen},
        profile="quick",
        num_draft_tokens=None,
        tokens=tokens,
        time_limit=60.0,
    )
    (planned,) = plan.cases
    sampler = DecoderSampler(subject, planned.generate, planned.case, planned.rows, seed=7)
    sampler.run(lambda done: None)
    return sampler.evidence()


@pytest.fixture
def evidence() -> Callable[..., DecoderEvidence]:
    """Evidence of a mutant, a look-alike or a reference by its name, or of a subject."""

    def make(
        subject: str | Subject, settings: str = "plain", tokens: int = TOKENS
    ) -> DecoderEvidence:
        if isinstance(subject, str):
            if subject in REFERENCES:
                subject = REFERENCES[subject]
            else:
                subject = ({**MUTANTS, **LOOKALIKES})[subject].subject
        return _sampled(subject, settings, tokens)

    return make


@pytest.fixture
def rejects() -> Callable[[Outcome], bool]:
    """Whether an outcome violates its property at a level no right subject reaches."""

    def decide(outcome: Outcome) -> bool:
        assert outcome.not_applicable is None
        if outcome.violations:
            return True
        return bool(outcome.tests) and all(t.p_value < ALPHA / 50 for t in outcome.tests)

    return decide


@pytest.fixture
def calm() -> Callable[[Outcome], bool]:
    """Whether nothing about an outcome is even remarkable."""

    def decide(outcome: Outcome) -> bool:
        assert outcome.not_applicable is None
        return not outcome.violations and all(t.p_value > 1e-3 for t in outcome.tests)

    return decide
