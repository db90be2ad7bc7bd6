import itertools
import tracemalloc

import numpy as np
import pytest
import torch
from numpy.random import SFC64, Generator
from scipy.stats import chisquare, norm

from specverify.decoding import table_pair
from specverify.decoding.table_pair import TablePairSampler, TableSampler
from specverify.errors import UsageError, VocabularyMismatch
from specverify.models.table import TableModel

RUNS = 300_000
K = 4
TARGET = TableModel.random(3, 2, seed=1)
DRAFT = TARGET.near(seed=2, noise=0.9)
PROMPT = [0, 2]


def seeded(seed: int = 0) -> Generator:
    return Generator(SFC64(seed))


def table(rows: list[list[float]], order: int = 0) -> TableModel:
    return TableModel(torch.tensor(rows, dtype=torch.float64).log(), order)


def next_probs(model: TableModel, history: tuple[int, ...]) -> np.ndarray:
    return torch.softmax(model.logits[model.context_after(history)], -1).numpy()


def joint(model: TableModel, prompt, length: int) -> np.ndarray:
    """Exact distribution of the next `length` tokens, sequences in lexicographic order."""
    law = []
    for tokens in itertools.product(range(model.vocab_size), repeat=length):
        history = tuple(prompt)
        mass = 1.0
        for token in tokens:
            mass *= next_probs(model, history)[token]
            history += (token,)
        law.append(mass)
    return np.array(law)


def p_value(tokens: np.ndarray, law: np.ndarray, vocab_size: int) -> float:
    """Chi-squared test of rows of tokens against `law`; a hit on an impossible cell gives 0."""
    code = np.zeros(len(tokens), np.int64)
    for column in tokens.T:
        code = code * vocab_size + column
    counts = np.bincount(code, minlength=len(law))
    if counts[law == 0].any():
        return 0.0
    expected = law * len(tokens)
    common = expected >= 25
    rare = ~common & (law > 0)
    counts, expected = [
        np.append(x[common], [x[rare].sum()] if rare.any() else []) for x in (counts, expected)
    ]
    return chisquare(counts, expected * counts.sum() / expected.sum()).pvalue


def samplers(target: TableModel = TARGET, draft: TableModel = DRAFT):
    return [TableSampler(target), TablePairSampler(target, draft, K)]


