"""Chapter accounting: what a decoder says about its run beside the tokens."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from torch import Tensor

from specverify.certification.probes.along import emitted
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.world import World, small_tables
from specverify.certification.registry import UNREPORTED, Outcome, register, takes_tiny_models
from specverify.decoding.output import Counters, DecoderOutput
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS

NO_COUNTERS = "the subject reports no counters"
LENGTH, BLOCK = 24, 3
_VOCAB_SIZE = 5
_PROMPTS = ((0, 1), (2,), (3, 4, 1))


@register(
    "accounting.counters",
    kinds=DECODERS,
    evidence="probed",
    inputs=("plain", "stopping", "again"),
    needs=takes_tiny_models,
    why_kept="localises: says which count is wrong",
)
def counters(trial: DecoderTrial, alpha: float) -> Outcome:
    """The counters of a call agree with its tokens and with each other.

    Why it holds: a round emits its accepted draft tokens and one more, less what is cut off behind
    a stop (algorithms.md section 3); a draft token is accepted only together with all before it,
    so acceptance by position never increases; every round needs a pass of the target.

    What breaks it: a bonus token counted as accepted, accepted tokens counted behind a rejection,
    tokens behind a stop counted as emitted, lengths of blocks in place of positions, counters that
    go on from an earlier call.

    Error rate: none.
    """
    settings = {"stop_token_ids": (_VOCAB_SIZE - 1,)} if trial.input == "stopping" else {}
    world = _world(SamplingSettings(max_new_tokens=LENGTH, **settings))
    if (refused := replace(world, prompts=_PROMPTS[:1]).refused_by(trial.subject)) is not None:
        return Outcome(not_applicable=refused)
    violations: list[str] = []
    for call in range(2 if trial.input == "again" else 1):
        for part, output in _outputs(trial, world, call):
            counted = output.counters
            if counted is None or not (counted.rounds or counted.emitted or counted.accepted):
                return Outcome(not_applicable=NO_COUNTERS)
            violations += _contradictions(counted, len(part.prompts), _lengths(output))
    return Outcome(violations=tuple(dict.fromkeys(violations)))


@register(
    "accounting.rounds",
    kinds=DECODERS,
    evidence="probed",
    inputs=("plain", "stopping"),
    needs=takes_tiny_models,
)
def rounds(trial: DecoderTrial, alpha: float) -> Outcome:
    """The rounds that are reported add up to the counters and to the tokens.

    Why it holds: both count the same rounds. That a round emits its accepted tokens and one more,
    and only the last may be cut, is checked of every output.

    What breaks it: rounds of a row counted after it has ended, or reported off by one.

    Error rate: none.
    """
    settings = {"stop_token_ids": (_VOCAB_SIZE - 1,)} if trial.input == "stopping" else {}
    world = _world(SamplingSettings(max_new_tokens=LENGTH, **settings))
    if (refused := replace(world, prompts=_PROMPTS[:1]).refused_by(trial.subject)) is not None:
        return Outcome(not_applicable=refused)
    violations: list[str] = []
    for _, output in _outputs(trial, world, 0):
        if output.accepted is None:
            return Outcome(not_applicable=UNREPORTED)
        if output.counters is None:
            return Outcome(not_applicable=NO_COUNTERS)
        violations += _unlike_rounds(output.counters, output.accepted, output.drafted)
    return Outcome(violations=tuple(dict.fromkeys(violations)))


@register(
    "accounting.known_rounds",
    kinds=DECODERS,
    evidence="probed",
    inputs=("accepting", "rejecting"),
    needs=takes_tiny_models,
    after=("greedy.equals_argmax",),
    why_kept="one run is proof: its rounds are known beforehand",
)
def known_rounds(trial: DecoderTrial, alpha: float) -> Outcome:
    """Where the draft is always right, all draft tokens are reported as accepted, else none.

    Why it holds: at temperature 0 a draft that is the target proposes what is emitted, and one
    that never proposes the target's argmax is always rejected.

    What breaks it: rounds that are reported to end elsewhere than they did. They add up all the
    same, and every statistic of acceptance is of other tokens.

    Error rate: none.
    """
    if not trial.subject.capabilities.standard_draft:
        return Outcome(not_applicable="the subject does not declare that it drafts from the draft")
    accepting = trial.input == "accepting"
    world = _world(SamplingSettings(temperature=0.0, max_new_tokens=LENGTH))
    draft = world.target if accepting else _never_agreeing(world.target)
    violations: list[str] = []
    for _, output in _outputs(trial, replace(world, draft=draft), 0):
        if output.accepted is None or output.drafted is None:
            return Outcome(not_applicable=UNREPORTED)
        for accepted, drafted in zip(output.accepted, output.drafted, strict=True):
            # The last round may be cut, and then it is open what counts as accepted.
            ran = (accepted >= 0).nonzero().flatten()[:-1]
            right = drafted[ran] if accepting else 0 * drafted[ran]
            if bool((accepted[ran] != right).any()):
                violations.append(
                    f"of {drafted[ran].tolist()} draft tokens, "
                    f"{'all of them right' if accepting else 'none of them right'}, it reports "
                    f"{accepted[ran].tolist()} as accepted"
                )
    return Outcome(violations=tuple(violations[:1]))


def _world(settings: SamplingSettings) -> World:
    target, draft = small_tables(_VOCAB_SIZE)
    return World(target, draft, settings, _PROMPTS, BLOCK)


def _never_agreeing(target: TableModel) -> TableModel:
    """A draft whose most likely token is the least likely one of the target."""
    return TableModel(-target.logits, target.order)


def _outputs(trial: DecoderTrial, world: World, call: int) -> Iterator[tuple[World, DecoderOutput]]:
    """One call for all prompts, or one for each where the subject takes one row a call."""
    if trial.subject.capabilities.batch:
        yield world, trial.generate(world, trial.generator(call))
        return
    for number, prompt in enumerate(world.prompts):
        alone = replace(world, prompts=(prompt,))
        yield alone, trial.generate(alone, trial.generator(call * len(world.prompts) + number))


def _lengths(output: DecoderOutput) -> int:
    return sum(len(tokens) for tokens in emitted(output.tokens))


def _contradictions(counted: Counters, rows: int, tokens: int) -> Iterator[str]:
    """Identities of `Counters` that do not hold, for a call of some rows that emitted `tokens`."""
    positions = counted.accepted_by_position
    names = ("rounds", "target_passes", "draft_passes", "drafted", "accepted", "emitted", "cut")
    negative = [name for name in names if getattr(counted, name) < 0]
    if negative or any(count < 0 for count in positions):
        yield f"a count is negative: {', '.join(negative) or positions}"
    if counted.emitted != tokens:
        yield f"it counts {counted.emitted} emitted tokens and has emitted {tokens}"
    if counted.emitted != counted.accepted + counted.rounds - counted.cut:
        yield (
            f"emitted = {counted.emitted}, but accepted + rounds - cut = {counted.accepted} + "
            f"{counted.rounds} - {counted.cut}: a round emits its accepted tokens and one more"
        )
    if counted.accepted > counted.drafted:
        yield f"accepted = {counted.accepted} is more than drafted = {counted.drafted}"
    if positions and sum(positions) != counted.accepted:
        yield f"accepted_by_position = {positions} does not add up to accepted = {counted.accepted}"
    if any(after > before for before, after in pairwise(positions)):
        yield (
            f"accepted_by_position = {positions} increases, but a token is accepted only together "
            "with all before it"
        )
    if positions and positions[0] > counted.rounds:
        yield f"accepted_by_position = {positions} begins above rounds = {counted.rounds}"
    # A pass serves all rows, so that the longest row needs as many as it has rounds.
    if counted.target_passes and counted.target_passes * rows < counted.rounds:
        yield (
            f"{counted.target_passes} passes of the target over {rows} rows are too few for "
            f"{counted.rounds} rounds"
        )


def _unlike_rounds(counted: Counters, accepted: Tensor, drafted: Tensor | None) -> Iterator[str]:
    """Where counters differ from reported rounds [B, R]."""
    ran = accepted >= 0
    sums = {"rounds": int(ran.sum()), "accepted": int(accepted[ran].sum())}
    if drafted is not None:
        sums["drafted"] = int(drafted[drafted >= 0].sum())
    for name, value in sums.items():
        if getattr(counted, name) != value:
            yield f"counters.{name} is {getattr(counted, name)}, and its rounds have {value}"
    longest = int(ran.sum(1).max())
    if counted.target_passes and counted.target_passes < longest:
        yield f"{counted.target_passes} passes of the target for a row of {longest} rounds"
    deepest = int(accepted.max())
    reached = [int((accepted > position).sum()) for position in range(deepest)]
    positions = counted.accepted_by_position
    extra = positions[len(reached) :]
    if positions and (positions[: len(reached)] != reached or any(extra)):
        yield f"accepted_by_position is {positions}, and its rounds have {reached}"
