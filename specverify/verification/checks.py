"""What every verification rule checks of its input, and the form it works on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specverify.errors import UsageError

_SUM_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 2e-2,
}
"""How far from 1 a row may sum: some ten times what softmax leaves at 150k tokens. A larger error
is no longer rounding."""


@dataclass(frozen=True)
class RoundInputs:
    """One round as the rules see it: float64, with every row's own count made explicit."""

    tokens: Tensor
    """long [B, K]."""

    counts: Tensor
    """long [B], draft tokens offered."""

    offered: Tensor
    """bool [B, K], true at the first `counts[b]` positions."""

    p: Tensor
    """float64 [B, K+1, V]; positions after `counts[b]` are unspecified, possibly NaN."""

    q: Tensor | None
    """float64 [B, K, V], unspecified where not offered; None for one-hot drafts."""

    @property
    def index(self) -> Tensor:
        """`tokens` with padding replaced by 0, safe to gather with."""
        return torch.where(self.offered, self.tokens, 0)

    @property
    def p_drafted(self) -> Tensor:
        """Target probability of each draft token, [B, K]."""
        return self.p[:, :-1].gather(2, self.index.unsqueeze(2)).squeeze(2)

    @property
    def q_drafted(self) -> Tensor:
        """Draft probability of each draft token, [B, K]; 1 for one-hot drafts."""
        if self.q is None:
            return torch.ones_like(self.tokens, dtype=torch.float64)
        return self.q.gather(2, self.index.unsqueeze(2)).squeeze(2)


def prepare(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    num_draft_tokens: Tensor | None,
    *,
    check_values: bool = True,
) -> RoundInputs:
    """Check the arguments of a verification and bring them into float64.

    Probabilities of a lower precision are normalised again in float64, since that is what a
    sampler of such a row does; float64 rows are taken exactly as given.

    Args:
        draft_tokens: long [B, K].
        draft_probs: [B, K, V] or None.
        target_probs: [B, K+1, V].
        num_draft_tokens: long [B] or None.
        check_values: look at the entries too, not at shapes and dtypes alone.

    Raises:
        UsageError: a shape, dtype, count, token id or probability is impossible; the message
            names row, position, value and remedy.
    """
    _check_shapes(draft_tokens, draft_probs, target_probs, num_draft_tokens)
    rows, width = draft_tokens.shape
    if num_draft_tokens is None:
        counts = torch.full((rows,), width, device=draft_tokens.device)
    else:
        counts = num_draft_tokens.long()
    positions = torch.arange(width + 1, device=draft_tokens.device)
    offered = positions[:-1] < counts[:, None]
    if check_values:
        _check_counts(counts, width)
        _check_ids(draft_tokens, offered, target_probs.shape[2])
        _check_rows("target_probs", target_probs, positions <= counts[:, None])
        if draft_probs is not None:
            _check_rows("draft_probs", draft_probs, offered)
    return RoundInputs(
        draft_tokens.long(),
        counts,
        offered,
        _normalised(target_probs),
        None if draft_probs is None else _normalised(draft_probs),
    )


def _normalised(probs: Tensor) -> Tensor:
    if probs.dtype == torch.float64:
        return probs
    probs = probs.double()
    return probs / probs.sum(-1, keepdim=True)


def _check_shapes(
    tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, counts: Tensor | None
) -> None:
    if tokens.ndim != 2:
        raise UsageError(
            f"draft_tokens has shape {list(tokens.shape)}; it must be [B, K], one row a sequence: "
            "use draft_tokens.unsqueeze(0) for a single one"
        )
    rows, width = tokens.shape
    if target_probs.ndim != 3 or target_probs.shape[:2] != (rows, width + 1):
        raise UsageError(
            f"target_probs has shape {list(target_probs.shape)}; draft_tokens [{rows}, {width}] "
            f"need [{rows}, {width + 1}, V]: one distribution after 0, 1, ... {width} draft tokens"
        )
    vocab_size = target_probs.shape[2]
    if vocab_size == 0:
        raise UsageError("target_probs has a vocabulary of 0 tokens; it needs at least one")
    if draft_probs is not None and draft_probs.shape != (rows, width, vocab_size):
        raise UsageError(
            f"draft_probs has shape {list(draft_probs.shape)}; draft_tokens and target_probs need "
            f"[{rows}, {width}, {vocab_size}]; pass None if the draft is deterministic"
        )
    if counts is not None and counts.shape != (rows,):
        raise UsageError(
            f"num_draft_tokens has shape {list(counts.shape)}; {rows} rows need [{rows}]"
        )
    for name, tensor in (("draft_tokens", tokens), ("num_draft_tokens", counts)):
        if tensor is not None and (tensor.is_floating_point() or tensor.dtype == torch.bool):
            raise UsageError(f"{name} has dtype {tensor.dtype}; it must hold integers: use .long()")
    for name, tensor in (("draft_probs", draft_probs), ("target_probs", target_probs)):
        if tensor is not None and tensor.dtype not in _SUM_TOLERANCE:
            raise UsageError(
                f"{name} has dtype {tensor.dtype}; it must hold probabilities in float64, float32, "
                "float16 or bfloat16"
            )


def _check_counts(counts: Tensor, width: int) -> None:
    bad = (counts < 0) | (counts > width)
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        raise UsageError(
            f"num_draft_tokens[{row}] is {int(counts[row])}; draft_tokens has {width} columns, so "
            f"it must lie between 0 and {width}"
        )


def _check_ids(tokens: Tensor, offered: Tensor, vocab_size: int) -> None:
    bad = offered & ((tokens < 0) | (tokens >= vocab_size))
    if bool(bad.any()):
        row, position = bad.nonzero()[0].tolist()
        raise UsageError(
            f"draft_tokens[{row}, {position}] is {int(tokens[row, position])}, outside the "
            f"vocabulary 0 to {vocab_size - 1}; say in num_draft_tokens how many tokens each row "
            "really offers, or map the draft's ids to the target's"
        )


def _check_rows(name: str, probs: Tensor, used: Tensor) -> None:
    """Accept rows that are nonnegative and sum to 1; NaN fails both comparisons."""
    tolerance = _SUM_TOLERANCE[probs.dtype]
    good = ((probs.sum(-1, dtype=torch.float64) - 1.0).abs() <= tolerance) & (probs.amin(-1) >= 0)
    bad = used & ~good
    if bool(bad.any()):
        row, position = bad.nonzero()[0].tolist()
        raise UsageError(_explain(f"{name}[{row}, {position}]", probs[row, position], tolerance))


def _explain(where: str, values: Tensor, tolerance: float) -> str:
    for fault, entries in (("NaN", values.isnan()), ("negative", values < 0)):
        if bool(entries.any()):
            token = int(entries.nonzero()[0, 0])
            return (
                f"{where} is {fault} at token {token} ({values[token].item()}); pass "
                "probabilities, that is the softmax of finite or -inf logits"
            )
    total = values.sum(dtype=torch.float64).item()
    return (
        f"{where} sums to {total!r}, which is further from 1 than the {tolerance:g} that "
        f"{str(values.dtype).removeprefix('torch.')} rounding explains; pass the normalised "
        "probabilities the tokens are drawn from: softmax of the logits after all transforms, "
        "or probs.double() / probs.double().sum(-1, keepdim=True)"
    )