@pytest.mark.parametrize("sampler", samplers(), ids=["autoregressive", "speculative"])
class TestLaw:
    def test_first_token_and_joint_of_the_first_k_plus_2(self, sampler):
        tokens = sampler.runs(PROMPT, K + 2, RUNS, seeded()).tokens
        assert p_value(tokens[:, :1], joint(TARGET, PROMPT, 1), 3) > 1e-4
        assert p_value(tokens, joint(TARGET, PROMPT, K + 2), 3) > 1e-4

    def test_the_end_of_a_long_run_after_rows_have_left(self, sampler):
        tokens = sampler.runs(PROMPT, 40, 100_000, seeded()).tokens
        states = {tuple(PROMPT): 1.0}
        for _ in range(37):
            following: dict[tuple[int, ...], float] = {}
            for state, mass in states.items():
                for token, p in enumerate(next_probs(TARGET, state)):
                    key = (state[1], token)
                    following[key] = following.get(key, 0.0) + mass * p
            states = following
        law = sum(mass * joint(TARGET, state, 3) for state, mass in states.items())
        assert p_value(tokens[:, -3:], np.asarray(law), 3) > 1e-4

    def test_neighbouring_rows_are_independent(self, sampler):
        tokens = sampler.runs(PROMPT, 2, RUNS, seeded(3)).tokens
        pairs = np.concatenate([tokens[:-1:2], tokens[1::2]], 1)
        one = joint(TARGET, PROMPT, 2)
        assert p_value(pairs, np.outer(one, one).ravel(), 3) > 1e-4

    def test_an_empty_prompt_starts_at_the_start_symbol(self, sampler):
        tokens = sampler.runs([], 3, RUNS, seeded()).tokens
        assert p_value(tokens, joint(TARGET, [], 3), 3) > 1e-4

    def test_same_seed_same_tokens(self, sampler):
        first, again, other = (sampler.runs(PROMPT, 9, 5000, seeded(s)).tokens for s in (5, 5, 6))
        assert (first == again).all()
        assert (first != other).any()

    def test_global_generators_are_left_alone(self, sampler):
        before = torch.get_rng_state(), str(np.random.get_state())
        sampler.runs(PROMPT, 9, 5000, seeded())
        assert torch.equal(torch.get_rng_state(), before[0])
        assert str(np.random.get_state()) == before[1]

    def test_batches_are_the_runs_cut_up(self, sampler):
        count = 2 * sampler.default_batch + 3
        whole = sampler.runs(PROMPT, 5, count, seeded())
        batches = list(sampler.batches(PROMPT, 5, count, seeded()))
        assert [len(b.tokens) for b in batches] == [sampler.default_batch] * 2 + [3]
        assert (np.concatenate([b.tokens for b in batches]) == whole.tokens).all()

    @pytest.mark.parametrize(("length", "count"), [(0, 5), (5, 0), (0, 0)])
    def test_nothing_to_do(self, sampler, length, count):
        assert sampler.runs(PROMPT, length, count, seeded()).tokens.shape == (count, length)

    def test_memory_does_not_grow_with_the_number_of_runs(self, sampler):
        peaks = []
        for batches in (4, 40):
            tracemalloc.start()
            for batch in sampler.batches(PROMPT, 8, 500 * batches, seeded(), batch_size=500):
                batch.tokens.sum()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert peaks[1] < 1.2 * peaks[0]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([0, 3], 5, 5), "id 3"),
            (([-1], 5, 5), "id -1"),
            (([0], -2, 5), "length -2"),
            (([0], 2, -5), "count -5"),
        ],
    )
    def test_bad_input_is_named(self, sampler, arguments, message):
        with pytest.raises(UsageError, match=message):
            sampler.batches(*arguments, seeded())


@pytest.mark.parametrize(
    ("function", "mutant"),
    [
        ("residual", lambda p, q: p),
        ("residual", lambda p, q: q),
        ("acceptance", lambda p, q: torch.ones_like(p)),
        ("acceptance", lambda p, q: (p / q).clamp(max=1) ** 1.05),
    ],
    ids=["not-subtracted", "from-the-draft", "always-accepted", "ratio-bent"],
)
def test_a_wrong_table_is_rejected(monkeypatch, function, mutant):
    monkeypatch.setattr(table_pair, function, mutant)
    tokens = TablePairSampler(TARGET, DRAFT, K).runs(PROMPT, K + 2, RUNS, seeded()).tokens
    assert p_value(tokens, joint(TARGET, PROMPT, K + 2), 3) < 1e-12


@pytest.mark.parametrize(
    "draft",
    [
        TARGET,
        table([[0, 0, 1]]),
        table([[0.5, 0, 0.5]]),
        table([[1 / 3] * 3]),
        TableModel.random(3, 1, seed=8),
        TableModel.random(3, 3, seed=9),
    ],
    ids=["q=p", "one-hot", "narrower", "uniform", "lower-order", "higher-order"],
)
@pytest.mark.parametrize("k", [0, 1, 3])
def test_the_law_depends_neither_on_the_draft_nor_on_k(draft, k):
    tokens = TablePairSampler(TARGET, draft, k).runs(PROMPT, 4, 100_000, seeded()).tokens
    assert p_value(tokens, joint(TARGET, PROMPT, 4), 3) > 1e-4


@pytest.mark.parametrize(
    "draft", [table([[0.0, 1, 0, 0]]), table([[0.25] * 4]), table([[0, 0.5, 0, 0.5]])]
)
def test_impossible_tokens_never_appear(draft):
    target = table([[0.5, 0, 0.5, 0]])
    sampler = TablePairSampler(target, draft, K)
    tokens = sampler.runs([], 5, 100_000, seeded()).tokens
    assert p_value(tokens, joint(target, [], 5), 4) > 1e-4
    assert set(np.unique(TableSampler(target).runs([], 5, 50_000, seeded()).tokens)) == {0, 2}


