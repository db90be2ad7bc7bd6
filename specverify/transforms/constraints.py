"""Constraints: tokens that may not, or must, come next."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isnan

import torch
from torch import Tensor

from specverify.settings import AllowedTokens as AllowedTokensRule
from specverify.transforms import parameters
from specverify.transforms.base import IMPOSSIBLE, Constraint, mask


class LogitBias(Constraint):
    """Add a constant to the logits of given tokens (the OpenAI API's `logit_bias`).

    Args:
        bias: token id to what is added; -inf forbids the token.

    Raises:
        SettingsError: an id is negative, or a bias is NaN or +inf.
    """

    name = "logit_bias"

    def __init__(self, bias: Mapping[int, float]) -> None:
        self.bias = dict(zip(parameters.token_ids("bias", bias), bias.values(), strict=True))
        for token, value in self.bias.items():
            fine = not isnan(value) and value != inf
            parameters.require(fine, f"bias of token {token}", value, "a number or -inf")
        # Only -inf can leave a row without a token, which matters only if its history is possible.
        self.history_free = -inf not in self.bias.values()

    def apply(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        parameters.inside_vocabulary(self.name, self.bias, logits.shape[-1])
        addend = torch.zeros(logits.shape[-1], dtype=torch.float64, device=logits.device)
        addend[list(self.bias)] = addend.new_tensor(list(self.bias.values()))
        return logits.double() + addend


class NoRepeatNGram(Constraint):
    """Forbid every token that would complete an n-gram the history already holds.

    Paulus, Xiong, Socher, arXiv 1705.04304, section 2.5; prompt and output both count.

    Args:
        ngram_size: n, at least 1.
    """

    name = "no_repeat_ngram_size"
    history_free = False

    def __init__(self, ngram_size: int) -> None:
        self.ngram_size = parameters.whole("ngram_size", ngram_size, least=1)

    def apply(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        length, vocab_size = input_ids.shape[1], logits.shape[-1]
        if length < self.ngram_size:
            return logits.double()
        windows = input_ids.unfold(1, self.ngram_size, 1)
        suffix = input_ids[:, length + 1 - self.ngram_size :].unsqueeze(1)
        repeats = (windows[..., :-1] == suffix).all(-1)
        # The spare column takes windows that do not repeat, and ids beyond the logits.
        last = windows[..., -1].clamp(max=vocab_size).where(repeats, vocab_size)
        banned = torch.zeros(
            logits.shape[0], vocab_size + 1, dtype=torch.bool, device=logits.device
        )
        banned.scatter_(1, last, True)  # noqa: FBT003
        return mask(logits, banned[:, :vocab_size])


class BadWords(Constraint):
    """Forbid the last token of each given sequence where the history ends with the rest of it.

    Args:
        bad_words: sequences of at least one token id; one of length 1 is always forbidden.
        stop_token_ids: a sequence that is just one of these is ignored, as transformers does, so
            that a run can end.

    Raises:
        SettingsError: a sequence is empty or holds a negative id.
    """

    name = "bad_words"
    history_free = False

    def __init__(
        self, bad_words: Sequence[Sequence[int]], stop_token_ids: Iterable[int] = ()
    ) -> None:
        spared = {(token,) for token in parameters.token_ids("stop_token_ids", stop_token_ids)}
        words = {parameters.token_ids("bad_words", word) for word in bad_words}
        parameters.require(() not in words, "bad_words", bad_words, "sequences of token ids")
        self.bad_words = sorted(words - spared)
        self._by_prefix_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for word in self.bad_words:
            self._by_prefix_length[len(word) - 1].append(word)

    def apply(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        ids = (token for word in self.bad_words for token in word)
        parameters.inside_vocabulary(self.name, ids, logits.shape[-1])
        length = input_ids.shape[1]
        banned = torch.zeros_like(logits, dtype=torch.bool)
        for prefix_length, words in self._by_prefix_length.items():
            if prefix_length > length:
                continue
            table = input_ids.new_tensor(words)
            suffix = input_ids[:, length - prefix_length :].unsqueeze(1)
            rows, matched = (suffix == table[:, :-1]).all(-1).nonzero(as_tuple=True)
            banned[rows, table[matched, -1]] = True
        return mask(logits, banned)


class MinLength(Constraint):
    """Forbid the stop tokens until enough new tokens have been emitted.

    Args:
        min_new_tokens: how many; 0 has no effect.
        stop_token_ids: the tokens that would end the run.
        prompt_length: leading tokens of the history that are not new.
    """

    name = "min_new_tokens"
    history_free = False

    def __init__(
        self, min_new_tokens: int, stop_token_ids: Iterable[int], prompt_length: int = 0
    ) -> None:
        self.min_new_tokens = parameters.whole("min_new_tokens", min_new_tokens, least=0)
        self.stop_token_ids = parameters.token_ids("stop_token_ids", stop_token_ids)
        self.prompt_length = parameters.whole("prompt_length", prompt_length, least=0)

    def apply(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        if input_ids.shape[1] - self.prompt_length >= self.min_new_tokens:
            return logits.double()
        parameters.inside_vocabulary("stop_token_ids", self.stop_token_ids, logits.shape[-1])
        stops = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        stops[list(self.stop_token_ids)] = True
        return mask(logits, stops)


class AllowedTokens(Constraint):
    """Only tokens that a rule permits after the emitted prefix.

    Args:
        allowed: maps the emitted tokens, the prompt left out, to the ids that may come next; a
            `TokenAutomaton` or any callable. It must be a pure function: it is asked about each
            distinct prefix of a batch once, in no particular order.
        prompt_length: leading tokens of the history that are not output.
        revive: if every permitted token is already masked, permit them all alike (logit 0), as
            transformers does; otherwise such a row counts as one without a token.
    """

    name = "allowed_tokens"
    history_free = False

    def __init__(
        self, allowed: AllowedTokensRule, prompt_length: int = 0, *, revive: bool = True
    ) -> None:
        parameters.require(callable(allowed), "allowed", allowed, "a callable on emitted tokens")
        self.allowed = allowed
        self.prompt_length = parameters.whole("prompt_length", prompt_length, least=0)
        self.revive = revive

    def apply(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        vocab_size = logits.shape[-1]
        prefixes, inverse = _distinct(input_ids[:, self.prompt_length :])
        permitted = torch.zeros(
            prefixes.shape[0], vocab_size, dtype=torch.bool, device=logits.device
        )
        for row, prefix in enumerate(prefixes.tolist()):
            ids = list(self.allowed(tuple(prefix)))
            parameters.inside_vocabulary(f"{self.name} after {prefix}", ids, vocab_size)
            permitted[row, ids] = True
        permitted = permitted[inverse]
        result = mask(logits, ~permitted)
        if self.revive:
            lost = result.amax(-1, keepdim=True) == IMPOSSIBLE
            result = result.masked_fill(lost & permitted, 0.0)
        return result


class ForcedTokens(Constraint):
    """At given output positions, the only token possible, whatever the model says.

    Args:
        forced: output position (0 is the first new token) to token id.
        prompt_length: leading tokens of the history that are not output.

    Raises:
        SettingsError: a position or an id is negative.
    """

    name = "forced_tokens"
    history_free = False

    def __init__(self, forced: Mapping[int, int], prompt_length: int = 0) -> None:
        for position in forced:
            parameters.whole("position in forced_tokens", position, least=0)
        parameters.token_ids("forced_tokens", forced.values())
        self.forced = dict(forced)
        self.prompt_length = parameters.whole("prompt_length", prompt_length, least=0)

    def apply(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        token = self.forced.get(input_ids.shape[1] - self.prompt_length)
        if token is None:
            return logits.double()
        parameters.inside_vocabulary(self.name, (token,), logits.shape[-1])
        result = torch.full_like(logits, IMPOSSIBLE, dtype=torch.float64)
        result[:, token] = 0.0
        return result


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of a matrix, and which of them each row is."""
    if not rows.shape[1]:
        return rows[:1], torch.zeros(rows.shape[0], dtype=torch.long, device=rows.device)
    return rows.unique(dim=0, return_inverse=True)
