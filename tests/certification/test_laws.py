"""Laws that are looked up against laws that are computed anew."""

import itertools

import numpy as np
import pytest
import torch

from specverify.certification.decoder_case import DecoderCase
from specverify.certification.laws import MOST_ENTRIES, ContextKeys, LawTable, PrefixKeys
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.statistics.pit import pit_interval

SETTINGS = {
    "plain": SamplingSettings(),
    "filtered": SamplingSettings(temperature=0.7, top_k=3, top_p=0.9),
    "history": SamplingSettings(repetition_penalty=1.3, presence_penalty=0.5),
    "banned": SamplingSettings(no_repeat_ngram_size=2, min_new_tokens=2, stop_token_ids=(3,)),
    "greedy": SamplingSettings(temperature=0.0),
    "xtc": SamplingSettings(xtc_probability=0.5, xtc_threshold=0.2),
}


def runs(case: DecoderCase, rows: int = 40) -> torch.Tensor:
    """Random runs, some of which end early."""
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, 4, (rows, case.length)))
    lengths = torch.from_numpy(rng.integers(1, case.length + 1, rows))
    return torch.where(torch.arange(case.length) < lengths[:, None], tokens, -1)


@pytest.mark.parametrize("prompt", [0, 1])
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_looked_up_is_what_would_be_computed(name, prompt, case):
    made = case(settings=SETTINGS[name])
    assert isinstance(made.table, LawTable)
    tokens = runs(made)
    looked_up, computed = made.laws(prompt, tokens), made.forced[prompt].along(tokens)
    there = tokens >= 0
    if name == "banned":
        # Behind an impossible token, or behind a stop, no law is defined.
        own = computed.p.gather(2, tokens.clamp(min=0)[:, :, None]).squeeze(2)
        over = (own == 0) | (tokens == 3)
        there &= over.long().cumsum(1) - over.long() == 0
    for law in ("p", "q", "p_raw", "q_raw"):
        left, right = getattr(looked_up, law), getattr(computed, law)
        assert (left is None) == (right is None) == (law.endswith("raw") and not made.raw)
        if left is not None:
            torch.testing.assert_close(left[there], right[there], rtol=1e-12, atol=0)


def test_models_of_different_order_share_contexts(case):
    target, draft = TableModel.random(4, 2, seed=1), TableModel.random(4, 1, seed=2)
    made = case(target=target, draft=draft)
    tokens = runs(made)
    looked_up, computed = made.laws(1, tokens), made.forced[1].along(tokens)
    torch.testing.assert_close(looked_up.p[tokens >= 0], computed.p[tokens >= 0])
    torch.testing.assert_close(looked_up.q[tokens >= 0], computed.q[tokens >= 0])


def test_the_kind_of_key_follows_the_settings(case):
    assert isinstance(case().table._keys, ContextKeys)
    assert isinstance(case(settings=SETTINGS["history"]).table._keys, PrefixKeys)
    large = TableModel.random(60, 1, seed=0)
    assert case(target=large, draft=large).table is not None
    assert case(target=large, draft=large, settings=SETTINGS["history"]).table is None
    huge = TableModel.random(MOST_ENTRIES // 3, 0, seed=0)
    assert case(target=huge, draft=huge, prompts=((0,),)).table is None


@pytest.mark.parametrize("name", ["plain", "history"])
def test_positions_of_keys(name, case):
    made = case(settings=SETTINGS[name])
    tokens = torch.zeros((1, made.length), dtype=torch.long)
    keys = made.table.keys(1, tokens)
    assert made.table.positions(keys).tolist() == [[0, 1, 2, 3]]


def test_intervals_and_marks_are_those_of_the_laws(case):
    made = case()
    table = made.table
    keys = table.keys(0, runs(made)).flatten().unique()
    p, q, _, _ = table.laws(keys).numpy()
    for order, name in enumerate(("ratio", "probability", "index")):
        for token in range(4):
            lower, _ = pit_interval(p, np.full(len(p), token), name, q)
            np.testing.assert_allclose(table.lower[order][keys.numpy(), token], lower, atol=1e-14)
    assert (table.raised[keys.numpy()] == (p > q)).all()


def test_a_grammar_is_not_asked_about_what_it_forbids(case):
    """Even if a subject emits it: token 2 may follow nothing but token 1."""

    def allowed(emitted: tuple[int, ...]) -> list[int]:
        for before, after in itertools.pairwise(emitted):
            assert after != 2 or before == 1, "asked about a forbidden prefix"
        return [0, 1, 2, 3] if emitted and emitted[-1] == 1 else [0, 1, 3]

    made = case(settings=SamplingSettings(allowed_tokens=allowed))
    laws = made.laws(0, torch.tensor([[0, 2, 3, 1], [1, 2, 0, 0]]))
    assert laws.p[0, 1, 2] == 0
    assert laws.p[1, 1, 2] > 0
