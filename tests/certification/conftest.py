"""A small pair, subjects around the reference decoder, and cases of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from specverify.certification.accumulator import Accumulator
from specverify.certification.decoder_case import DecoderCase, runs_for
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.generation import decoder_generation
from specverify.certification.plan import pair_presets
from specverify.certification.shard import ShardSampler
from specverify.models.pairs import Pair
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN

PROMPTS = ((0,), (1, 2, 3))
K = 2


def tables() -> tuple[TableModel, TableModel]:
    target = TableModel.random(4, 1, seed=3)
    return target, target.near(seed=4, noise=0.8)


@pytest.fixture
def pair() -> Pair:
    return Pair(
        name="small",
        summary="",
        prompts=PROMPTS,
        load=lambda _: tables(),
        num_draft_tokens=K,
        model_classes=("language_model",),
    )


@pytest.fixture
def windowed(pair: Pair) -> Pair:
    """The same pair with room for nine tokens."""

    def load(_: Any) -> tuple[TableModel, TableModel]:
        target, draft = tables()
        target.window = draft.window = 9
        return target, draft

    return replace(pair, load=load)


@pytest.fixture
def presets(pair: Pair) -> dict[str, SamplingSettings]:
    return pair_presets(pair, tables()[0])


CAPABILITIES = replace(TOKEN.capabilities, models=frozenset({"language_model"}))


@pytest.fixture
def decoder() -> Callable[..., Subject]:
    """A decoder subject of specverify's own models, with the capabilities of the reference."""

    def make(call: Callable[..., Any] = TOKEN.call, **capabilities: Any) -> Subject:
        return Subject("mine", "decoder", call, replace(CAPABILITIES, **capabilities))

    return make


@pytest.fixture
def rule() -> Callable[..., Subject]:
    def make(call: Callable[..., Any], **capabilities: Any) -> Subject:
        return Subject("mine", "rule", call, Capabilities(**capabilities))

    return make


@pytest.fixture
def case() -> Callable[..., DecoderCase]:
    """A case on the small pair; fields of `DecoderCase` can be replaced."""

    def make(tokens: int = 4_000, length: int = K + 2, **fields: Any) -> DecoderCase:
        target, draft = tables()
        settings = fields.pop("settings", SamplingSettings())
        values: dict[str, Any] = {
            "id": "case",
            "settings": settings.model_copy(update={"max_new_tokens": length}),
            "num_draft_tokens": K,
            "prompts": PROMPTS,
            "target": target,
            "draft": draft,
            "rows": 4096,
        } | fields
        values.setdefault("runs", runs_for(tokens, length, values["prompts"]))
        return DecoderCase(**values)

    return make


@pytest.fixture
def sampler() -> Callable[..., ShardSampler]:
    def make(subject: Subject, case: DecoderCase, rows: int = 4096, seed: int = 0) -> ShardSampler:
        generate = decoder_generation(
            subject, case.target, case.draft, case.settings, case.num_draft_tokens, 60.0
        )
        return ShardSampler(subject, generate, case, rows, seed)

    return make


@pytest.fixture
def evidence(sampler: Callable[..., ShardSampler]) -> Callable[..., DecoderEvidence]:
    """What a subject gave on a case."""

    def make(subject: Subject, case: DecoderCase, **options: Any) -> DecoderEvidence:
        sampled = sampler(subject, case, **options)
        accumulator = Accumulator(subject, case)
        for shard in range(sampled.shards):
            accumulator.add(sampled.run(shard))
        return accumulator.evidence()

    return make


@pytest.fixture
def loose_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that seconds of sampling reach, where the verdict `preserved` is not the question."""
    monkeypatch.setattr("specverify.properties.joint.TV_LIMIT", 0.02)


@pytest.fixture(autouse=True)
def global_generators_untouched():
    """Whatever is certified, nothing draws from the global generator."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)
