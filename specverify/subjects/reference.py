"""specverify's own decoder as a subject, once for each verification rule."""

from collections.abc import Callable
from typing import Any

from torch import Generator, Tensor

from specverify.decoding.output import DecoderOutput
from specverify.decoding.row_settings import RowSettings, generate_by_settings
from specverify.errors import SettingsError
from specverify.models.protocol import LanguageModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Capabilities, Subject

MakeDrafter = Callable[[LanguageModel, LanguageModel], Any]
"""The drafter of a loop, from its target and the draft model it was handed."""


def reference_subject(
    name: str, algorithm: str, summary: str, drafter: MakeDrafter | None = None, **declared: Any
) -> Subject:
    """The reference loop as a subject.

    Args:
        name: of the subject.
        algorithm: its verification rule.
        summary: one line for listings.
        drafter: makes what proposes; the draft model it is handed when omitted.
        **declared: further capabilities.
    """

    def generate(
        target: Any,
        draft: Any,
        prompt_ids: Tensor,
        attention_mask: Tensor,
        settings: RowSettings,
        num_draft_tokens: int,
        generator: Generator,
    ) -> DecoderOutput:
        # Imported here, so that listing the subjects loads no model code.
        from specverify.decoding.speculative import SpeculativeDecoder
        from specverify.drafting.schedule import Fixed
        from specverify.models.transformers_model import as_language_model
        from specverify.verification import get_verification

        models = as_language_model(target), as_language_model(draft)
        decoder = SpeculativeDecoder(
            models[0],
            (drafter or _draft_model)(*models),
            get_verification(algorithm).unchecked(),
            Fixed(num_draft_tokens),
        )

        def alike(ids: Tensor, mask: Tensor, own: SamplingSettings) -> DecoderOutput:
            if algorithm == "greedy" and not own.greedy:
                raise SettingsError(
                    f"{name} decodes greedily and got temperature={own.temperature:g}; set "
                    "temperature to 0 (--settings greedy), or certify another reference"
                )
            return decoder.generate(ids, mask, settings=own, generator=generator)

        return generate_by_settings(alike, prompt_ids, attention_mask, settings)

    return Subject(
        name=name,
        kind="decoder",
        call=generate,
        capabilities=Capabilities(
            algorithm=algorithm,
            # Of another drafter nobody knows whether its q is the pair's draft.
            standard_draft=drafter is None,
            coin_dtype="float64",
            models=frozenset({"language_model", "transformers"}),
            row_settings=True,
            **declared,
        ),
        summary=summary,
    )


def _draft_model(_target: LanguageModel, draft: LanguageModel) -> Any:
    from specverify.drafting.draft_model import DraftModel

    return DraftModel(draft)


TOKEN = reference_subject(
    "reference", "token", "specverify's decoder, token verification (Leviathan, Chen 2023)"
)
BLOCK = reference_subject(
    "reference-block", "block", "specverify's decoder, block verification (Sun et al. 2024)"
)
MATCH = reference_subject(
    "reference-match", "match", "specverify's decoder, accepts what the target itself would draw"
)
GREEDY = reference_subject(
    "reference-greedy", "greedy", "specverify's decoder, greedy verification (temperature 0 only)"
)
