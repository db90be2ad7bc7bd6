"""What a transform is handed: parameters, and histories of tokens."""

from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor

from specverify.certification.allowed_in_turn import AllowedInTurn
from specverify.errors import UsageError
from specverify.lookup import did_you_mean

LONGEST = 6
"""Tokens of a history at most."""

_SHARES = (0.5, 0.9, 0.25, 0.75, 0.1, 0.99, 0.01)


def _by_reference(vocab_size: int) -> dict[str, SearchStrategy[dict[str, Any]]]:
    """Keyword arguments by reference, the simplest first."""
    tokens = st.integers(0, vocab_size - 1)
    words = st.lists(st.lists(tokens, min_size=1, max_size=3), min_size=1, max_size=3)
    biases = st.dictionaries(tokens, st.sampled_from((1.0, -1.0, 5.5)), min_size=1, max_size=3)
    penalties = st.sampled_from((0.5, -0.5, 2.0, 0.1))
    some = st.lists(tokens, min_size=1, max_size=3, unique=True)
    positions = st.integers(0, LONGEST + 1)
    # No history is shorter than the prompt.
    prompts = st.integers(0, 1)
    rules = st.builds(
        lambda sets, turning: AllowedInTurn(tuple(map(tuple, sets)), tuple(turning)),
        st.lists(some, min_size=1, max_size=3),
        some,
    )

    def keyword(name: str, values: SearchStrategy[Any]) -> SearchStrategy[dict[str, Any]]:
        return values.map(lambda value: {name: value})

    return {
        "temperature": keyword("temperature", st.sampled_from((0.5, 2.0, 1.0, 0.7, 0.1, 5.0))),
        "top_k": keyword("top_k", st.integers(1, vocab_size + 2)),
        "top_p": keyword("top_p", st.sampled_from((*_SHARES, 1.0))),
        "min_p": keyword("min_p", st.sampled_from((*_SHARES, 0.0, 1.0))),
        "typical_p": keyword("typical_p", st.sampled_from(_SHARES)),
        "epsilon": keyword("epsilon", st.sampled_from((0.25, 0.1, 0.01, 0.001))),
        "eta": keyword("epsilon", st.sampled_from((0.25, 0.05, 0.001))),
        "top_n_sigma": keyword("n", st.sampled_from((1.0, 2.0, 0.5, 0.1))),
        "repetition_penalty": keyword("penalty", st.sampled_from((2.0, 0.5, 1.25, 1.0))),
        "frequency_penalty": keyword("penalty", penalties),
        "presence_penalty": keyword("penalty", penalties),
        "no_repeat_ngram": keyword("ngram_size", st.integers(1, 4)),
        "bad_words": keyword("bad_words", words),
        "logit_bias": keyword("bias", biases),
        "allowed_tokens": st.fixed_dictionaries({"allowed": rules, "prompt_length": prompts}),
        "min_length": st.fixed_dictionaries(
            {"min_new_tokens": positions, "stop_token_ids": some, "prompt_length": prompts}
        ),
        "forced_tokens": st.fixed_dictionaries(
            {
                "forced": st.dictionaries(positions, tokens, min_size=1, max_size=3),
                "prompt_length": prompts,
            }
        ),
    }


def transform_parameters(reference: str, vocab_size: int) -> SearchStrategy[dict[str, Any]]:
    """Keyword arguments a transform is built with.

    Args:
        reference: its name in `specverify.transforms`.
        vocab_size: V, which token ids stay below.

    Raises:
        UsageError: there are no parameters for this name.
    """
    known = _by_reference(vocab_size)
    if reference not in known:
        raise UsageError(
            f"no parameters are known for a transform {reference!r}"
            f"{did_you_mean(reference, known)}; choose one of {', '.join(known)}"
        )
    return known[reference]


@st.composite
def histories(
    draw: DrawFn, vocab_size: int, *, rows: int | None = None, longest: int = LONGEST
) -> Tensor:
    """Tokens before the next one, long [B, T], T from 1 to `longest`; tokens repeat often.

    Args:
        draw: of Hypothesis.
        vocab_size: V.
        rows: B; 1 to 3 when omitted.
        longest: T at most.
    """
    count = draw(st.integers(1, 3)) if rows is None else rows
    width = draw(st.integers(1, longest))
    tokens = st.integers(0, min(vocab_size, 4) - 1) | st.integers(0, vocab_size - 1)
    row = st.lists(tokens, min_size=width, max_size=width)
    return torch.tensor(draw(st.lists(row, min_size=count, max_size=count)))
