"""Chapter greedy: at temperature 0 a run is the target's own argmax decoding."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from specverify.certification.probes.along import emitted, first_of, picked, processed
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.world import World
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS

ALGORITHMIC, NUMERICAL = 1e-9, 1e-4
"""Nats that an emitted token may lie below the best one: with float64 models, and with others. It
is a near tie then, and a finding."""

LENGTH = 64
BLOCKS = ("K1", "K2", "K3", "K4", "K5")
_PROMPTS = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11), (12, 13, 14))
_BLOCK_OF_SETTINGS = 3

SETTINGS: dict[str, SamplingSettings] = {
    "repetition": SamplingSettings(temperature=0.0, repetition_penalty=1.4),
    "counts": SamplingSettings(temperature=0.0, presence_penalty=0.6, frequency_penalty=0.3),
    "bans": SamplingSettings(temperature=0.0, no_repeat_ngram_size=3, bad_words=((2,), (1, 3))),
    "bias": SamplingSettings(temperature=0.0, logit_bias={0: -2.0, 3: 1.5}),
    "truncation": SamplingSettings(temperature=0.0, top_k=2, top_p=0.5),
}


@register(
    "greedy.equals_argmax",
    kinds=DECODERS,
    evidence="probed",
    inputs=BLOCKS,
    needs=takes_tiny_models,
    after=("joint.run in exact/plain",),
    why_kept="one run is proof, and names the first token that differs",
)
def equals_argmax(trial: DecoderTrial, alpha: float) -> Outcome:
    """At temperature 0 every token is the most likely one of the target, whatever was drafted.

    Why it holds: with one-hot p a draft token stands exactly if it is the argmax, and the residual
    of any other one is the argmax (algorithms.md section 1.1; Stern et al. 2018).

    What breaks it: an acceptance ratio of the untempered probabilities, a draft token that is
    good enough, a bonus token of the wrong row, a stale cache. A run has 64 tokens, about half of
    the draft tokens are rejected; there is one prompt for each K, or five rows in a batch.

    Error rate: none. A token counts as the most likely one if the best is ahead by no more than
    1e-9 nats with float64 models, 1e-4 with others; that is a finding.
    """
    number = int(trial.input[1:])
    target = TableModel.random(16, 3, seed=41)
    batch = trial.subject.capabilities.batch
    world = World(
        target,
        target.near(seed=42, noise=0.8),
        SamplingSettings(temperature=0.0, max_new_tokens=LENGTH),
        _PROMPTS if batch else _PROMPTS[number - 1 : number],
        number,
    )
    return _argmax(trial, world)


@register(
    "greedy.settings",
    kinds=DECODERS,
    evidence="probed",
    inputs=tuple(SETTINGS),
    needs=takes_tiny_models,
    after=("greedy.equals_argmax",),
    why_kept="localises: names the setting that the argmax does not see",
)
def under_settings(trial: DecoderTrial, alpha: float) -> Outcome:
    """Penalties, bans and biases count at temperature 0 too, and truncation changes nothing.

    Why it holds: the argmax is that of the logits after all processors; what is cut off by
    truncation is never the largest.

    What breaks it: a greedy path that looks at raw logits, or at a history that is not that of
    the position.

    Error rate: none; see `greedy.equals_argmax`.
    """
    target = TableModel.random(6, 2, seed=43)
    draft = target.near(seed=44, noise=0.8)
    settings = SETTINGS[trial.input].model_copy(update={"max_new_tokens": LENGTH // 2})
    return _argmax(trial, World(target, draft, settings, ((0, 1),), _BLOCK_OF_SETTINGS))


@register(
    "greedy.ties",
    kinds=DECODERS,
    evidence="probed",
    inputs=("drafts",),
    needs=takes_tiny_models,
    after=("greedy.equals_argmax",),
)
def ties(trial: DecoderTrial, alpha: float) -> Outcome:
    """Where tokens tie for the largest logit, the draft does not decide which one is emitted.

    Why it holds: greedy decoding is a function of the prompt; a draft changes cost only.

    What breaks it: accepting any draft token whose probability is the largest. A convention other
    than that of the dialect, the first token, is a finding: it is as good, but differs from
    decoding without drafts.

    Error rate: none. The ties are exact in every dtype.
    """
    settings = SamplingSettings(temperature=0.0, max_new_tokens=LENGTH // 2)
    target = TableModel(_tied_rows(8, 81), 2)
    world = World(target, target, settings, ((0, 1),), _BLOCK_OF_SETTINGS)
    runs: dict[str, Tensor] = {}
    for kind, draft in _tied_drafts(target.logits):
        drafted = replace(world, draft=TableModel(draft, 2))
        (runs[kind],) = emitted(trial.generate(drafted, trial.generator()).tokens)
        judged = _Judged.of(drafted, 0, runs[kind])
        if (wrong := judged.wrong(_margin(trial))) is not None:
            return Outcome(violations=(f"with the draft that takes {kind}, {wrong}",))
    first = runs["the first"]
    for kind, run in runs.items():
        shared = min(len(first), len(run))
        differ = first[:shared] != run[:shared]
        if bool(differ.any()):
            at = first_of(differ)
            text = (
                f"the draft decides between tokens that tie: after {run[:at].tolist()} it emits "
                f"{int(first[at])} with a draft that takes the first of them, and {int(run[at])} "
                f"with one that takes {kind}"
            )
            return Outcome(violations=(text,))
    return Outcome(findings=_Judged.of(world, 0, first).unlike_first())


@dataclass(frozen=True)
class _Judged:
    """One run against the target's scores along it."""

    tokens: Tensor
    """long [L]."""
    scores: Tensor
    """float64 [L, V], log probabilities after processors."""

    @classmethod
    def of(cls, world: World, row: int, tokens: Tensor) -> "_Judged":
        return cls(tokens, processed(world, row, tokens))

    @property
    def behind(self) -> Tensor:
        """How far each token lies below the best one, in nats; infinite where it is banned."""
        return self.scores.amax(1) - picked(self.scores, self.tokens)

    def wrong(self, margin: float) -> str | None:
        """The first token that is not the best one, in words."""
        wrong = self.behind > margin
        if not bool(wrong.any()):
            return None
        at = first_of(wrong)
        return (
            f"after {self.tokens[:at].tolist()} it emits {int(self.tokens[at])}, and the target's "
            f"most likely token {int(self.scores[at].argmax())} is ahead by "
            f"{float(self.behind[at]):.3g} nats; {int(wrong.sum())} of {len(wrong)} tokens are not "
            "the most likely ones"
        )

    def near(self) -> tuple[str, ...]:
        """Finding for tokens just below the best one."""
        near = (self.behind > 0).sum()
        return (f"{int(near)} tokens are second best in a near tie",) if near else ()

    def unlike_first(self) -> tuple[str, ...]:
        """Finding for tokens that are not the first of those that tie."""
        first = self.scores.argmax(1)
        other = first != self.tokens
        if not bool(other.any()):
            return ()
        at = first_of(other)
        return (
            f"of tokens that tie it emits {int(self.tokens[at])}, where the dialect's argmax is "
            f"the first, {int(first[at])}: not token for token what decoding without drafts gives",
        )


