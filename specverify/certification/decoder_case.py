"""One case of a decoder: a pair, one set of settings, and the distribution they must give."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.decoding.scoring import TeacherForced
from specverify.exact.prefix_tree import PrefixTree
from specverify.models.protocol import LanguageModel
from specverify.sampling.tally import Batch
from specverify.settings import SamplingSettings
from specverify.statistics.goodness import MINIMUM_EXPECTED
from specverify.stopping import run_lengths
from specverify.transforms.pipeline import Pipeline

LOGIT_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""How far a subject's logits may be off a fresh prefill's: float sums differ with their order, and
a subject may work in float32 on what a float64 model returns."""
COARSE_TOLERANCE = 5e-2
"""The same for half-width models."""


@dataclass(frozen=True)
class DecoderCase:
    """What a decoder is asked to do, and the reference it is compared with.

    Runs are cut at K + 2 tokens: the shortest that show the bonus position and a token after it
    (algorithms.md section 5).
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
    def trees(self) -> tuple[PrefixTree, ...]:
        """The stopped joint distribution of a run, by prompt, merged below an expected count."""
        minimum_mass = min(0.5, MINIMUM_EXPECTED * len(self.prompts) / max(1, self.runs))
        return tuple(
            PrefixTree.grow(
                forced,
                self.target.vocab_size,
                self.length,
                self._ends,
                minimum_mass=minimum_mass,
            )
            for forced in self.target_forced
        )

    def first_token(self, prompt: int) -> NDArray[np.float64]:
        """Distribution of the first token after a prompt, [V]."""
        return self.target_forced[prompt](np.zeros((1, 0), np.int64))[0]

    def judge(self, prompt: int, tokens: torch.Tensor) -> tuple[Batch, torch.Tensor]:
        """Compare runs of one prompt, long [N, L], with what the settings allow.

        Returns:
            The runs as they are tallied, and the target's distributions along them, float64
            [N, min(L, length), V].
        """
        required, _ = run_lengths(tokens, self.settings)
        # What follows the length limit is wrong anyway, and may not fit in the target's window.
        within = tokens[:, : self.length]
        probs = self.target_forced[prompt].along(within)
        batch = Batch(
            tokens=tokens.numpy(),
            required_lengths=required.numpy(),
            impossible=self._impossible(prompt, within, probs).numpy(),
        )
        return batch, probs

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
    def tolerance(self) -> float:
        """How far a subject's logits may be off."""
        logits = self.target.start(torch.tensor([self.prompts[0]])).extend(
            torch.tensor([self.prompts[0][-1:]])
        )
        return LOGIT_TOLERANCE.get(logits.dtype, COARSE_TOLERANCE)


def runs_for(tokens: int, length: int, prompts: Sequence[object]) -> int:
    """Runs of at most `length` tokens that emit about `tokens`, a multiple of the prompts."""
    per_prompt = max(1, round(tokens / length / len(prompts)))
    return per_prompt * len(prompts)
