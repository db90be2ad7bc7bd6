"""Distributions at the edge of what a verification rule may be handed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.errors import UsageError
from specverify.exact.conditional import Conditional
from specverify.exact.round import Round

_Rows: TypeAlias = NDArray[np.float64]
_Edit = Callable[[_Rows, _Rows, torch.dtype], tuple[_Rows, _Rows]]
"""Rows of p and q [N, V], and the dtype they are handed over in, to others."""

_LARGEST = 64

_SUBNORMAL = {
    torch.float64: 2.0**-1040,
    torch.float32: 2.0**-140,
    torch.float16: 2.0**-20,
    torch.bfloat16: 2.0**-130,
}


@dataclass(frozen=True)
class DegenerateRound:
    """A round, degenerate at one position, of which every draft block can be drafted."""

    name: str
    position: int
    """From 0; K is that of the bonus token."""
    round: Round


@dataclass(frozen=True)
class DegenerateRow:
    """Arguments for one row that no round has, since its draft could not have drafted the block."""

    name: str
    position: int
    draft_tokens: Tensor
    """long [1, K]."""
    draft_probs: Tensor
    """[1, K, V]."""
    target_probs: Tensor
    """[1, K+1, V]."""


def degenerate_rounds(base: Round) -> tuple[DegenerateRound, ...]:
    """Make a round degenerate at each of its positions in turn.

    p = q; rows of p and q with all mass on one token, the same or not; p(x) = 0, with the token
    first, where a coin of 0 or an index of 0 meets it, and last; disjoint supports; p and q an ulp
    apart, in both directions, so that the residual rounds to nothing or to one ulp; subnormal
    entries of p, of q and of both; rows made by softmax from logits of which some are -inf, at the
    same token and at different ones.

    Args:
        base: of 2 to 64 tokens; rows elsewhere are its own. The draft must not be one-hot.

    Raises:
        UsageError: V is not from 2 to 64, or the draft is handed over as None.
    """
    if not 2 <= base.vocab_size <= _LARGEST or base.one_hot:
        raise UsageError(
            f"degenerate rounds need 2 to {_LARGEST} tokens and draft probabilities, got "
            f"{base.vocab_size} tokens and one_hot={base.one_hot}"
        )
    depths = range(base.num_draft_tokens)
    found = [
        DegenerateRound(name, depth, _edited(base, depth, edit))
        for name, edit in _EDITS.items()
        for depth in depths
    ]
    bonus = base.num_draft_tokens
    found += [DegenerateRound(name, bonus, _edited(base, bonus, _EDITS[name])) for name in _BONUS]
    return tuple(found)


def degenerate_rows(base: Round) -> tuple[DegenerateRow, ...]:
    """Rows that a right draft does not hand over, at each position in turn.

    q(x) = 0 at the drafted token, with p(x) > 0 (a ratio of infinity) and with p(x) = 0 (0 / 0);
    NaN in q at the drafted token, beside it, and in all of q.

    Args:
        base: as for `degenerate_rounds`; the rows' other tokens are the draft's most likely ones.
    """
    found = []
    for position in range(base.num_draft_tokens):
        for name, (draft, target) in _RAW.items():
            block = torch.zeros(1, base.num_draft_tokens, dtype=torch.long)
            for depth in range(base.num_draft_tokens):
                _, q, _ = base.inputs(block)
                assert q is not None
                block[0, depth] = q[0, depth].argmax()
            block[0, position] = 0
            _, q, p = base.inputs(block)
            assert q is not None
            q[0, position], p[0, position] = draft(q[0, position]), target(p[0, position])
            found.append(DegenerateRow(name, position, block, q, p))
    return tuple(found)


def _edited(base: Round, depth: int, edit: _Edit) -> Round:
    def both(prefixes: NDArray[np.int64]) -> tuple[_Rows, _Rows]:
        p = np.asarray(base.target(prefixes), np.float64)
        at_draft = prefixes.shape[1] < base.num_draft_tokens
        q = np.asarray(base.draft(prefixes), np.float64) if at_draft else p[:, ::-1].copy()
        rows = edit(p, q, base.dtype)
        return rows[0] / rows[0].sum(1, keepdims=True), rows[1] / rows[1].sum(1, keepdims=True)

    def replaced(conditional: Conditional, which: int) -> Conditional:
        def rows(prefixes: NDArray[np.int64]) -> _Rows:
            if prefixes.shape[1] == depth:
                return both(prefixes)[which]
            return np.asarray(conditional(prefixes), np.float64)

        return rows

    return replace(base, target=replaced(base.target, 0), draft=replaced(base.draft, 1))


def _one_hot(rows: _Rows, token: int) -> _Rows:
    hot = np.zeros_like(rows)
    hot[:, token] = 1.0
    return hot


def _without(rows: _Rows, *tokens: int) -> _Rows:
    """No mass on some tokens."""
    kept = rows.copy()
    kept[:, list(tokens)] = 0.0
    return kept / kept.sum(1, keepdims=True)


def _masked(rows: _Rows, token: int) -> _Rows:
    """The same by a logit of -inf."""
    logits = torch.from_numpy(rows).log()
    logits[:, token] = -torch.inf
    return logits.softmax(1).numpy()


def _with(rows: _Rows, token: int, value: float) -> _Rows:
    changed = _without(rows, token)
    changed[:, token] = value
    return changed


def _apart(rows: _Rows, dtype: torch.dtype, *, upwards: bool) -> tuple[_Rows, _Rows]:
    """Rows near these and the same with their smallest entry an ulp of `dtype` larger or smaller.

    All are multiples of 2^-7, so that no later rounding or normalisation moves an entry.
    """
    counts = np.maximum(np.round(rows * 128), 1)
    row = np.arange(len(rows))
    counts[row, counts.argmax(1)] += 128 - counts.sum(1)
    even = torch.from_numpy(counts / 128).to(dtype)
    near = even.clone()
    smallest = even.argmin(1, keepdim=True)
    bound = torch.full(smallest.shape, 1.0 if upwards else 0.0, dtype=dtype)
    near.scatter_(1, smallest, torch.nextafter(even.gather(1, smallest), bound))
    return even.double().numpy(), near.double().numpy()


_EDITS: dict[str, _Edit] = {
    "p = q": lambda p, q, _: (p, p),
    "one-hot p": lambda p, q, _: (_one_hot(p, 0), q),
    "one-hot p, last token": lambda p, q, _: (_one_hot(p, p.shape[1] - 1), q),
    "one-hot q": lambda p, q, _: (p, _one_hot(q, 0)),
    "one-hot p and q, same token": lambda p, q, _: (_one_hot(p, 0), _one_hot(q, 0)),
    "one-hot p and q, different tokens": lambda p, q, _: (
        _one_hot(p, 0),
        _one_hot(q, q.shape[1] - 1),
    ),
    "p(x) = 0, first token": lambda p, q, _: (_without(p, 0), q),
    "p(x) = 0, last token": lambda p, q, _: (_without(p, p.shape[1] - 1), q),
    "q(x) = 0": lambda p, q, _: (p, _without(q, 0)),
    "disjoint supports": lambda p, q, _: (
        _without(p, *range(p.shape[1] // 2)),
        _without(q, *range(p.shape[1] // 2, p.shape[1])),
    ),
    "residual rounds to zero": lambda p, q, dtype: _apart(p, dtype, upwards=True),
    "residual of one ulp": lambda p, q, dtype: _apart(p, dtype, upwards=False),
    "subnormal p(x)": lambda p, q, dtype: (_with(p, 0, _SUBNORMAL[dtype]), q),
    "subnormal q(x)": lambda p, q, dtype: (p, _with(q, 0, _SUBNORMAL[dtype])),
    "subnormal p(x) and q(x)": lambda p, q, dtype: (
        _with(p, 0, _SUBNORMAL[dtype]),
        _with(q, 0, 3 * _SUBNORMAL[dtype]),
    ),
    "logit -inf in p and q, same token": lambda p, q, _: (_masked(p, 0), _masked(q, 0)),
    "logit -inf in p and q, different tokens": lambda p, q, _: (
        _masked(p, 0),
        _masked(q, q.shape[1] - 1),
    ),
}

_BONUS = (
    "one-hot p",
    "one-hot p, last token",
    "p(x) = 0, first token",
    "p(x) = 0, last token",
    "subnormal p(x)",
    "logit -inf in p and q, same token",
)
"""Those that concern p alone, which all the position of the bonus token has."""


def _row_without_first(row: Tensor) -> Tensor:
    kept = row.clone()
    kept[0] = 0.0
    return kept / kept.sum()


def _row_with_nan(row: Tensor, *tokens: int) -> Tensor:
    changed = row.clone()
    changed[list(tokens)] = torch.nan
    return changed


_RAW: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "q(x) = 0 at the drafted token": (_row_without_first, torch.clone),
    "p(x) = q(x) = 0 at the drafted token": (_row_without_first, _row_without_first),
    "NaN in q at the drafted token": (lambda q: _row_with_nan(q, 0), torch.clone),
    "NaN in q beside the drafted token": (lambda q: _row_with_nan(q, 1), torch.clone),
    "NaN in all of q": (lambda q: _row_with_nan(q, *range(len(q))), torch.clone),
}
"""Draft and target rows at the position, whose drafted token is 0."""
