"""Positions of draft blocks as two language models meet them after a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from specverify.errors import UsageError
from specverify.exact.large.position import DraftedPosition
from specverify.models.protocol import LanguageModel, Session

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""By name, for callers that do not import torch."""

_ROWS = 32
"""Contexts a model reads at once."""


def drafted_positions(
    target: LanguageModel,
    draft: LanguageModel,
    prompt: Sequence[int],
    num_draft_tokens: int,
    *,
    samples: int = 1,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> list[DraftedPosition]:
    """Every position of blocks of K tokens that are sampled from the draft.

    Args:
        target: gives the distributions to follow, at temperature 1.
        draft: proposes; its ids are the target's.
        prompt: token ids, at least one.
        num_draft_tokens: K.
        samples: blocks to sample; the first position, which has no prefix, is taken from one only.
        seed: of the blocks.
        dtype: of the probabilities that a rule is handed.

    Raises:
        UsageError: K or `samples` is not positive; what the models say of the prompt.
    """
    if num_draft_tokens < 1 or samples < 1:
        raise UsageError(
            f"num_draft_tokens and samples must be at least 1, got {num_draft_tokens} and {samples}"
        )
    generator = Generator().manual_seed(seed)
    positions = []
    for sample in range(samples):
        block, q = _drafted(draft, prompt, num_draft_tokens, generator, dtype)
        session = target.start(torch.tensor([list(prompt)]))
        logits = session.extend(torch.tensor([[prompt[-1], *block[:-1]]]))
        p = _probabilities(logits[0], dtype)
        for place in range(num_draft_tokens):
            if sample and not place:
                continue
            prefix, following = tuple(block[:place]), tuple(block[place + 1 :])
            after = _After(target, (*prompt, *prefix), following, dtype)
            rows = slice(0, place + 1)
            positions.append(DraftedPosition(p[rows], q[rows], after, prefix, following))
    return positions


def _drafted(
    draft: LanguageModel,
    prompt: Sequence[int],
    count: int,
    generator: Generator,
    dtype: torch.dtype,
) -> tuple[list[int], Tensor]:
    """A block, and the distributions it was drawn from, [count, V]."""
    session = draft.start(torch.tensor([list(prompt)]))
    block: list[int] = []
    rows = []
    for _ in range(count):
        last = block[-1] if block else prompt[-1]
        rows.append(_probabilities(session.extend(torch.tensor([[last]]))[0, -1], dtype))
        block.append(int(torch.multinomial(rows[-1].double(), 1, generator=generator)))
    return block, torch.stack(rows)


@dataclass
class _After:
    """The target's rows after a context, one more token, and the tokens that follow it."""

    target: LanguageModel
    context: tuple[int, ...]
    following: tuple[int, ...]
    dtype: torch.dtype
    _session: Session | None = field(default=None, repr=False)

    def __call__(self, tokens: Tensor) -> Tensor:
        return torch.cat([self._rows(part) for part in tokens.split(_ROWS)])

    def _rows(self, tokens: Tensor) -> Tensor:
        session = self._session
        if session is None:
            context = torch.tensor([list(self.context)]).repeat(_ROWS, 1)
            session = self._session = self.target.start(context)
            session.extend(context[:, -1:])
        # Always the same number of rows: the context is read once.
        block = torch.tensor([0, *self.following]).repeat(_ROWS, 1)
        block[: len(tokens), 0] = tokens
        logits = session.extend(block)[: len(tokens)]
        session.roll_back(torch.full((_ROWS,), len(self.context)))
        return _probabilities(logits, self.dtype)


def _probabilities(logits: Tensor, dtype: torch.dtype) -> Tensor:
    return logits.detach().double().softmax(-1).to(dtype)
