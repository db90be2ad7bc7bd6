"""Scoring the tokens of a call: bets and half-spaces, and the numbers of the randomised PIT.

Where the laws come from a table, bets wait until a shard ends and are made once for each distinct
token in its context, with its count.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.certification.decoder_case import DecoderCase
from specverify.certification.laws import Laws, LawTable, law_rows
from specverify.sampling.token_scores import ORDERS, ScoredTokens, TokenScores
from specverify.statistics.pit import pit_interval

Ints = NDArray[np.int64]

_CELLS_A_BET = 1 << 17
"""Distinct tokens scored at once."""


class TokenScoring:
    """Fills the scores of one shard.

    Args:
        case: whose runs are scored.
        scores: what is filled.
        table: laws to look up, or None.
    """

    def __init__(self, case: DecoderCase, scores: TokenScores, table: LawTable | None) -> None:
        self.case, self.scores, self.table = case, scores, table
        cells = 0 if table is None else 2 * table.count * table.vocab_size
        self._cells = np.zeros(cells, np.int64)

    def open_call(
        self, tokens: Tensor, rng: np.random.Generator, *, recorded: bool = False
    ) -> "CallScoring":
        """Start with the runs of a call, long [R, L], padded right with -1.

        Args:
            tokens: the runs.
            rng: of the numbers of the randomised PIT.
            recorded: whether laws are those that a subject says it drew from, which may differ
                where the prefixes do not.
        """
        return CallScoring(self, tokens[:, : self.case.length], rng, recorded=recorded)

    def finish(self) -> None:
        """Make the bets that waited."""
        table = self.table
        if table is None:
            return
        cells = np.flatnonzero(self._cells)
        if not len(cells):
            return
        for part in np.array_split(cells, max(1, -(-len(cells) // _CELLS_A_BET))):
            rest, tokens = np.divmod(part, table.vocab_size)
            keys, after_correction = np.divmod(rest, 2)
            positions = table.positions(torch.from_numpy(keys)).numpy()
            strata = stratum(positions, after_correction, self.case.num_draft_tokens)
            distinct, rows = np.unique(keys, return_inverse=True)
            laws = table.laws(torch.from_numpy(distinct)).numpy()
            self.scores.bet(ScoredTokens(tokens, strata, self._cells[part], rows, *laws))
        self._cells[:] = 0

    def count(self, cells: Ints) -> None:
        """Let tokens wait for `finish`."""
        self._cells += np.bincount(cells, minlength=len(self._cells))


class CallScoring:
    """The runs of one call; their numbers are compared with each other once all are known."""

    def __init__(
        self, scoring: TokenScoring, tokens: Tensor, rng: np.random.Generator, *, recorded: bool
    ) -> None:
        self._scoring, self._tokens, self._recorded = scoring, tokens, recorded
        shape = tuple(tokens.shape)
        self._v = rng.random(shape)
        self._u = np.zeros((len(ORDERS), *shape))
        self._strata = np.zeros(shape, np.int64)
        self._possible = np.zeros(shape, np.bool_)

    def add(self, rows: Tensor, prompt: int, laws: Laws) -> None:
        """Score runs of one prompt.

        Args:
            rows: long [N], which runs of the call.
            prompt: their prompt.
            laws: along them, [N, L, V] each.
        """
        tokens, index = self._tokens[rows], rows.numpy()
        drawn = tokens.clamp(min=0)
        table, case = self._scoring.table, self._scoring.case
        own = laws.p.gather(2, drawn[:, :, None]).squeeze(2)
        keys = None
        if table is None:
            raised = own > laws.q.gather(2, drawn[:, :, None]).squeeze(2)
        else:
            keys = table.keys(prompt, tokens)
            raised = torch.from_numpy(table.raised[keys.numpy(), drawn.numpy()])
        after = torch.zeros_like(raised)
        after[:, 1:] = raised[:, :-1]
        positions = np.arange(tokens.shape[1])
        strata = stratum(positions, after.numpy(), case.num_draft_tokens)
        self._strata[index] = strata
        present = (tokens >= 0).numpy()
        # Impossible tokens have no place among the others; they are judged by themselves.
        self._possible[index] = present & (own > 0).numpy()
        if table is None or keys is None:
            self._bet(drawn[tokens >= 0].numpy(), strata[present], present, laws)
            self._place(index, drawn, laws)
            return
        cells = (keys * 2 + after.long()) * table.vocab_size + drawn
        self._scoring.count(cells[tokens >= 0].numpy())
        for order, lower in enumerate(table.lower):
            begin = lower[keys.numpy(), drawn.numpy()]
            self._u[order][index] = _below_one(begin + self._v[index] * own.numpy())

    def close(self) -> None:
        """Compare the numbers of all runs."""
        self._scoring.scores.place(self._u, self._possible, self._strata)

    def _bet(self, tokens: Ints, strata: Ints, present: NDArray[np.bool_], laws: Laws) -> None:
        """Bet on tokens, those `present` of runs [N, L]."""
        own = present.copy()
        if not self._recorded:
            # All runs of a prompt begin under one law, which is that of the first run that begins.
            own[np.flatnonzero(own[:, 0])[1:], 0] = False
        rows = np.zeros(present.shape, np.int64)
        rows[own] = np.arange(own.sum())
        rows[:, 0] = np.maximum.accumulate(rows[:, 0])
        emitted = laws.map(lambda law: law_rows(law, torch.from_numpy(own))).numpy()
        ones = np.ones(len(tokens), np.int64)
        self._scoring.scores.bet(ScoredTokens(tokens, strata, ones, rows[present], *emitted))

    def _place(self, index: Ints, drawn: Tensor, laws: Laws) -> None:
        p, q, _, _ = laws.map(lambda law: law.flatten(0, 1)).numpy()
        flat, v = drawn.flatten().numpy(), self._v[index]
        for order, name in enumerate(ORDERS):
            lower, width = pit_interval(p, flat, name, q)
            self._u[order][index] = _below_one(lower.reshape(v.shape) + v * width.reshape(v.shape))


def stratum(positions: Ints, after_correction: Ints, num_draft_tokens: int) -> Ints:
    """Stratum of a token, known before it is drawn.

    Position in the run, late ones together, and whether the token before has p > q, as corrections
    have. Boundaries of rounds that a subject reports are not used: they may depend on what the
    token turned out to be (design.md section 7).
    """
    return 2 * np.minimum(positions, num_draft_tokens + 1) + after_correction.astype(np.int64)


def _below_one(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum(u, np.nextafter(1.0, 0.0))
