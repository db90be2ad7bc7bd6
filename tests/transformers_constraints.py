"""transformers' own constraints, built from the keywords of the references they equal."""

from collections.abc import Callable
from typing import Any

from transformers.generation import logits_process as hf


def min_length(min_new_tokens: int, stop_token_ids: list[int], prompt_length: int) -> Any:
    return hf.MinLengthLogitsProcessor(prompt_length + min_new_tokens, stop_token_ids)


def min_new_tokens(min_new_tokens: int, stop_token_ids: list[int], prompt_length: int) -> Any:
    return hf.MinNewTokensLengthLogitsProcessor(prompt_length, min_new_tokens, stop_token_ids)


def forced_tokens(forced: dict[int, int], prompt_length: int) -> Any:
    return hf.LogitsProcessorList(
        hf.ForcedEOSTokenLogitsProcessor(prompt_length + position + 1, token)
        for position, token in forced.items()
    )


def allowed_tokens(allowed: Callable[[tuple[int, ...]], Any], prompt_length: int) -> Any:
    return hf.PrefixConstrainedLogitsProcessor(
        lambda _, ids: list(allowed(tuple(ids[prompt_length:].tolist()))), 1
    )


CONSTRAINTS: dict[str, Callable[..., Any]] = {
    "allowed_tokens": allowed_tokens,
    "min_length": min_length,
    "forced_tokens": forced_tokens,
}
