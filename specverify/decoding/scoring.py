"""The target's own distributions on given tokens, from a fresh teacher-forced prefill.

These judge a run. The distributions a decoder saw in its own passes do not: a stale cache agrees
with itself (design.md section 1).
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from specverify.errors import CacheNotRollable
from specverify.models.protocol import LanguageModel, Repeatable, Session
from specverify.settings import SamplingSettings
from specverify.transforms.pipeline import Pipeline


class TeacherForced:
    """Next-token distributions after `prompt` and given emitted tokens, transforms applied.

    Random transforms are averaged over their coins, so that the result is the distribution of the
    token itself.

    Args:
        model: the target, or the draft to learn its q.
        prompt: token ids of the prompt.
        settings: the output contract; its stopping rules are not applied here.
        rows: most sequences handed to the model at once.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: Sequence[int],
        settings: SamplingSettings,
        rows: int = 1024,
    ) -> None:
        self.model = model
        self.prompt = torch.tensor(prompt, dtype=torch.long)
        self.rows = rows
        self._read: Session | None = None
        """One row that holds the prompt, where a session can repeat."""
        # No draw is ever made: expected_probabilities averages random transforms exactly.
        self._pipeline = Pipeline.from_settings(settings, model.vocab_size, torch.Generator())

    def __call__(self, prefixes: np.ndarray) -> np.ndarray:
        """Distribution of the token after each prefix.

        Args:
            prefixes: integers [N, t], tokens emitted so far.

        Returns:
            float64 [N, V].
        """
        chunks = np.array_split(prefixes, max(1, -(-len(prefixes) // self.rows)))
        return np.concatenate([self._last(torch.from_numpy(c).long())[0].numpy() for c in chunks])

    def along(self, emitted: Tensor) -> Tensor:
        """Distributions at every position of complete runs.

        Args:
            emitted: long [N, L], padded right with -1.

        Returns:
            float64 [N, L, V]; entry `[r, t]` is the distribution of `emitted[r, t]` given what
            came before it. Rows beyond a run's end are unspecified.
        """
        return torch.cat([self._along(chunk, 0.0) for chunk in emitted.split(self.rows)])

    def along_with_raw(self, emitted: Tensor) -> tuple[Tensor, Tensor]:
        """The same from one pass, with the distributions before transforms beside them."""
        parts = []
        for chunk in emitted.split(self.rows):
            logits, tokens = self._logits_along(chunk)
            raw = logits.double().softmax(2)
            parts.append((self._probabilities(logits, tokens, len(self.prompt)), raw))
        transformed, raw = zip(*parts, strict=True)
        return torch.cat(transformed), torch.cat(raw)

    def of_emitted(self, emitted: Tensor, raised_by: float = 0.0) -> Tensor:
        """Probabilities of the tokens themselves.

        Args:
            emitted: long [N, L], padded right with -1.
            raised_by: added to the raw logit of each emitted token beforehand.

        Returns:
            float64 [N, L], unspecified on padding.
        """
        return torch.cat(
            [
                self._along(chunk, raised_by).gather(2, chunk.clamp(min=0)[:, :, None]).squeeze(2)
                for chunk in emitted.split(self.rows)
            ]
        )

    def last_with_raw(self, prefixes: Tensor) -> tuple[Tensor, Tensor]:
        """Distributions after prefixes, long [N, t], transformed and raw: float64 [N, V] each."""
        parts = [self._last(chunk) for chunk in prefixes.split(self.rows)]
        transformed, raw = zip(*parts, strict=True)
        return torch.cat(transformed), torch.cat(raw)

    def _last(self, prefixes: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.cat([self.prompt.expand(len(prefixes), -1), prefixes], 1)
        logits = self.model.start(tokens).extend(tokens[:, -1:])
        probs = self._probabilities(logits, tokens, tokens.shape[1])
        return probs[:, 0], logits[:, 0].double().softmax(1)

    def _logits_along(self, emitted: Tensor) -> tuple[Tensor, Tensor]:
        prompts = self.prompt.expand(len(emitted), -1)
        tokens = torch.cat([prompts, emitted.clamp(min=0)], 1)
        session = self._after_prompt(len(emitted))
        return session.extend(tokens[:, len(self.prompt) - 1 : -1]), tokens

    def _after_prompt(self, rows: int) -> Session:
        """A new session whose rows hold the prompt; it is read once where a session can repeat."""
        session = self._read or self.model.start(self.prompt[None])
        if isinstance(session, Repeatable):
            with suppress(CacheNotRollable):
                repeated = session.repeated(rows)
                self._read = session
                return repeated
        return session if rows == 1 else self.model.start(self.prompt.expand(rows, -1))

    def _along(self, emitted: Tensor, raised_by: float) -> Tensor:
        logits, tokens = self._logits_along(emitted)
        if raised_by:
            own = emitted.clamp(min=0)[:, :, None]
            logits = logits.scatter_add(2, own, torch.full_like(own, raised_by, dtype=logits.dtype))
        return self._probabilities(logits, tokens, len(self.prompt))

    def _probabilities(self, logits: Tensor, tokens: Tensor, start: int) -> Tensor:
        """`logits[:, i]` follows the first `start + i` tokens of each row."""
        starts = torch.full((len(logits),), start, dtype=torch.long)
        prompt_lengths = torch.full((len(logits),), len(self.prompt), dtype=torch.long)
        return self._pipeline.expected_probabilities(logits, tokens, starts, prompt_lengths)
