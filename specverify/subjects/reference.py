"""specverify's own decoder as a subject, once for each verification rule."""

from typing import Any

from torch import Generator, Tensor

from specverify.decoding.output import DecoderOutput
from specverify.errors import SettingsError
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Capabilities, Subject


def _reference(name: str, algorithm: str, summary: str) -> Subject:
    def generate(
        target: Any,
        draft: Any,
        prompt_ids: Tensor,
        attention_mask: Tensor,
        settings: SamplingSettings,
        num_draft_tokens: int,
        generator: Generator,
    ) -> DecoderOutput:
        # Imported here, so that listing the subjects loads no model code.
        from specverify.decoding.speculative import SpeculativeDecoder
        from specverify.drafting.draft_model import DraftModel
        from specverify.drafting.schedule import Fixed
        from specverify.models.transformers_model import as_language_model
        from specverify.verification import get_verification

        if algorithm == "greedy" and not settings.greedy:
            raise SettingsError(
                f"{name} decodes greedily and got temperature={settings.temperature:g}; set "
                "temperature to 0 (--settings greedy), or certify another reference"
            )
        decoder = SpeculativeDecoder(
            as_language_model(target),
            DraftModel(as_language_model(draft)),
            get_verification(algorithm).unchecked(),
            Fixed(num_draft_tokens),
        )
        return decoder.generate(prompt_ids, attention_mask, settings=settings, generator=generator)

    return Subject(
        name=name,
        kind="decoder",
        call=generate,
        capabilities=Capabilities(
            algorithm=algorithm,
            standard_draft=True,
            coin_dtype="float64",
            models=frozenset({"language_model", "transformers"}),
        ),
        summary=summary,
    )


TOKEN = _reference(
    "reference", "token", "specverify's decoder, token verification (Leviathan, Chen 2023)"
)
BLOCK = _reference(
    "reference-block", "block", "specverify's decoder, block verification (Sun et al. 2024)"
)
MATCH = _reference(
    "reference-match", "match", "specverify's decoder, accepts what the target itself would draw"
)
GREEDY = _reference(
    "reference-greedy", "greedy", "specverify's decoder, greedy verification (temperature 0 only)"
)
