"""Rows of logits that laws of transforms are tried on, and when two results are the same."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Generator, Tensor

from specverify.certification.probes.constraint_laws import LONG
from specverify.certification.probes.transform_laws import LAWS, Parameters
from specverify.certification.transform_case import (
    HISTORY,
    SPARED,
    VOCAB_SIZE,
    Rows,
    TransformCase,
    corpus,
)
from specverify.certification.transform_evidence import largest

COUNT = 24
"""Rows of a kind."""

TV_LIMIT = 1e-6
"""See `properties.transforms`: for logits of at most 8, and in proportion for larger ones."""

UNIT = TV_LIMIT / 8
"""The same for a logit of 1: the spacing of float32."""

NUDGE = 1e-4
"""What a decision of the reference must withstand to be held against a subject: more than the
rounding of float32 sums, and than that of logits moved by a hundred."""

NUDGES = 16

LARGE = 50_000
"""Tokens of a large vocabulary."""

LARGE_LIMIT = 1e-3
"""Largest TV in a large vocabulary, where sums of float32 decide which tokens are at the border."""

_GRID = 1024
"""Logits are multiples of 1 over this, so that sums with whole numbers stay exact in float32."""


@dataclass(frozen=True)
class Batch:
    """Histories long [B, T] and float32 logits [B, V]."""

    ids: Tensor
    logits: Tensor

    def __getitem__(self, rows: slice | Tensor) -> "Batch":
        """Some of the rows."""
        return Batch(self.ids[rows], self.logits[rows])

    def __len__(self) -> int:
        return len(self.ids)


def batch(kind: str, seed: int) -> Batch:
    """Rows by their kind: one of the corpus, or one below.

    one-token: only one token is possible. equal: all are equally likely. huge: logits of tens of
    thousands. mixed: flat, peaked, tied and masked rows in turn. short-history, long-history,
    small-vocabulary, large-vocabulary: as they say.
    """
    ids, logits = (rows := _corpus(seed)["random"]).histories, rows.logits
    if kind == "large-vocabulary":
        return _large()
    if kind == "mixed":
        kinds = ("random", "tied", "masked", "peaked")
        logits = torch.stack([_corpus(seed)[k].logits[: COUNT // 4] for k in kinds], 1)
        return Batch(ids[:COUNT], logits.flatten(0, 1).float())
    if kind in _corpus(seed):
        logits = _corpus(seed)[kind].logits
    elif kind == "one-token":
        logits = logits.where(torch.arange(VOCAB_SIZE) == SPARED, -torch.inf)
    elif kind == "equal":
        logits = torch.zeros_like(logits)
    elif kind == "huge":
        logits = 4_000.0 * (logits.argsort(-1) - VOCAB_SIZE // 2)
    elif kind == "short-history":
        ids = ids[:, :1]
    elif kind == "long-history":
        ids = torch.cat([ids[:, :1].expand(-1, LONG - HISTORY), ids], 1)
    elif kind == "small-vocabulary":
        ids, logits = ids.clamp(max=SPARED - 1), logits[:, : SPARED + 1]
    else:
        raise ValueError(f"no rows are called {kind!r}")
    if kind not in ("dyadic", "huge"):
        logits = (logits * _GRID).round() / _GRID
    return Batch(ids[:COUNT], logits[:COUNT].float())


@cache
def _corpus(seed: int) -> dict[str, Rows]:
    return corpus(seed)


@cache
def _large() -> Batch:
    """A flat and a peaked row; the ids of their histories, which are likely, need 16 bits."""
    generator = Generator().manual_seed(LARGE)
    logits = torch.randn(2, LARGE, generator=generator) * torch.tensor([[1.0], [3.0]])
    ids = torch.tensor([40_000, 40_001, 40_002, 49_999, 33_000, 40_002, 49_998, 40_002])
    logits[:, ids] = torch.tensor([9.0, 8.5, 8.0, 9.5, 10.0, 8.0, 9.0, 8.0])
    logits[1, ids] += 6.0
    return Batch(ids.expand(2, -1).clone(), logits)


def expected(reference: str, parameters: Parameters, rows: Batch) -> Tensor:
    """What the reference makes of the rows, float64 logits [B, V]."""
    return TransformCase("", reference, parameters).build_reference()(rows.ids, rows.logits)


def probabilities(logits: Tensor) -> Tensor:
    """What logits mean, float64 [B, V]; -inf is one way of many to say 0."""
    return logits.double().softmax(-1)


def limit(*logits: Tensor, unit: float = UNIT) -> Tensor:
    """Largest TV [B] that rounding of logits of this size [B, V], or of at most 8, explains.

    Args:
        logits: what is handed in, and what comes out if it may be larger.
        unit: what rounding may change of a logit of 1.
    """
    size = torch.stack([largest(each.double()).squeeze(-1) for each in logits]).amax(0)
    return unit * size.clamp(min=8.0)


def possible(logits: Tensor) -> Tensor:
    """The logits [B, V] with -inf for every token that they make impossible, in whatever way."""
    return logits.masked_fill(probabilities(logits) == 0, -torch.inf)


def ties_sorted(probs: Tensor, logits: Tensor) -> Tensor:
    """Probabilities [B, V] in the order of their logits, those of equal logits sorted."""
    ascending, order = probs.sort(-1)
    return ascending.gather(-1, logits.gather(-1, order).sort(dim=-1, stable=True).indices)


def differs(wanted: Tensor, found: Tensor, most: Tensor) -> Tensor:
    """Rows [B] of two distributions more than `most` [B] apart, or with a token that is new."""
    return (distance(wanted, found) > most) | ((found > 0) & (wanted == 0)).any(-1)


def distance(one: Tensor, other: Tensor) -> Tensor:
    """TV [B] of two sets of distributions [B, V]."""
    return (one - other).abs().sum(-1) / 2


def decided(reference: str, parameters: Parameters, rows: Batch, eps: float = 0.0) -> Tensor:
    """Rows [B] on which the reference keeps the same tokens whatever way it rounds.

    Its thresholds and the logits are nudged by `NUDGE` relative to their size, or by some `eps`,
    the spacing of the numbers that a subject may compute in: more at thresholds, where rounding
    of a sum adds up.
    """
    case = TransformCase("", reference, parameters)
    kept = expected(reference, parameters, rows) > -torch.inf
    same = torch.ones(len(rows), dtype=torch.bool)
    if not LAWS[reference].masks:
        return same
    if parameters not in LAWS[reference].neutral:
        threshold = max(NUDGE, 8 * eps)
        for factor in (1 - threshold, 1 + threshold):
            moved = case.build_reference(scaled=factor)(rows.ids, rows.logits) > -torch.inf
            same &= (moved == kept).all(-1)
    generator = Generator().manual_seed(NUDGES)
    shape = (NUDGES, *rows.logits.shape)
    signs = torch.randint(2, shape, generator=generator, dtype=torch.int8) * 2 - 1
    size = largest(rows.logits.double()).clamp(min=1.0)
    nudged = rows.logits.double() + signs * max(NUDGE, 2 * eps) * size
    ids = rows.ids.expand(NUDGES, -1, -1).flatten(0, 1)
    moved = case.build_reference()(ids, nudged.flatten(0, 1)) > -torch.inf
    return same & (moved.unflatten(0, (NUDGES, -1)) == kept).all(-1).all(0)


def first(wrong: Tensor, say: Callable[[int], str]) -> str | None:
    """How many rows of a bool tensor [B] are wrong and what about the first, None if none is."""
    if not bool(wrong.any()):
        return None
    return f"{int(wrong.sum())} of {len(wrong)} rows; {say(int(wrong.int().argmax()))}"


def beside(rows: Batch, row: int, wanted: Tensor, found: Tensor) -> str:
    """A row's logits, if there are not too many, and where two distributions [B, V] differ most."""
    apart = (wanted[row] - found[row]).abs()
    tokens = apart.topk(min(4, len(apart))).indices
    tokens = tokens[apart[tokens] > 0]
    logits = rows.logits[row]
    shown = f"logits {numbers(logits)}" if len(logits) <= VOCAB_SIZE else f"row {row}"
    return (
        f"on {shown} with {len(rows.ids[row])} tokens before, tokens {tokens.tolist()} have "
        f"probabilities {numbers(found[row, tokens])} instead of "
        f"{numbers(wanted[row, tokens])}"
    )


def numbers(values: Tensor) -> str:
    """Numbers of a row, short."""
    return "[" + ", ".join(f"{value:.4g}" for value in values.tolist()) + "]"