def _argmax(trial: DecoderTrial, world: World) -> Outcome:
    if (refused := world.refused_by(trial.subject)) is not None:
        return Outcome(not_applicable=refused)
    output = trial.generate(world, trial.generator())
    violations: list[str] = []
    findings: list[str] = []
    for row, tokens in enumerate(emitted(output.tokens)):
        judged = _Judged.of(world, row, tokens)
        if (wrong := judged.wrong(_margin(trial))) is not None:
            violations.append(f"from the prompt {list(world.prompts[row])}, {wrong}")
        else:
            findings += judged.near()
    return Outcome(violations=tuple(violations), findings=tuple(dict.fromkeys(findings)))


def _tied_rows(size: int, rows: int) -> Tensor:
    """Logits [rows, V], each with two tokens that tie for the largest."""
    logits = torch.zeros((rows, size), dtype=torch.float64)
    tied = torch.rand((rows, size), generator=Generator().manual_seed(45)).topk(2).indices
    return logits.scatter_(1, tied, 2.0)


def _tied_drafts(logits: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Logits of drafts that take the first, the last, or none of the target's largest logits."""
    largest = logits == logits.amax(1, keepdim=True)
    order = torch.arange(logits.shape[1], dtype=logits.dtype)
    yield "the first", torch.where(largest, 20 - order, -order)
    yield "the last", torch.where(largest, 20 + order, order)
    yield "another token", torch.where(largest, -20.0, order)


def _margin(trial: DecoderTrial) -> float:
    return ALGORITHMIC if trial.takes_tables else NUMERICAL
