"""Chapter support, degenerate rows: what a decoder does where probabilities are 0 or nearly so.

Rules are handed such rows by `joint.round`, which computes rounds of every kind of them.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.suited import suited_world
from specverify.certification.probes.world import World
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Logits [N, V] of target and draft to degenerate ones."""


@register(
    "support.degenerate_rows",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=(
        "one-token-target",
        "one-token-both",
        "first-excluded",
        "last-excluded",
        "ulp-apart",
        "subnormal",
        "large-logits",
        "small-logits",
    ),
    needs=takes_tiny_models,
    after=("joint.run in exact/plain",),
    why_kept="tries a loop on rows that toy pairs never show, where rounding decides",
)
def degenerate_rows(trial: DecoderTrial, alpha: float) -> Outcome:
    """Rows with impossible or very rare tokens, or logits far from 0, are decoded like others.

    Why it holds: a token with p = 0 is neither accepted nor in the residual; a residual that is
    empty is never needed; a softmax does not change if all logits are shifted.

    What breaks it: an epsilon in a ratio or a residual, 0 / 0, -inf minus -inf, a softmax that
    overflows.

    Error rate: none where the run is computed; otherwise an e-process at its share. A subject that
    raises on some of its paths is an error.
    """
    base = World(settings=SamplingSettings(max_new_tokens=2), num_draft_tokens=1)
    target, draft = _CHANGES[trial.input](base.target.logits.clone(), base.draft.logits.clone())
    order = base.target.order
    world = World(
        TableModel(target, order), TableModel(draft, order), base.settings, num_draft_tokens=1
    )
    what = f"a run over rows of kind {trial.input}"
    return trial.follows(suited_world(world, trial.subject), what)


def _only(logits: Tensor, tokens: Tensor) -> Tensor:
    """All mass on one token a row, [N]."""
    kept = one_hot(tokens, logits.shape[1]).bool()
    return logits.masked_fill(~kept, -torch.inf)


def _excluding(logits: Tensor, token: int) -> Tensor:
    changed = logits.clone()
    changed[:, token] = -torch.inf
    return changed


def _neighbour(logits: Tensor) -> Tensor:
    """One entry a row is the next float64 number."""
    changed = logits.clone()
    changed[:, 1] = torch.nextafter(logits[:, 1], torch.full_like(logits[:, 1], torch.inf))
    return changed


def _rare(logits: Tensor, token: int) -> Tensor:
    """A token of about 1e-310, which float64 holds with few digits only."""
    changed = logits.clone()
    changed[:, token] = -714.0
    return changed


def _shifted(logits: Tensor, by: float) -> Tensor:
    """Shifted logits that float32 holds exactly."""
    return (logits * 16).round() / 16 + by


_CHANGES: dict[str, Change] = {
    "one-token-target": lambda p, q: (_only(p, p.argmax(1)), q),
    "one-token-both": lambda p, q: (_only(p, p.argmax(1)), _only(q, p.argmin(1))),
    "first-excluded": lambda p, q: (_excluding(p, 0), _excluding(q, 2)),
    "last-excluded": lambda p, q: (_excluding(p, 2), q),
    "ulp-apart": lambda p, q: (p, _neighbour(p)),
    "subnormal": lambda p, q: (_rare(p, 0), _rare(q, 2)),
    "large-logits": lambda p, q: (_shifted(p, 65536.0), _shifted(q, 65536.0)),
    "small-logits": lambda p, q: (_shifted(p, -65536.0), _shifted(q, -65536.0)),
}
