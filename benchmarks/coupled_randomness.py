"""Tokens until coupled randomness is seen, by what looks for it.

A pair of Markov tables over 64 tokens, K = 3, runs of 60 tokens in calls of 2,400 rows. Six faulty
decoders and a right one are judged by five e-processes: the mixture of known faults
(`statistics.mixture`), Dirichlet bets on 16 bins of the randomised PIT in three token orders
(`statistics.dirichlet`), and the bits that compare its numbers (`statistics.independence`). All are
looked at whenever each row of a call is two tokens longer, once in 4,800 tokens. An entry is the
median over repeats of the number of tokens at which E first reached 1e6; "-" means not within the
cap.

"decision" is what `certify` weighs of them: the mixture or the bits, whichever is first to reach
the share of one test in a run on all presets of the toy pair, `budget.Budget`. Goals are on it, at
that threshold, which is higher than the 1e6 of the figures they are made from.

The first two faults are wrong distributions, known ones; the others are uniforms used twice.

    python benchmarks/coupled_randomness.py [--quick]
"""

import math
import statistics
from collections.abc import Callable, Iterator

import numpy as np
import torch
from common import goal, parse_quick
from numpy.typing import NDArray
from torch import Generator, Tensor

from specverify.certification.asked import asked_of
from specverify.certification.limits import ALPHA
from specverify.certification.plan import plan_decoder
from specverify.decoding.speculative import SpeculativeDecoder
from specverify.drafting.draft_model import DraftModel
from specverify.drafting.schedule import Fixed
from specverify.fixtures.mutants import couplings, rules
from specverify.fixtures.parts.rules import Round, TokenRule
from specverify.models.pairs import load_pair
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.statistics.bets import Bets
from specverify.statistics.dirichlet import log_dirichlet
from specverify.statistics.independence import BitCounts, count_bits, log_independence
from specverify.statistics.mixture import BINS, TokenSums, log_mixture
from specverify.statistics.pit import PitOrder, pit_interval
from specverify.subjects.guard import DEFAULT_TIME_LIMIT
from specverify.subjects.reference import TOKEN

VOCAB_SIZE, K, LENGTH, ROWS, TOKENS_A_ROW = 64, 3, 60, 2400, 2
TARGET = TableModel.random(VOCAB_SIZE, 1, seed=11)
DRAFT = TARGET.near(12, 1.0)
P, Q = TARGET.logits.softmax(1), DRAFT.logits.softmax(1)
LAGS = 2 * (K + 1)
ORDERS: tuple[PitOrder, ...] = ("ratio", "probability", "index")
PROCESSES: tuple[str, ...] = ("mixture", "bins q/p", "bins p", "bins index", "bits")
DECISION, DECIDING = "decision", ("mixture", "bits")
"""`joint.every_token` and `randomness.independence`: the tests of `certify` that see these."""
COLUMNS = (*PROCESSES, DECISION)
THRESHOLD = math.log(1e6)
CAP, QUICK_CAP = 480_000, 240_000
RIGHT_TOKENS, QUICK_RIGHT_TOKENS = 1_920_000, 480_000
REPEATS, QUICK_REPEATS = 3, 1
WITHIN = 3.0
"""Times the earlier figures (statistics.md section 5) that the decision may take."""
ONE_LOOK = ROWS * TOKENS_A_ROW / 1000
"""Thousand tokens at the first look, the least there can be."""


class BonusFromDraft(TokenRule):
    """The bonus token comes from the draft's own next distribution."""

    def bonus(self, step: Round) -> Tensor:
        if step.width == 0:
            return super().bonus(step)
        last = step.tokens[step.row, (step.counts - 1).clamp(min=0)]
        return torch.where((step.counts > 0)[:, None], Q[last], super().bonus(step))


Make = Callable[[], SpeculativeDecoder]


def loop(rule: TokenRule, kind: type[SpeculativeDecoder] = SpeculativeDecoder) -> Make:
    """A decoder of the pair."""
    return lambda: kind(TARGET, DraftModel(DRAFT), rule, Fixed(K))


RIGHT = loop(TokenRule())
FAULTY: dict[str, tuple[Make, float]] = {
    "residual = p": (loop(rules.ResidualNotSubtracted()), 4.8),
    "bonus from q": (loop(BonusFromDraft()), 4.8),
    "acceptance coin draws correction": (loop(rules.CoinReusedForCorrection()), 4.7),
    "draft coin draws correction": (loop(couplings.DraftCoinReusedForCorrection()), 148.0),
    "acceptance coins repeated": (loop(TokenRule(), couplings.AcceptanceCoinsRepeated), 14.0),
    "rows share coins": (loop(couplings.RowsShareCoins()), ONE_LOOK),
}
"""Decoders, with the thousand tokens in which they were caught before. Section 5 has no figure for
the last one: pairs of rows that agree are as many as tokens, so the first look must do."""


