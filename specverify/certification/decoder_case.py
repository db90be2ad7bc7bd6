"""One case of a decoder: a pair, one set of settings, and the distribution they must give."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.certification.laws import ForcedLaws, Laws, LawTable, law_table
from specverify.decoding.scoring import TeacherForced
from specverify.exact.prefix_tree import PrefixTree
from specverify.models.protocol import LanguageModel
from specverify.sampling.tally import Batch
from specverify.sampling.token_scores import TokenScores
from specverify.settings import SamplingSettings
from specverify.statistics.bets import Bets
from specverify.statistics.goodness import MINIMUM_EXPECTED
from specverify.stopping import run_lengths
from specverify.transforms.pipeline import Pipeline

LOGIT_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""How far a subject's logits may be off a fresh prefill's: float sums differ with their order, and
a subject may work in float32 on what a float64 model returns."""
COARSE_TOLERANCE = 5e-2
"""The same for half-width models."""
SLACK = {torch.float64: 1e-7, torch.float32: 5e-6}
"""eta: how much larger than the reference a probability may be, relatively, and on average over
the tokens of a run, because passes differ in their last bits. It is what a bet has to gain a token
before it counts (statistics.md section 2, tolerance form)."""


@dataclass(frozen=True)
class DecoderCase:
    """What a decoder is asked to do, and the reference it is compared with.

    Runs are cut at K + 2 tokens unless more are asked for: the shortest that show the bonus
    position and a token after it (algorithms.md section 5).
    """

    id: str
    settings: SamplingSettings
    num_draft_tokens: int
    prompts: tuple[tuple[int, ...], ...]
    target: LanguageModel
    draft: LanguageModel
    runs: int
    """Runs that will be sampled, over all prompts."""
    rows: int
    """Sequences handed to the reference models at once."""
    leak_limit: float = 2e-2
    """Largest bound on the mass moved towards the draft at which a case is preserved, for
    vocabularies too large for an agnostic bound."""

    @property
    def length(self) -> int:
        """Longest run, in tokens."""
        return self.settings.max_new_tokens

    @cached_property
    def target_forced(self) -> tuple[TeacherForced, ...]:
        """The target's teacher-forced distributions, by prompt."""
        return tuple(
            TeacherForced(self.target, prompt, self.settings, self.rows) for prompt in self.prompts
        )

    @cached_property
    def draft_forced(self) -> tuple[TeacherForced, ...]:
        """The draft's teacher-forced distributions under the same settings, by prompt."""
        return tuple(
            TeacherForced(self.draft, prompt, self.settings, self.rows) for prompt in self.prompts
        )

    @cached_property
    def raw(self) -> bool:
        """Whether the distributions before transforms differ, in a way that a bet can use."""
        pipeline = Pipeline.from_settings(self.settings, self.target.vocab_size)
        return not (pipeline.neutral or self.settings.greedy)

    @cached_property
    def forced(self) -> tuple[ForcedLaws, ...]:
        """Laws along runs, by prompt, each computed anew."""
        models = zip(self.target_forced, self.draft_forced, strict=True)
        return tuple(ForcedLaws(target, draft, raw=self.raw) for target, draft in models)

    @cached_property
    def table(self) -> LawTable | None:
        """Laws to look up, where few contexts can occur."""
        return law_table(
            self.target,
            self.draft,
            self.settings,
            self.prompts,
            self.num_draft_tokens + 2,
            lambda: self.forced,
            raw=self.raw,
        )

    def laws(self, prompt: int, tokens: torch.Tensor) -> Laws:
        """Laws along runs of one prompt, long [N, L] with L at most `length`."""
        if self.table is None:
            return self.forced[prompt].along(tokens)
        return self.table.laws(self.table.keys(prompt, tokens))

    @property
    def strata(self) -> int:
        """Groups of tokens by position and by whether the token before may be a correction."""
        return 2 * (self.num_draft_tokens + 2)

    def new_scores(self) -> TokenScores:
        """Empty sums for the e-processes."""
        lags = max(1, min(self.length - 1, 2 * (self.num_draft_tokens + 1)))
        return TokenScores(self.strata, self.bets, lags)

    @cached_property
    def trees(self) -> tuple[PrefixTree, ...]:
        """The stopped joint distribution of a run, by prompt, merged below an expected count."""
        minimum_mass = min(0.5, MINIMUM_EXPECTED * len(self.prompts) / max(1, self.runs))
        return tuple(
            PrefixTree.grow(
                forced,
                self.target.vocab_size,
                min(self.length, self.num_draft_tokens + 2),
                self._ends,
                minimum_mass=minimum_mass,
            )
            for forced in self.target_forced
        )

    def first_token(self, prompt: int) -> NDArray[np.float64]:
        """Distribution of the first token after a prompt, [V]."""
        return self._first_tokens[prompt]

    @cached_property
    def _first_tokens(self) -> tuple[NDArray[np.float64], ...]:
        return tuple(forced(np.zeros((1, 0), np.int64))[0] for forced in self.target_forced)

    @cached_property
    def bets(self) -> Bets:
        """What every token is bet against."""
        return Bets.standard(raw=self.raw)

    def judge(self, prompt: int, tokens: torch.Tensor, probs: torch.Tensor) -> Batch:
        """Compare runs of one prompt, long [N, L], with what the settings allow.

        Args:
            prompt: index of their prompt.
            tokens: the runs.
            probs: float64 [N, min(L, length), V], the target's distributions along them.
        """
        required, _ = run_lengths(tokens, self.settings)
        return Batch(
            tokens=tokens.numpy(),
            required_lengths=required.numpy(),
            impossible=self._impossible(prompt, tokens[:, : self.length], probs).numpy(),
        )

    def _ends(self, prefixes: NDArray[np.int64]) -> NDArray[np.bool_]:
        required, _ = run_lengths(torch.from_numpy(np.ascontiguousarray(prefixes)), self.settings)
        return required.numpy() == prefixes.shape[1]

    def _impossible(self, prompt: int, tokens: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        """Tokens [N, L] of probability 0, near ties of the truncation rules excepted.

        A truncation keeps or drops a token by comparing logits or sums of probabilities, and two
        passes over the same prefix differ in their last bits. A token counts as impossible only if
        it stays so when its own logit is raised or lowered by the tolerance, and the masses that
        are kept grow by as much.
        """
        emitted = tokens >= 0
        own = probs.gather(2, tokens.clamp(min=0)[:, :, None]).squeeze(2)
        impossible = emitted & (own == 0)
        suspects = impossible.any(1)
        if bool(suspects.any()):
            forced = TeacherForced(
                self.target, self.prompts[prompt], self._relaxed_settings, self.rows
            )
            for shift in (self.tolerance, -self.tolerance):
                impossible[suspects] &= forced.of_emitted(tokens[suspects], shift) == 0
        return impossible

    @property
    def _relaxed_settings(self) -> SamplingSettings:
        """The settings with every mass that a truncation keeps larger by the tolerance."""
        masses = {name: getattr(self.settings, name) for name in ("top_p", "typical_p")}
        return self.settings.model_copy(
            update={
                name: min(1.0, mass + self.tolerance)
                for name, mass in masses.items()
                if mass is not None
            }
        )

    @cached_property
    def random_transforms(self) -> bool:
        """Whether a transform of the settings tosses coins of its own."""
        return Pipeline.from_settings(self.settings, self.target.vocab_size).random

    @cached_property
    def dtype(self) -> torch.dtype:
        """Dtype of the target's logits."""
        prompt = torch.tensor([self.prompts[0]])
        return self.target.start(prompt).extend(prompt[:, -1:]).dtype

    @property
    def tolerance(self) -> float:
        """How far a subject's logits may be off."""
        return LOGIT_TOLERANCE.get(self.dtype, COARSE_TOLERANCE)

    @property
    def slack(self) -> float:
        """ln(1 + eta), what a bet has to gain a token before it counts."""
        return math.log1p(SLACK.get(self.dtype, COARSE_TOLERANCE))


def runs_for(tokens: int, length: int, prompts: Sequence[object]) -> int:
    """Runs of at most `length` tokens that emit about `tokens`, a multiple of the prompts."""
    per_prompt = max(1, round(tokens / length / len(prompts)))
    return per_prompt * len(prompts)