@pytest.mark.parametrize("coin", [0.0, 1 - 2.0**-53])
def test_edge_coins_never_accept_or_draw_an_impossible_token(coin):
    class Coins:
        def random(self, out):
            out.fill(coin)

    target = table([[0.5, 0, 0.5, 0]])
    for draft in (table([[0.0, 1, 0, 0]]), table([[0, 0.5, 0, 0.5]]), table([[0.25] * 4])):
        tokens = TablePairSampler(target, draft, K).runs([], 8, 10, Coins()).tokens  # type: ignore[arg-type]
        assert set(np.unique(tokens)) <= {0, 2}


def test_accepted_lengths_follow_their_closed_form():
    # P(accepted >= i) is the sum over draft prefixes of the product of min(p, q).
    survival = [1.0]
    for i in range(1, K + 1):
        total = 0.0
        for tokens in itertools.product(range(3), repeat=i):
            history, mass = tuple(PROMPT), 1.0
            for token in tokens:
                p, q = next_probs(TARGET, history), next_probs(DRAFT, history)
                mass *= min(p[token], q[token])
                history += (token,)
            total += mass
        survival.append(total)
    sampler = TablePairSampler(TARGET, DRAFT, K)
    assert sampler.overlap[TARGET.context_after(PROMPT)] == pytest.approx(survival[1], abs=1e-15)
    accepted = sampler.runs(PROMPT, 1, RUNS, seeded()).accepted
    assert accepted is not None
    assert p_value(accepted[:, :1], -np.diff([*survival, 0.0]), K + 1) > 1e-4
    rate = (accepted[:, 0] >= 1).mean()
    z = (rate - survival[1]) / np.sqrt(survival[1] * (1 - survival[1]) / RUNS)
    assert 2 * norm.sf(abs(z)) > 1e-4


def test_accepted_counts_add_up_to_the_length():
    accepted = TablePairSampler(TARGET, DRAFT, K).runs(PROMPT, 40, 20_000, seeded()).accepted
    assert accepted is not None
    took_part = accepted >= 0
    rounds = took_part.sum(1)
    assert (took_part == (np.arange(accepted.shape[1]) < rounds[:, None])).all()
    emitted = np.where(took_part, accepted.astype(int) + 1, 0).cumsum(1)
    every = np.arange(len(rounds))
    assert (emitted[every, rounds - 1] >= 40).all()
    assert (emitted[every, rounds - 2] < 40).all()
    assert accepted.max() == K


def test_equal_models_accept_everything():
    accepted = TablePairSampler(TARGET, TARGET, K).runs(PROMPT, 10, 50_000, seeded()).accepted
    assert accepted is not None
    assert (accepted == K).all()


def test_a_vocabulary_of_one_token():
    one = TableModel(torch.zeros(2, 1), 1)
    for sampler in samplers(one, one):
        assert not sampler.runs([0], 7, 10, seeded()).tokens.any()


def test_without_draft_tokens_every_round_emits_one():
    runs = TablePairSampler(TARGET, DRAFT, 0).runs(PROMPT, 7, 10, seeded())
    assert runs.accepted is not None
    assert runs.accepted.shape == (10, 7)
    assert not runs.accepted.any()


def test_a_vocabulary_beyond_a_byte_keeps_its_ids():
    target = table([[0.0] * 299 + [1.0]])
    draft = table([[1.0] * 300]).near(1, 0.1)
    for sampler in samplers(target, draft):
        assert (sampler.runs([], 5, 100, seeded()).tokens == 299).all()


def test_models_that_cannot_pair_are_refused():
    with pytest.raises(VocabularyMismatch, match="target over 3 tokens, draft over 4"):
        TablePairSampler(TARGET, table([[0.25] * 4]), K)
    for k in (-1, 128):
        with pytest.raises(UsageError, match=f"num_draft_tokens {k}"):
            TablePairSampler(TARGET, DRAFT, k)
