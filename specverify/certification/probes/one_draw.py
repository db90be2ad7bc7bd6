"""Calls on which one kind of draw decides what is emitted, and calls on which all of them do."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.probes.trial import Trial
from specverify.certification.probes.world import World
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings

DRAWS = ("draft", "acceptance", "correction", "bonus")
"""Where the only randomness of a call can lie."""

VOCAB_SIZE = 16
_ROWS = 16
"""Of a call of a rule."""
_LENGTHS = {"draft": 17, "acceptance": 48, "correction": 16, "bonus": 32, "all": 24}

Emit = Callable[[Generator], Tensor]
"""From a generator to what is emitted, long [B, L]."""


def emission(trial: Trial, draw: str) -> Emit:
    """A call of the subject in which randomness decides.

    Two independent calls of a lossless decoder give the same tokens with probability 2^-48
    (acceptance) or 15^-16 (others) at most. For a rule that is 2^-16 and 15^-16: drafts are
    one-hot, so that the tokens have the target's distribution even given the draft tokens. With
    "all" nothing is said about that.

    Args:
        trial: of a rule or a decoder.
        draw: one of `DRAWS`, or "all".
    """
    # What is kept occupies the addresses of the call before, so that none comes again.
    held: list[object] = []
    if isinstance(trial, RuleTrial):
        arguments = _round(draw)

        def emit(generator: Generator) -> Tensor:
            held.append([argument.clone() for argument in arguments])
            return trial.call(*arguments, generator)

        return emit
    assert isinstance(trial, DecoderTrial)
    world = world_of(draw)

    def decode(generator: Generator) -> Tensor:
        target, draft = (TableModel(m.logits.clone(), m.order) for m in (world.target, world.draft))
        own = replace(world, target=target, draft=draft)
        tokens = trial.generate(own, generator).tokens
        held.append((own, tokens, tokens.clone()))
        return tokens[:, :-1] if draw == "draft" else tokens

    return decode


def world_of(draw: str) -> World:
    """Models between which one kind of draw decides every token, or every second one (bonus)."""
    settings = SamplingSettings(max_new_tokens=_LENGTHS[draw])
    if draw == "all":
        target = TableModel.random(VOCAB_SIZE // 2, 2, 23, scale=0.5)
        return World(target, target.near(24, 1.0), settings, ((0, 1),), 3)
    size = 2 if draw == "acceptance" else VOCAB_SIZE
    first = _only_first(size)
    # After any token but the first one; row `size` stands for the start of the text.
    always = first.expand(size + 1, -1)
    if draw == "draft":
        flat = TableModel(torch.zeros(size + 1, size), 1)
        return World(flat, flat, settings, ((1,),), _LENGTHS[draw] - 1)
    others = torch.zeros(size) if draw == "acceptance" else _all_but_first(size)
    rows = others.expand(size + 1, -1)
    if draw == "bonus":
        rows = always.clone()
        rows[0] = others
    blocks = 1 if draw == "bonus" else 4
    return World(TableModel(rows, 1), TableModel(always, 1), settings, ((1,),), blocks)


def _round(draw: str) -> tuple[Tensor, Tensor, Tensor]:
    """Draft tokens, q and p of `_ROWS` equal rows, one draft token each; of random ones for all."""
    if draw == "all":
        source = Generator().manual_seed(29)
        shape = (2 * _ROWS, 4, VOCAB_SIZE)
        p, q = (torch.randn(shape, dtype=torch.float64, generator=source) for _ in range(2))
        q = q[:, 1:].softmax(2)
        tokens = torch.multinomial(q.flatten(0, 1), 1, generator=source).reshape(len(q), -1)
        return tokens, q, p.softmax(2)
    size = 2 if draw == "acceptance" else VOCAB_SIZE
    certain = _only_first(size).softmax(0)
    others = _all_but_first(size).softmax(0)
    flat = torch.full((size,), 1 / size, dtype=torch.float64)
    verified, added = {
        "acceptance": (flat, certain),
        "correction": (others, certain),
        "bonus": (certain, flat),
    }[draw]
    tokens = torch.zeros((_ROWS, 1), dtype=torch.long)
    q = one_hot(tokens, size).double()
    return tokens, q, torch.stack([verified, added]).expand(_ROWS, -1, -1)


def _only_first(size: int) -> Tensor:
    """Logits [V] that leave the first token alone."""
    return torch.full((size,), -torch.inf, dtype=torch.float64).index_fill(0, torch.tensor(0), 0.0)


def _all_but_first(size: int) -> Tensor:
    """Logits [V] of all other tokens alike."""
    return torch.zeros(size, dtype=torch.float64).index_fill(0, torch.tensor(0), -torch.inf)
