"""Chapter stopping: where a run ends."""

from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.registry import Outcome, register
from specverify.subjects.protocols import GENERATING


@register("stopping.run_length", kinds=GENERATING)
def run_length(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """Every run ends with the first token that ends it under the settings, and not before.

    Why it holds: stopping is a function of the emitted tokens (algorithms.md section 0, P9).

    What breaks it: stop tokens looked for at the end of a block only, the last block dropped at
    the length limit, stop sequences matched across the prompt.

    Error rate: none, one run is proof.
    """
    violations = []
    for index, tally in enumerate(evidence.tallies):
        if tally.wrong_ends:
            violations.append(
                f"{tally.wrong_ends:,} of {tally.runs:,} runs from prompt "
                f"{list(evidence.case.prompts[index])} end in the wrong place, e.g. "
                f"{tally.wrong_end_example} with max_new_tokens={evidence.case.length}"
            )
    return Outcome(violations=tuple(violations))
