"""Chapter acceptance, sampled: how often the rounds of a decoder accept each draft token."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.sampled_runs import reported_runs
from specverify.certification.probes.world import World
from specverify.certification.registry import (
    UNREPORTED,
    Outcome,
    register,
    takes_tiny_models,
)
from specverify.certification.seen_from import HALF, threshold_of
from specverify.certification.worst_cells import Strata, compare
from specverify.decoding.output import DecoderOutput
from specverify.decoding.scoring import TeacherForced
from specverify.properties.acceptance import declares_acceptance
from specverify.settings import SamplingSettings
from specverify.statistics.cells import log_cells
from specverify.subjects.protocols import DECODERS, Subject

UNOFFERED = (
    "the subject does not report how many draft tokens it offered (drafted), and after a short "
    "block nothing was rejected"
)

TOKENS = 6
"""Two rounds with whole blocks, and the first of them fully accepted."""
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cooler": {"temperature": 0.6},
    "greedy": {"temperature": 0.0},
}
"""At another temperature a draft that ignores the settings shows."""
GREEDY_RUNS = 64
"""Runs at temperature 0, which all go the same way."""
DIGITS = 9
"""Decimals in which laws agree that are taken for one."""

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


def _declares_rounds(subject: Subject) -> str | None:
    if not subject.capabilities.standard_draft:
        return (
            "the subject does not declare standard_draft, and acceptance depends on how its draft "
            "tokens are drawn"
        )
    return declares_acceptance(subject) or takes_tiny_models(subject)


@register(
    "acceptance.every_round",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=tuple(SETTINGS),
    needs=_declares_rounds,
    after=("joint.run in exact/plain",),
)
def every_round(trial: DecoderTrial, alpha: float) -> Outcome:
    """Each draft token is accepted as often as the declared algorithm accepts it there.

    Why it holds: given the tokens before it, draft token x is drawn and accepted with probability
    min(p, q) under token verification, min(w p, q) / w under block verification, w being the weight
    of the block so far, and p q where the target is sampled and compared (algorithms.md sections
    1.2 to 1.4 and 1.7).

    What breaks it: a draft cache that is stale or lacks a token, a draft that ignores the settings
    or numbers its tokens otherwise, a bonus token left out, another rule than is declared. All of
    these leave the output right and cost time.

    Error rate: an e-process over all positions that were reached, at its share, valid at every
    look. It trusts where a decoder says its rounds end: an alarm that shows nowhere else is
    inconclusive.
    """
    world = World(settings=SamplingSettings(max_new_tokens=TOKENS)).under(**SETTINGS[trial.input])
    if (refused := world.refused_by(trial.subject)) is not None:
        return Outcome(not_applicable=refused)
    most = GREEDY_RUNS if world.settings.greedy else None
    runs = reported_runs(trial, world, _unreported, most)
    if isinstance(runs, str):
        return Outcome(not_applicable=runs)
    algorithm = trial.subject.capabilities.algorithm
    assert algorithm is not None
    positions = _positions(runs, world, algorithm)
    if positions is None:
        return Outcome(not_applicable="no round of any run offered a draft token")
    strata = _strata(positions)
    dtype = trial.subject.capabilities.coin_dtype
    tokens = sum(int(counts.sum()) for counts in strata.counts)
    log_e = log_cells(strata.counts, strata.laws, tokens, dtype=dtype)
    threshold = threshold_of(alpha)
    return compare(
        strata,
        log_e,
        boundaries=True,
        what="what becomes of a draft token",
        log_threshold=None if threshold is None else threshold + HALF,
    )


def _unreported(output: DecoderOutput) -> str | None:
    if output.accepted is None:
        return UNREPORTED
    return UNOFFERED if output.drafted is None else None


@dataclass(frozen=True)
class Positions:
    """N draft tokens that were looked at: those before them in their block had been accepted."""

    groups: Integers
    """[N, 2]: whether it stands in a later round than the first, and how many draft tokens were
    before it in its block."""
    laws: Array
    """[N, V+1], what becomes of it: accepted as token x, or rejected."""
    cells: Integers
    """[N], what did; V stands for rejected."""


def _positions(runs: DecoderOutput, world: World, algorithm: str) -> Positions | None:
    """Walk through the rounds of all runs; None if nothing was drafted in any.

    Whether a position is reached and was offered is known before its token is drawn, so what
    happens there has its law whatever the decoder's schedule is.
    """
    assert runs.accepted is not None
    assert runs.drafted is not None
    tokens, accepted, drafted = (
        t.cpu().numpy() for t in (runs.tokens, runs.accepted, runs.drafted)
    )
    laws = _Laws(world, algorithm)
    starts, lengths = np.zeros(len(tokens), np.int64), (tokens >= 0).sum(1)
    found: list[Positions] = []
    for round in range(accepted.shape[1]):
        weights = np.ones(len(tokens))
        for place in range(int(drafted[:, round].max(initial=0))):
            at = starts + place
            reached = (place < drafted[:, round]) & (place <= accepted[:, round])
            rows = np.flatnonzero(reached & (at < world.settings.max_new_tokens))
            # A run that ends too early, which is judged elsewhere, does not show what it accepted.
            rows = rows[at[rows] < lengths[rows]]
            own = tokens[rows, at[rows]]
            law = laws.of(tokens[rows], at[rows], weights[rows])
            kept = accepted[rows, round] > place
            cells = np.where(kept, own, laws.vocab_size)
            group = np.tile([int(round > 0), place], (len(rows), 1))
            found.append(Positions(group, law, cells))
            weights[rows[kept]] = laws.weights(tokens[rows], at[rows], weights[rows], own)[kept]
        starts += np.maximum(accepted[:, round] + 1, 0)
    if not found:
        return None
    return Positions(
        np.concatenate([part.groups for part in found]),
        np.concatenate([part.laws for part in found]),
        np.concatenate([part.cells for part in found]),
    )


class _Laws:
    """What becomes of a draft token after any tokens emitted in a world.

    Args:
        world: with one prompt.
        algorithm: the subject declares.
    """

    def __init__(self, world: World, algorithm: str) -> None:
        self.vocab_size = world.target.vocab_size
        self._algorithm = algorithm
        self._p, self._q = (
            self._rows(TeacherForced(model, world.prompts[0], world.settings), world)
            for model in (world.target, world.draft)
        )

    def of(self, tokens: Integers, at: Integers, weights: Array) -> Array:
        """Laws [N, V+1] of the draft tokens in place of `tokens[n, at[n]]`.

        Args:
            tokens: [N, L], emitted.
            at: [N].
            weights: [N], w of the accepted tokens before it in its block.
        """
        p, q = self._at(tokens, at)
        w = weights[:, None]
        if self._algorithm == "block":
            kept = np.minimum(w * p, q) / w
        elif self._algorithm == "token":
            kept = np.minimum(p, q)
        else:
            kept = p * q
        return np.column_stack([kept, (1 - kept.sum(1)).clip(min=0)])

    def weights(self, tokens: Integers, at: Integers, weights: Array, own: Integers) -> Array:
        """W once token `own[n]` has been accepted, [N]; see `of`."""
        if self._algorithm != "block":
            return weights
        index = np.arange(len(own))
        p, q = (law[index, own] for law in self._at(tokens, at))
        return np.minimum(1.0, np.divide(weights * p, q, out=np.ones_like(p), where=q > 0))

    def _at(self, tokens: Integers, at: Integers) -> tuple[Array, Array]:
        codes = np.zeros(len(tokens), np.int64)
        for place in range(int(at.max(initial=0))):
            codes = np.where(place < at, codes * self.vocab_size + tokens[:, place], codes)
        index = self._offsets[at] + codes
        return self._p[index], self._q[index]

    def _rows(self, law: TeacherForced, world: World) -> Array:
        """Rows after every prefix, the shorter ones first."""
        size, rows = self.vocab_size, []
        for depth in range(world.settings.max_new_tokens):
            codes = np.arange(size**depth)
            powers = size ** np.arange(depth - 1, -1, -1)
            rows.append(law(codes[:, None] // powers % size))
        self._offsets = np.cumsum([0, *(len(part) for part in rows[:-1])])
        return np.concatenate(rows)


def _strata(positions: Positions) -> Strata:
    """Positions by their group and law, both known before the token is drawn."""
    width = positions.laws.shape[1]
    rounded = np.rint(positions.laws * 10.0**DIGITS).astype(np.int64)
    keys = np.column_stack([positions.groups, rounded])
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    cells = np.bincount(group.reshape(-1) * width + positions.cells, minlength=len(first) * width)

    def label(stratum: int, cell: int) -> str:
        later, place = positions.groups[first[stratum]].tolist()
        what = "rejected" if cell == width - 1 else f"accepted as token {cell}"
        return f"draft token {place + 1} of {'a later' if later else 'the first'} round, {what}"

    return Strata(list(cells.reshape(-1, width)), list(positions.laws[first]), label)
