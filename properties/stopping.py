"""Chapter stopping: where a run ends."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.probes import stops
from specverify.certification.probes.certain import SHOWN, Runs, certain_runs, cold
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.world import World, small_tables
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.subjects.protocols import DECODERS, GENERATING

PLAIN = ("joint.run in exact/plain",)
Check = Callable[..., Outcome]

LAWS: dict[str, dict[str, Any]] = {
    "several_stop_tokens": {"stop_token_ids": (2, 0), "max_new_tokens": 2},
    "stop_sequence": {"stop_sequences": ((1, 0),)},
    "stop_sequences": {"stop_sequences": ((0, 1), (1, 1))},
    "min_new_tokens": {"stop_token_ids": (1,), "min_new_tokens": 1},
    "min_new_tokens_and_sequence": {"stop_sequences": ((0,), (1, 1)), "min_new_tokens": 1},
}
"""Over three tokens where there are several stop tokens, over two otherwise."""


def _on(
    id: str,
    runs: Mapping[str, Callable[[], Runs]],
    after: tuple[str, ...] = PLAIN,
    why_kept: str = "",
) -> Callable[[Check], Check]:
    """Register a property that is tried on runs of which only one can come out."""
    return register(
        id,
        kinds=DECODERS,
        evidence="probed",
        inputs=tuple(runs),
        needs=takes_tiny_models,
        after=after,
        why_kept=why_kept,
    )


@register(
    "stopping.run_length",
    kinds=GENERATING,
    after=("joint.run",),
    why_kept="decides on the user's own pair and settings, beside the small worlds of the others",
)
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


@_on(
    "stopping.stop_tokens",
    stops.TOKENS,
    why_kept="one run is proof, at every place of a block",
)
def stop_tokens(trial: DecoderTrial, alpha: float) -> Outcome:
    """A run ends with the first stop token that is emitted, wherever in a block it stands.

    Why it holds: it is the last token of a run that emits one token a pass.

    What breaks it: stop tokens looked for at the end of a block, in the bonus token or among draft
    tokens only, the first stop token known alone, one that was proposed and rejected, one in the
    prompt, the length limit looked at first, tokens kept after the stop or the stop token left out.

    Error rate: none. Only one run is possible, and it is compared token by token.
    """
    return certain_runs(trial, stops.TOKENS[trial.input]())


@_on(
    "stopping.stop_sequences",
    stops.SEQUENCES,
    why_kept="one run is proof, wherever a sequence begins and ends",
)
def stop_sequences(trial: DecoderTrial, alpha: float) -> Outcome:
    """A run ends with the token that completes a stop sequence, and only emitted tokens count.

    Why it holds: the sequence is looked for in what was emitted, after every token.

    What breaks it: looking at the end of a block only, or within one block; a matcher that starts
    over where the sequence's own beginning repeats; the first sequence known alone; tokens of the
    prompt or rejected tokens taken for the beginning.

    Error rate: none. Only one run is possible, and it is compared token by token.
    """
    return certain_runs(trial, stops.SEQUENCES[trial.input]())


@_on(
    "stopping.min_new_tokens",
    stops.MINIMUM,
    why_kept="one run is proof, at every length",
)
def min_new_tokens(trial: DecoderTrial, alpha: float) -> Outcome:
    """Before the minimum length a stop token is impossible and a stop sequence has no effect.

    Why it holds: each position counts the tokens before it, those of its own block among them.

    What breaks it: a length that is taken at the start of the block, counts rounds, the prompt or
    is one off; a minimum that is ignored, capped, or known to stop tokens only.

    Error rate: none. Only one run is possible, and it is compared token by token.
    """
    return certain_runs(trial, stops.MINIMUM[trial.input]())


@_on("stopping.length_limit", stops.LIMITS)
def length_limit(trial: DecoderTrial, alpha: float) -> Outcome:
    """A run that nothing else ends has exactly `max_new_tokens` tokens.

    Why it holds: the limit is one of the stopping rules, and no other speaks.

    What breaks it: a last block that is dropped or kept whole, a limit below a block, a cap of the
    implementation's own, rounds counted in place of tokens.

    Error rate: none. Only one run is possible, and it is compared token by token.
    """
    return certain_runs(trial, stops.LIMITS[trial.input]())


@_on(
    "stopping.rows",
    stops.ROWS,
    after=("stopping.stop_tokens", "stopping.stop_sequences", "stopping.min_new_tokens"),
    why_kept="localises: says that a row ends because of its neighbours",
)
def rows(trial: DecoderTrial, alpha: float) -> Outcome:
    """A row that has stopped stays as it is, and the others go on as if it were not there.

    Why it holds: rows are separate requests.

    What breaks it: a batch that ends with its first or its last row, rows that are counted anew
    once some have stopped, a row that goes on because others do.

    Error rate: none. Only one run is possible in each row, and it is compared token by token.
    """
    return certain_runs(trial, stops.ROWS[trial.input]())


@register(
    "stopping.law",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=(*LAWS, "rows"),
    needs=takes_tiny_models,
    after=PLAIN,
    why_kept="the only one that sees stops at random places, whatever the rule that ends the run",
)
def law(trial: DecoderTrial, alpha: float) -> Outcome:
    """Runs that end at random places have the stopped distribution of one-token decoding.

    Why it holds: cutting a run where it stops is cutting the target's own (algorithms.md section
    0, P9), and what stands behind the stop decides nothing.

    What breaks it: what breaks the other properties of this chapter, at any place of a block; stop
    tokens masked before the minimum length and not taken out of the distribution.

    Error rate: none where the run is computed; otherwise an e-process at its share.
    """
    if trial.input == "rows":
        return trial.follows(law_world("rows"), "two rows of which one may stop before the other")
    fields = ", ".join(f"{name}={value}" for name, value in LAWS[trial.input].items())
    return trial.follows(law_world(trial.input), f"a run under {fields}")


def law_world(name: str) -> World:
    """Where an input of `stopping.law` is tried."""
    if name == "several_stop_tokens":
        return World().under(**LAWS[name])
    world = World(*small_tables(2))
    if name != "rows":
        return world.under(**LAWS[name])
    two = replace(world, prompts=((0,), (1, 0)), num_draft_tokens=1)
    return two.under(max_new_tokens=2, stop_token_ids=(1,))


@_on(
    "stopping.finish_reasons",
    stops.REASONS,
    after=("stopping.stop_tokens", "stopping.stop_sequences", "stopping.length_limit"),
)
def finish_reasons(trial: DecoderTrial, alpha: float) -> Outcome:
    """The reason that is reported for the end of a run is true of its tokens.

    Why it holds: reasons are a function of the emitted tokens. Where two rules end a run with the
    same token, either is true.

    What breaks it: the length limit reported whenever a block reaches it, the reason of another
    row, one that is left from the round before.

    Error rate: none, one run is proof. Not applicable where no reasons are reported.
    """
    refusals: list[str] = []
    wrong: list[str] = []
    done = 0
    for what, world in _cold(stops.REASONS[trial.input]()):
        if (refused := world.refused_by(trial.subject)) is not None:
            refusals.append(refused)
            continue
        output = trial.generate(world, trial.generator(done))
        done += 1
        if output.finish_reasons is None:
            return Outcome(not_applicable="the subject reports no finish reasons")
        for tokens, reason in zip(output.tokens.tolist(), output.finish_reasons, strict=True):
            emitted = [token for token in tokens if token >= 0]
            true = stops.reasons(emitted, world.settings)
            # A run that no rule ends is told by the other properties.
            if true and reason not in true:
                wrong.append(
                    f"{what}: {reason!r} is reported for {emitted}, and {' or '.join(true)} is true"
                )
    if not done:
        return Outcome(not_applicable=refusals[0])
    return Outcome(violations=tuple(wrong[:SHOWN]), details={"runs": done})


def _cold(runs: Runs) -> Iterator[tuple[str, World]]:
    for what, world in runs:
        for here in cold(world):
            yield what, here
