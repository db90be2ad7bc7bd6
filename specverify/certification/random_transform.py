"""What a transform with coins made of the corpus, averaged over them, beside its reference."""

from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Generator, Tensor

from specverify.certification.shard import derived_generator
from specverify.certification.steered_rows import SteeredRows, keywords
from specverify.certification.transform_case import Rows, TransformCase, corpus
from specverify.certification.transform_evidence import (
    Compared,
    TransformEvidence,
    called_on,
    nudged,
)
from specverify.subjects.calling import build_transform
from specverify.subjects.protocols import Subject
from specverify.transforms import RandomTransform, Transform

ALONE = 16
"""Rows of a kind that are followed one by one where those of one call cannot be together."""

PAIRS = 4
"""Pairs of rows whose tokens are looked at together."""


def run_random_transform(
    subject: Subject, case: TransformCase, seed: int, time_limit: float
) -> TransformEvidence:
    """Follow the coins of a transform on the corpus, and average its reference over its own.

    Rows on which rounding decides what goes are left out, unless the coin falls on one side only:
    the support of a mixture stays the same, and by that `transforms.equals_reference` tells. Some
    rows of one call are compared two by two, as one row of V^2 tokens, since each tosses its own
    coin.

    Raises:
        CannotSteer: its randomness cannot be followed.
        SubjectError: the subject raised or returned something malformed.
    """
    steered = SteeredRows(subject, case.parameters, seed, time_limit)
    results: dict[str, Compared] = {}
    for index, (kind, rows) in enumerate(corpus(seed).items()):
        generator = derived_generator(seed, case.id, 0, index)
        named = keywords(subject, case.parameters, generator)
        transform = build_transform(subject, time_limit=time_limit, **named)
        call, handed = called_on(subject, transform, rows, generator, time_limit)
        steered.findings |= dict.fromkeys(call.findings)
        law = _Law.of(case, rows, derived_generator(seed, kind, index, 0))
        groups = []
        # Rows of one call are followed together if the coin is looked at equally often in each.
        counts = law.at_stake[law.decided].unique()
        for count in counts:
            where = (law.decided & (law.at_stake == count)).nonzero().squeeze(1)
            alone = max(1, ALONE // len(counts))
            found = steered.each(rows.histories[where], handed[where], alone)
            groups.append((where[: len(found)], found))
        if groups:
            where, found = (torch.cat(parts) for parts in zip(*groups, strict=True))
            results[kind] = law.beside(rows, where, found)
        pairs = (law.decided & (law.at_stake > 0)).nonzero().squeeze(1)[: 2 * PAIRS]
        if kind == "random" and subject.capabilities.batch and len(pairs) == 2 * PAIRS:
            pairs = pairs.view(PAIRS, 2)
            found = [steered.together(rows.histories[pair], handed[pair]) for pair in pairs]
            name = f"random, two of one call as token {handed.shape[1]} a + b,"
            results[name] = law.beside_pairs(rows, pairs, torch.stack(found))
    return TransformEvidence(subject, case, results, tuple(steered.findings))


@dataclass(frozen=True)
class _Law:
    """What the reference makes of rows, averaged over its coins."""

    expected: Tensor
    """float64 [B, V], logarithms of probabilities."""
    alternatives: Tensor
    """float64 [A, B, V], the same after nudges."""
    decided: Tensor
    """bool [B]: whether no nudge changes which tokens go, or the coin is none."""
    at_stake: Tensor
    """long [B]: tokens that are possible for some coins only."""

    @classmethod
    def of(cls, case: TransformCase, rows: Rows, generator: Generator) -> Self:
        def outcomes(reference: Transform, ids: Tensor, logits: Tensor) -> Tensor:
            """The results that have some probability, [O, B, V]."""
            possible = cast("RandomTransform", reference).outcomes(ids, logits)
            return torch.stack([result for weight, result in possible if weight > 0])

        reference = cast("RandomTransform", case.build_reference())
        weights = [weight for weight, _ in reference.outcomes(rows.histories, rows.logits)]
        weight = torch.tensor([each for each in weights if each > 0], dtype=torch.float64)
        made = outcomes(reference, rows.histories, rows.logits)
        moved = nudged(case, rows, generator, outcomes)
        kept, kept_then = made > -torch.inf, moved > -torch.inf
        decided = (kept == kept_then).all(-1).all(1).all(0)
        return cls(
            torch.einsum("o,obv->bv", weight, made.softmax(-1)).log(),
            torch.einsum("o,aobv->abv", weight, moved.softmax(-1)).log(),
            decided | torch.tensor(len(weight) == 1),
            (kept != kept[0]).any(0).sum(-1),
        )

    def beside(self, rows: Rows, where: Tensor, found: Tensor) -> Compared:
        """Some of the rows, by their numbers [N], and the distributions [N, V] found there."""
        logits, expected = rows.logits[where], self.expected[where]
        return Compared(logits, expected, found.log(), self.alternatives[:, where], rows.exact)

    def beside_pairs(self, rows: Rows, pairs: Tensor, found: Tensor) -> Compared:
        """Pairs of rows, by their numbers [N, 2], and the joint distributions [N, V, V]."""

        def independent(law: Tensor) -> Tensor:
            one, other = law[..., pairs[:, 0], :], law[..., pairs[:, 1], :]
            return (one[..., :, None] + other[..., None, :]).flatten(-2)

        return Compared(
            rows.logits[pairs].flatten(1),
            independent(self.expected),
            found.flatten(1).log(),
            independent(self.alternatives),
            exact=False,
        )
