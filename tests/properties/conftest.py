"""Evidence of a control on the toy pair, sampled once for all properties."""

from collections.abc import Callable
from functools import cache

import pytest

from specverify.certification.accumulator import Accumulator
from specverify.certification.certificate import CaseRecord
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.plan import pair_presets, plan_decoder
from specverify.certification.probes.run import Probe, run_probe
from specverify.certification.registry import Outcome, properties_of
from specverify.certification.shard import ShardSampler
from specverify.fixtures.lookalikes import LOOKALIKES
from specverify.fixtures.mutants import MUTANTS
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.models.pairs import Pair, load_pair
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import BLOCK, MATCH, TOKEN

ALPHA = 1e-6
TOKENS = 48_000
RECORDING = decoder_subject("recording", record_probs=True)
"""The reference, with the distributions it saw."""
REFERENCES = {subject.name: subject for subject in (TOKEN, BLOCK, MATCH, RECORDING)}


@cache
def _sampled(
    subject: Subject, settings: str, tokens: int, pair: Pair, run_length: int | None
) -> DecoderEvidence:
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
        run_length=run_length,
    )
    (planned,) = plan.cases
    sampler = ShardSampler(subject, planned.generate, planned.case, planned.rows, seed=7)
    accumulator = Accumulator(subject, planned.case, log_threshold=18.0)
    for shard in range(sampler.shards):
        accumulator.add(sampler.run(shard))
    return accumulator.evidence()


@pytest.fixture
def evidence() -> Callable[..., DecoderEvidence]:
    """Evidence of a mutant, a look-alike or a reference by its name, or of a subject."""

    def make(
        subject: str | Subject,
        settings: str = "plain",
        tokens: int = TOKENS,
        *,
        pair: Pair | None = None,
        run_length: int | None = None,
    ) -> DecoderEvidence:
        if isinstance(subject, str):
            if subject in REFERENCES:
                subject = REFERENCES[subject]
            else:
                subject = ({**MUTANTS, **LOOKALIKES})[subject].subject
        return _sampled(subject, settings, tokens, pair or load_pair("toy"), run_length)

    return make


@pytest.fixture
def probe() -> Callable[..., CaseRecord | str]:
    """The record of a probed property on one input, or why there is none."""

    def run(subject: Subject, property: str, input: str, seed: int = 0) -> CaseRecord | str:
        (found,) = [p for p in properties_of(subject.kind) if p.id == property]
        assert input in found.inputs
        return run_probe(subject, Probe(found, input), Budget(1e-6, 100), seed, 60.0)

    return run


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
    """Whether nothing about an outcome is even remarkable, in what decides or beside it."""

    def decide(outcome: Outcome) -> bool:
        assert outcome.not_applicable is None
        decided = all(t.p_value > 1e-2 for t in outcome.tests)
        shown = all(t.p_value > 1e-4 for t in outcome.reported)
        return not outcome.violations and decided and shown

    return decide
