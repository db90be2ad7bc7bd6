"""How a subject is made to generate: a decoder as it is, a rule inside the reference loop."""

from typing import Any

from torch import Generator, Tensor

from specverify.certification.shard import Generate
from specverify.decoding.output import DecoderOutput
from specverify.decoding.speculative import SpeculativeDecoder
from specverify.drafting.draft_model import DraftModel
from specverify.drafting.schedule import Fixed
from specverify.models.protocol import LanguageModel
from specverify.settings import SamplingSettings
from specverify.subjects.calling import call_decoder, call_decoder_by_row
from specverify.subjects.guard import Call
from specverify.subjects.protocols import Subject
from specverify.subjects.rule_decoder import rule_as_verification


def decoder_generation(
    subject: Subject,
    target: Any,
    draft: Any,
    settings: SamplingSettings,
    num_draft_tokens: int,
    time_limit: float,
) -> Generate:
    """Runs of a decoder subject, the values of its output unchecked: `ShardSampler` does that."""

    def generate(
        prompt_ids: Tensor, attention_mask: Tensor, generator: Generator
    ) -> Call[DecoderOutput]:
        if not subject.capabilities.batch:
            prompts = [
                ids[shown.bool()] for ids, shown in zip(prompt_ids, attention_mask, strict=True)
            ]
            return call_decoder_by_row(
                subject,
                target,
                draft,
                prompts,
                settings,
                num_draft_tokens,
                generator,
                time_limit=time_limit,
            )
        return call_decoder(
            subject,
            target,
            draft,
            prompt_ids,
            attention_mask,
            settings,
            num_draft_tokens,
            generator,
            time_limit=time_limit,
            check_values=False,
        )

    return generate


def rule_generation(
    subject: Subject,
    target: LanguageModel,
    draft: LanguageModel,
    settings: SamplingSettings,
    num_draft_tokens: int,
    time_limit: float,
) -> Generate:
    """Runs of the reference loop with a rule subject as its verification.

    The rounds of a run compose, and each continues from what was emitted: a rule that emits fewer
    tokens than it might, such as one without a bonus token, is completed by the rounds that follow
    (design.md section 1).
    """

    def generate(
        prompt_ids: Tensor, attention_mask: Tensor, generator: Generator
    ) -> Call[DecoderOutput]:
        findings: list[str] = []
        rule = rule_as_verification(subject, time_limit=time_limit, on_finding=findings.append)
        decoder = SpeculativeDecoder(target, DraftModel(draft), rule, Fixed(num_draft_tokens))
        output = decoder.generate(
            prompt_ids, attention_mask, settings=settings, generator=generator
        )
        if output.accepted is not None and rule.silent_bonus is not None:
            output.accepted[:, 0] += rule.silent_bonus.long()
        seconds = sum(output.counters.seconds.values()) if output.counters else 0.0
        return Call(output, seconds, tuple(findings))

    return generate
