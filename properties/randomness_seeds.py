"""Chapter randomness, probed: what is emitted is decided by the generator that was handed over."""

from dataclasses import replace

import torch
from torch import Tensor

from specverify.certification.probes.one_draw import DRAWS, Emit, emission
from specverify.certification.probes.surroundings import surroundings, watched
from specverify.certification.probes.trial import Trial
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.subjects.protocols import DECODERS, GENERATING, RULES, Subject

SEEDS = 48
"""Other seeds that a rule is called with, until one gives other tokens."""
WITHOUT = "the subject decides greedily, without randomness"


def draws(subject: Subject) -> str | None:
    """Need of what is about seeds: a subject that decides at random."""
    if subject.capabilities.algorithm == "greedy":
        return WITHOUT
    return takes_tiny_models(subject)


@register(
    "randomness.repeatable",
    kinds=GENERATING,
    evidence="probed",
    inputs=("all",),
    needs=draws,
    lossy=True,
    why_kept="two calls are proof, and name the generator that was not seeded",
)
def repeatable(trial: Trial, alpha: float) -> Outcome:
    """The same seed gives the same tokens, whatever was called before and whatever is outside.

    Why it holds: a subject that declares a generator draws everything from it; one that draws from
    the global generators has those seeded for each call. A run that cannot be repeated can be
    neither replayed nor debugged, and evidence on it holds for the runs that were seen.

    What breaks it: coins from a global generator, from the clock, from an address or from the
    operating system; caches, counters or generators kept from an earlier call. For a subject that
    declares no generator this is a finding: it has promised nothing.

    Error rate: none. A right subject repeats itself with certainty.
    """
    emit = emission(trial, trial.input)
    first, again = (_around(trial, emit, seed=0, outside=outside) for outside in (1, 2))
    _around(trial, emit, seed=1, outside=3)
    later = _around(trial, emit, seed=0, outside=4)
    if _same(first, again) and _same(first, later):
        return Outcome()
    if _same(first, again):
        cause = "it has kept something from the call in between, with another seed"
    else:
        cause = _cause(trial, emit)
    text = f"called again with the same seed it emits other tokens: {cause}"
    if trial.subject.capabilities.generator:
        return Outcome(violations=(text,))
    return Outcome(findings=(text,))


@register(
    "randomness.other_seed",
    kinds=DECODERS,
    evidence="probed",
    inputs=DRAWS,
    needs=draws,
    after=("joint.run in exact/plain",),
    why_kept="localises: names the draw that the seed does not reach",
)
def other_seed(trial: Trial, alpha: float) -> Outcome:
    """With another seed, each kind of draw gives other tokens.

    Why it holds: runs under different seeds are independent. On each input one kind of draw
    decides everything: the draft's own, the acceptance of its tokens, the correction, the bonus.

    What breaks it: a generator made anew with a fixed seed, for all or for one kind of draw; every
    request then gets the same coins.

    Error rate: a right decoder repeats 16 or more uniform tokens, or 48 fair coins, with
    probability below 1e-14.
    """
    return _varies(emission(trial, trial.input), trial, 1)


@register(
    "randomness.other_seed_of_rule",
    kinds=RULES,
    evidence="probed",
    inputs=DRAWS[1:],
    needs=draws,
    after=("joint.round in exact/random-V3-K2-float64",),
    why_kept="localises: names the draw that the seed does not reach",
)
def other_seed_of_rule(trial: Trial, alpha: float) -> Outcome:
    """With another seed, each kind of draw of a rule gives other tokens.

    Why it holds: as for a decoder, one round at a time.

    What breaks it: a generator made anew with a fixed seed, for all or for one kind of draw.

    Error rate: a right rule repeats its coin under all of 48 seeds with probability below 1e-14,
    even if all rows of a call share it.
    """
    return _varies(emission(trial, trial.input), trial, SEEDS)


