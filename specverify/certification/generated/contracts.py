"""Settings, pipelines of transforms, and schedules of block lengths."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from specverify.drafting.schedule import Fixed, Heuristic, HeuristicTransient, Schedule
from specverify.settings import SamplingSettings
from specverify.transforms.pipeline import Pipeline

_SIMPLE_SHARES = (0.5, 0.75, 0.9, 0.25, 1.0)


def _fields(vocab_size: int) -> dict[str, SearchStrategy[Any]]:
    """Values other than the neutral one, the simplest first."""
    tokens = st.integers(0, vocab_size - 1)
    share = st.sampled_from(_SIMPLE_SHARES)
    sequences = st.lists(st.lists(tokens, min_size=1, max_size=2).map(tuple), max_size=2)
    return {
        "temperature": st.sampled_from((0.5, 2.0, 0.7, 0.0)),
        "top_k": st.integers(1, vocab_size),
        "top_p": share,
        "min_p": st.sampled_from((0.5, 0.25, 0.1)),
        "typical_p": share,
        "epsilon_cutoff": st.sampled_from((0.25, 0.1)),
        "eta_cutoff": st.sampled_from((0.25, 0.1)),
        "top_n_sigma": st.sampled_from((1.0, 2.0)),
        "repetition_penalty": st.sampled_from((2.0, 1.25, 0.5)),
        "frequency_penalty": st.sampled_from((1.0, -0.5)),
        "presence_penalty": st.sampled_from((1.0, -0.5)),
        "logit_bias": st.dictionaries(tokens, st.sampled_from((1.0, -1.0)), max_size=2),
        "stop_token_ids": st.lists(tokens, max_size=1).map(tuple),
        "stop_sequences": sequences.map(tuple),
        "min_new_tokens": st.integers(0, 2),
    }


FIELDS = tuple(_fields(2))
"""Settings that are drawn, the simplest first. Left out are those that can leave a prefix no token
(bans, n-grams, grammars, forced tokens) and XTC, which tosses coins of its own."""


@st.composite
def settings(
    draw: DrawFn,
    vocab_size: int,
    *,
    fields: tuple[str, ...] = FIELDS,
    most: int = 3,
    max_new_tokens: int = 4,
) -> SamplingSettings:
    """The contract of a run; neutral at its simplest.

    Args:
        draw: of Hypothesis.
        vocab_size: V, which token ids stay below.
        fields: which settings may differ from their neutral values.
        most: how many may at once.
        max_new_tokens: length limit.
    """
    values = _fields(vocab_size)
    named = draw(st.lists(st.sampled_from(fields), max_size=most, unique=True)) if fields else []
    chosen = {name: draw(values[name]) for name in named}
    return SamplingSettings(max_new_tokens=max_new_tokens, **chosen)


def pipelines(
    vocab_size: int, *, fields: tuple[str, ...] = FIELDS, most: int = 3
) -> SearchStrategy[Pipeline]:
    """All transforms of a run; see `settings`."""
    chosen = settings(vocab_size, fields=fields, most=most)
    return chosen.map(lambda contract: Pipeline.from_settings(contract, vocab_size))


_SCHEDULES: tuple[Callable[[int], Schedule], ...] = (Fixed, HeuristicTransient, Heuristic)


def schedules(longest: int = 4) -> SearchStrategy[Schedule]:
    """Policies of block length that start from 1 to `longest` draft tokens."""
    lengths = st.integers(1, longest)
    return st.sampled_from(_SCHEDULES).flatmap(lambda make: lengths.map(make))