class Evidence:
    """The five e-processes."""

    bets = Bets.standard(raw=False)

    def __init__(self, seed: int) -> None:
        contexts, tokens = np.divmod(np.arange(P.numel()), VOCAB_SIZE)
        p, q = P[contexts].numpy(), Q[contexts].numpy()
        self._ratios = self.bets.log_ratios(tokens, p, q)
        self._lower, self._width = zip(
            *(pit_interval(p, tokens, order, q) for order in ORDERS), strict=True
        )
        self._rng = np.random.default_rng(seed)
        self._seen = np.zeros(P.numel(), np.int64)
        self._bins = np.zeros((len(ORDERS), BINS), np.int64)
        self._closed = self._bits = BitCounts.empty(LAGS)
        self._open = np.empty((len(ORDERS), ROWS, 0))

    def add(self, contexts: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        """The next few tokens [R, n] of all rows of a call, after contexts [R, n]."""
        cells = contexts * VOCAB_SIZE + tokens
        self._seen += np.bincount(cells.ravel(), minlength=len(self._seen))
        v = self._rng.random(cells.shape)
        intervals = zip(self._lower, self._width, strict=True)
        u = np.stack([lower[cells] + v * width[cells] for lower, width in intervals])
        for order, numbers in enumerate(u):
            places = np.minimum((numbers * BINS).astype(np.int64), BINS - 1)
            self._bins[order] += np.bincount(places.ravel(), minlength=BINS)
        self._open = np.concatenate([self._open, u], 2)
        present = np.ones(self._open.shape[1:], np.bool_)
        self._bits = self._closed + count_bits(self._open[[0, 2]], present, LAGS)

    def end_call(self) -> None:
        """What follows are other runs."""
        self._closed, self._open = self._bits, self._open[:, :, :0]

    def log_e(self) -> dict[str, float]:
        """The logarithm of each E."""
        sums = TokenSums(
            self._seen.sum(keepdims=True),
            (self._seen @ self._ratios)[None],
            self._bins[:, None],
        )
        law = np.full(BINS, 1 / BINS)
        values = [
            log_mixture(sums, self.bets).log_e,
            *(log_dirichlet(bins, law) for bins in self._bins),
            log_independence(self._bits)[0],
        ]
        log_es = dict(zip(PROCESSES, values, strict=True))
        return log_es | {DECISION: max(log_es[name] for name in DECIDING)}


def run_threshold() -> float:
    """Ln E at which one test of a whole run rejects: ln(2 m / alpha), m tests on all presets.

    Half of alpha is for tests by themselves, half for all together (`certification.run`).
    """
    plan = plan_decoder(
        TOKEN,
        load_pair("toy"),
        None,
        profile="quick",
        num_draft_tokens=None,
        tokens=None,
        time_limit=DEFAULT_TIME_LIMIT,
    )
    asked = asked_of(TOKEN, ("*",), sample=True, exact=True)
    return asked.budget(ALPHA / 2, len(plan.cases)).log_threshold


def calls(make: Make, seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Contexts and tokens, [R, L] each, call after call."""
    generator = Generator().manual_seed(seed)
    settings = SamplingSettings(max_new_tokens=LENGTH)
    while True:
        prompts = torch.randint(VOCAB_SIZE, (ROWS, 1), generator=generator)
        tokens = make().generate(prompts, settings=settings, generator=generator).tokens
        yield torch.cat([prompts, tokens[:, :-1]], 1).numpy(), tokens.numpy()


def first_alarms(make: Make, seed: int, cap: int, threshold: float) -> dict[str, int]:
    """Tokens at the first alarm, by column; `threshold` is the ln E of the decision."""
    thresholds = dict.fromkeys(PROCESSES, THRESHOLD) | {DECISION: threshold}
    evidence, alarms, seen = Evidence(seed), {}, 0
    for contexts, tokens in calls(make, seed):
        for start in range(0, LENGTH, TOKENS_A_ROW):
            columns = slice(start, start + TOKENS_A_ROW)
            evidence.add(contexts[:, columns], tokens[:, columns])
            seen += ROWS * TOKENS_A_ROW
            for column, log_e in evidence.log_e().items():
                if log_e >= thresholds[column]:
                    alarms.setdefault(column, seen)
            if seen >= cap or len(alarms) == len(COLUMNS):
                return alarms
        evidence.end_call()
    return alarms


def median_alarms(make: Make, repeats: int, cap: int, threshold: float) -> dict[str, float]:
    """Median thousand tokens over repeats, infinite where most of them end at the cap."""
    found = [first_alarms(make, seed, cap, threshold) for seed in range(1, repeats + 1)]
    return {
        column: statistics.median(alarms.get(column, math.inf) for alarms in found) / 1000
        for column in COLUMNS
    }


def main() -> None:
    """Measure, then print the goals and the table."""
    quick = parse_quick("tokens until coupled randomness is seen, by what looks for it")
    torch.set_num_threads(1)
    repeats, cap = (QUICK_REPEATS, QUICK_CAP) if quick else (REPEATS, CAP)
    right_tokens = QUICK_RIGHT_TOKENS if quick else RIGHT_TOKENS
    threshold = run_threshold()
    table = {
        name: median_alarms(make, repeats, cap, threshold) for name, (make, _) in FAULTY.items()
    }
    alarms = first_alarms(RIGHT, 1, right_tokens, threshold)
    for name, (_, before) in FAULTY.items():
        needed = table[name][DECISION]
        # Rounded, for 3 x 4.8 in floats is a little less than three looks.
        limit = round(WITHIN * before, 1)
        print(goal(f"{name}, thousand tokens", needed, limit, at_least=False))
    print(goal(f"alarms in {right_tokens:,} right tokens", len(alarms), 0, at_least=False))
    print()
    print(f"decision: ln E >= {threshold:.2f}; the others: E >= 1e6, ln E >= {THRESHOLD:.2f}")
    print(f"{'thousand tokens until then':34}" + "".join(f"{c:>12}" for c in COLUMNS))
    for name, row in table.items():
        cells = ("-" if math.isinf(value) else f"{value:,.1f}" for value in row.values())
        print(f"{name:34}" + "".join(f"{cell:>12}" for cell in cells))


if __name__ == "__main__":
    main()