@register(
    "randomness.next_call",
    kinds=GENERATING,
    evidence="probed",
    inputs=("correction",),
    needs=draws,
    after=("joint.run in exact/plain", "joint.round in exact/random-V3-K2-float64"),
    why_kept="localises: says that a generator does not move on",
)
def next_call(trial: Trial, alpha: float) -> Outcome:
    """A second call with the same generator goes on with it, and emits something else.

    Why it holds: what was drawn from a generator has moved it on.

    What breaks it: draws from a copy of the generator, or from a new one made of its first seed:
    the next request repeats the coins of this one.

    Error rate: a right subject repeats 16 corrections, each one of 15 tokens, with probability
    below 1e-18.
    """
    emit = emission(trial, trial.input)
    source = trial.generator()
    with surroundings(1):
        first, second = emit(source), emit(source)
    if not _same(first, second):
        return Outcome()
    return Outcome(
        violations=(
            "two calls with one generator emit the same tokens: it draws from a copy of the "
            "generator, or from a new one with the same seed",
        )
    )


@register(
    "randomness.global_state",
    kinds=GENERATING,
    evidence="probed",
    inputs=("all",),
    needs=draws,
    lossy=True,
)
def global_state(trial: Trial, alpha: float) -> Outcome:
    """The global generators of torch, numpy and Python are not seeded by a call.

    Why it holds: they belong to the caller, whose next draws would be those of a fixed seed.

    What breaks it: `torch.manual_seed` in a decoding loop. A subject that merely draws from them
    has a finding; if that decides its tokens, `randomness.repeatable` is violated.

    Error rate: none.
    """
    if not trial.subject.capabilities.generator:
        return Outcome(not_applicable="the subject declares that it uses the global generators")
    emit = emission(trial, trial.input)
    found = []
    for outside in (1, 2):
        with surroundings(outside) as around:
            emit(trial.generator())
        found.append(around)
    first, second = found
    seeded = [name for name in first.touched if first.after[name] == second.after[name]]
    return Outcome(
        violations=tuple(
            f"seeds {name}'s global generator: after a call its state is the same whatever it was "
            "before"
            for name in seeded
        )
    )


def _varies(emit: Emit, trial: Trial, others: int) -> Outcome:
    """Whether one of some other seeds gives other tokens than the first."""
    with surroundings(1):
        first = emit(trial.generator(0))
    if trial.input == "bonus" and trial.subject.kind == "rule" and bool((first[:, 1] < 0).all()):
        return Outcome(not_applicable="the subject emits no bonus token")
    for seed in range(1, others + 1):
        with surroundings(1):
            again = emit(trial.generator(seed))
        if not _same(first, again):
            return Outcome()
    seeds = f"{others} other seeds" if others > 1 else "another seed"
    return Outcome(
        violations=(
            f"with {seeds} it emits the same tokens where the only randomness is that of the "
            f"{trial.input}: these draws do not come from what is seeded",
        )
    )


def _around(trial: Trial, emit: Emit, *, seed: int, outside: int) -> Tensor:
    with surroundings(outside, outside):
        return emit(trial.generator(seed))


def _cause(trial: Trial, emit: Emit) -> str:
    """What decides, found by changing one thing at a time."""

    def under(seed: int, clock: int) -> Tensor:
        with surroundings(seed, clock):
            return emit(trial.generator(0))

    first, again = under(1, 1), under(1, 1)
    if _same(first, again):
        if not _same(first, under(2, 1)):
            return "it draws from a global generator that it was not handed"
        if not _same(first, under(1, 2)):
            return "the clock decides"
    seen: dict[str, None] = {}
    subject = trial.subject
    watching = replace(trial, subject=replace(subject, call=watched(subject.call, seen)))
    emission(watching, trial.input)(trial.generator(0))
    if seen:
        return f"it asks for {'; '.join(seen)}"
    return (
        "something outside decides that changes from call to call (time, addresses, the operating "
        "system, or state kept between calls)"
    )


def _same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.equal(left, right)
