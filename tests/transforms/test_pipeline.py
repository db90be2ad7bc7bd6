import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from specverify.errors import SettingsError, UsageError
from specverify.settings import SamplingSettings
from specverify.transforms import (
    DIALECTS,
    NoRepeatNGram,
    Pipeline,
    PresencePenalty,
    TokenAutomaton,
)

VOCAB = 12
INF = math.inf
GRAMMAR = TokenAutomaton("a", {("a", 0): "b", ("b", 1): "c", ("c", 2): "end"})


def settings(**fields) -> SamplingSettings:
    return SamplingSettings(**fields)


def possible(logits: Tensor) -> list[int]:
    return (logits > -INF).nonzero().squeeze(-1).tolist()


def batch(rows: int = 40, n: int = 4, seed: int = 0):
    """Logits [rows, n, V], tokens, starts and prompt lengths of rows with different lengths."""
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, n, VOCAB, generator=g, dtype=torch.float64)
    logits = logits.masked_fill(torch.rand(rows, n, VOCAB, generator=g) < 0.1, -INF)
    prompts = torch.randint(1, 5, (rows,), generator=g)
    starts = prompts + torch.randint(0, 5, (rows,), generator=g)
    tokens = torch.randint(0, VOCAB, (rows, int(starts.max()) + n), generator=g)
    return logits, tokens, starts, prompts


def one(pipeline, logits, history, prompt_length=0, method="block"):
    """The row that a pipeline makes of one position's logits after one history."""
    tokens = torch.tensor([history], dtype=torch.long).reshape(1, -1)
    return getattr(pipeline, method)(
        torch.tensor([[logits]], dtype=torch.float64),
        tokens,
        torch.tensor([len(history)]),
        torch.tensor([prompt_length]),
    )[0, 0]


# --- against transformers --------------------------------------------------------------------

COMBINATIONS = {
    "neutral": {},
    "temperature and nucleus": {"temperature": 0.7, "top_k": 6, "top_p": 0.8},
    "every truncation": {
        "temperature": 1.5,
        "top_k": 9,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.9,
        "epsilon_cutoff": 0.01,
        "eta_cutoff": 0.02,
    },
    "min-p and typical": {"min_p": 0.2, "typical_p": 0.7},
    "penalty and ngrams": {
        "repetition_penalty": 1.4,
        "no_repeat_ngram_size": 2,
        "temperature": 0.8,
        "top_p": 0.9,
    },
    "bias and bad words": {
        "logit_bias": {0: 1.5, 4: -2.0},
        "bad_words": ((3,), (1, 2), (5, 5, 6), (7,)),
        "stop_token_ids": (7, 8),
        "top_k": 5,
    },
    "length and permission": {
        "min_new_tokens": 3,
        "stop_token_ids": (7, 8),
        "repetition_penalty": 0.7,
        "allowed_tokens": lambda emitted: {len(emitted), 5, 6, 7, 9, sum(emitted) % VOCAB},
        "min_p": 0.05,
    },
    "everything": {
        "logit_bias": {2: 0.75},
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "bad_words": ((11,), (0, 1)),
        "min_new_tokens": 2,
        "stop_token_ids": (7,),
        "allowed_tokens": lambda emitted: range(len(emitted) % 3, VOCAB),
        "temperature": 0.9,
        "top_k": 8,
        "top_p": 0.9,
        "min_p": 0.02,
        "typical_p": 0.95,
    },
    "greedy": {"temperature": 0.0, "top_k": 1, "top_p": 0.1},
    "greedy with processors": {
        "temperature": 0.0,
        "repetition_penalty": 3.0,
        "no_repeat_ngram_size": 1,
        "logit_bias": {0: 4.0},
        "typical_p": 0.2,
    },
}


@pytest.fixture(scope="module")
def model():
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def transformers_processors(model, given: SamplingSettings, prompt_length: int, extra=()):
    config = GenerationConfig(
        do_sample=not given.greedy,
        num_beams=1,
        num_return_sequences=1,
        temperature=given.temperature or 1.0,
        top_k=given.top_k or 0,
        top_p=given.top_p,
        min_p=given.min_p,
        typical_p=given.typical_p,
        epsilon_cutoff=given.epsilon_cutoff,
        eta_cutoff=given.eta_cutoff,
        repetition_penalty=given.repetition_penalty,
        no_repeat_ngram_size=given.no_repeat_ngram_size,
        bad_words_ids=[list(word) for word in given.bad_words] or None,
        sequence_bias={(t,): b for t, b in given.logit_bias.items()} or None,
        min_new_tokens=given.min_new_tokens or None,
        eos_token_id=list(given.stop_token_ids) or None,
        pad_token_id=0,
    )
    model._prepare_special_tokens(config)
    rule = given.allowed_tokens
    return model._get_logits_processor(
        config,
        input_ids_seq_length=prompt_length,
        prefix_allowed_tokens_fn=rule
        and (lambda _, ids: sorted(rule(tuple(ids[prompt_length:].tolist())))),
        logits_processor=list(extra),
    )


@pytest.mark.parametrize("name", list(COMBINATIONS))
def test_equals_the_processors_of_transformers_in_their_order(model, name):
    given = settings(**COMBINATIONS[name])
    logits, tokens, starts, prompts = batch()
    result = Pipeline.from_settings(given, VOCAB).block(logits, tokens, starts, prompts)
    compared = 0
    for b in range(logits.shape[0]):
        theirs = transformers_processors(model, given, int(prompts[b]))
        stops = set(given.stop_token_ids)
        reachable = stops.isdisjoint(tokens[b, int(prompts[b]) : int(starts[b])].tolist())
        for i in range(logits.shape[1]):
            end = int(starts[b]) + i
            expected = theirs(tokens[b : b + 1, :end], logits[b : b + 1, i].clone())[0]
            if given.greedy:
                first = int(expected.argmax())
                expected = torch.full((VOCAB,), -INF, dtype=torch.float64)
                expected[first] = 0.0
            if reachable:
                assert torch.equal(result[b, i], expected), (b, i)
                compared += 1
            following = int(tokens[b, end])
            # Beyond an impossible or a stop token nothing is promised.
            reachable &= expected[following] > -INF and following not in stops
    assert compared > 30


def test_extra_processors_come_where_transformers_puts_custom_ones(model):
    def halve(input_ids, scores):
        return scores / 2 + input_ids[:, -1:] % 2

    given = settings(temperature=0.7, repetition_penalty=1.5, top_p=0.8)
    logits, tokens, starts, prompts = batch(rows=10, n=1)
    pipeline = Pipeline.from_settings(given, VOCAB, extra=[halve])
    result = pipeline.block(logits, tokens, starts, prompts)
    assert not pipeline.history_free
    for b in range(10):
        theirs = transformers_processors(model, given, int(prompts[b]), [halve])
        expected = theirs(tokens[b : b + 1, : int(starts[b])], logits[b].clone())
        assert torch.equal(result[b], expected)


# --- histories -------------------------------------------------------------------------------


def test_each_position_sees_the_candidates_before_it_and_none_after():
    # Row 0: prompt [0], emitted [1], candidates 2, 2. Row 1: prompt [0, 1], candidates 3, 0.
    tokens = torch.tensor([[0, 1, 2, 2], [0, 1, 3, 0]])
    logits = torch.zeros(2, 3, 4)
    pipeline = Pipeline.from_settings(settings(presence_penalty=1.0, frequency_penalty=0.5), 4)
    result = pipeline.block(logits, tokens, torch.tensor([2, 2]), torch.tensor([1, 2]))
    assert result.tolist() == [
        [[0, -1.5, 0, 0], [0, -1.5, -1.5, 0], [0, -1.5, -2.0, 0]],
        [[0, 0, 0, 0], [0, 0, 0, -1.5], [-1.5, 0, 0, -1.5]],
    ]


def test_repetition_penalty_reads_the_prompt_and_rows_of_different_length():
    tokens = torch.tensor([[0, 1, -1, -1], [2, 2, 3, 1]])
    logits = torch.tensor([2.0, -2.0, 2.0, -2.0]).expand(2, 2, 4)
    pipeline = Pipeline.from_settings(settings(repetition_penalty=2.0), 4)
    result = pipeline.block(logits, tokens, torch.tensor([1, 3]), torch.tensor([1, 2]))
    assert result.tolist() == [
        [[1, -2, 2, -2], [1, -4, 2, -2]],
        [[2, -2, 1, -4], [2, -4, 1, -4]],
    ]


def test_length_rules_use_the_length_at_the_position():
    # Two new tokens needed: the stop token 3 is free at the third emitted position only.
    pipeline = Pipeline.from_settings(settings(min_new_tokens=2, stop_token_ids=(3,)), 4)
    tokens = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 0]])
    result = pipeline.block(
        torch.zeros(2, 3, 4), tokens, torch.tensor([1, 2]), torch.tensor([1, 1])
    )
    masked = result[..., 3].isneginf()
    assert masked.tolist() == [[True, True, False], [True, False, False]]


def test_forced_tokens_count_from_the_prompt_of_each_row():
    pipeline = Pipeline.from_settings(settings(forced_tokens={1: 2}), 4)
    tokens = torch.tensor([[0, 0, 2, 2, 2]] * 2)
    result = pipeline.block(
        torch.zeros(2, 3, 4), tokens, torch.tensor([1, 2]), torch.tensor([1, 1])
    )
    forced = [-INF, -INF, 0.0, -INF]
    assert result.tolist() == [[[0] * 4, forced, [0] * 4], [forced, [0] * 4, [0] * 4]]


@pytest.mark.parametrize("name", list(COMBINATIONS))
def test_positions_in_use_do_not_depend_on_the_others(name):
    logits, tokens, starts, prompts = batch(seed=3)
    counts = torch.arange(40) % 5
    pipeline = Pipeline.from_settings(settings(**COMBINATIONS[name]), VOCAB)
    full = pipeline.block(logits, tokens, starts, prompts)
    # What lies beyond a row's count, and beyond its last history, is scratch space.
    used = torch.arange(4) < counts.unsqueeze(-1)
    scratch = logits.masked_fill(~used.unsqueeze(-1), math.nan)
    columns = torch.arange(tokens.shape[1])
    spoilt = tokens.where(columns < (starts + counts - 1).unsqueeze(-1), -1)
    ragged = pipeline.block(scratch, spoilt, starts, prompts, counts)
    assert torch.equal(full[used], ragged[used])


@pytest.mark.parametrize("name", list(COMBINATIONS))
def test_batch_equals_loop(name):
    arguments = batch(seed=5)
    pipeline = Pipeline.from_settings(settings(**COMBINATIONS[name]), VOCAB)
    rows = [pipeline.block(*(a[b : b + 1] for a in arguments)) for b in range(40)]
    assert torch.equal(pipeline.block(*arguments), torch.cat(rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(COMBINATIONS))
def test_arguments_are_left_alone(name, dtype):
    logits, *rest = batch(seed=6)
    arguments = [logits.to(dtype), *rest]
    copies = [a.clone() for a in arguments]
    pipeline = Pipeline.from_settings(settings(**COMBINATIONS[name]), VOCAB)
    assert pipeline.block(*arguments).dtype == torch.float64
    assert all(torch.equal(a, c) for a, c in zip(arguments, copies, strict=True))


def test_greedy_gives_one_hot_probabilities_at_the_first_maximum():
    pipeline = Pipeline.from_settings(settings(temperature=0.0), 4)
    assert one(pipeline, [1.0, 3.0, 3.0, 2.0], [0]).tolist() == [-INF, 0.0, -INF, -INF]
    for method in ("probabilities", "expected_probabilities"):
        assert one(pipeline, [1.0, 3.0, 3.0, 2.0], [0], method=method).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("history", [{}, {"presence_penalty": 0.5}])
def test_xtc_coins_are_fresh_at_every_position_and_average_to_the_expectation(history):
    given = settings(xtc_probability=0.3, xtc_threshold=0.15, **history)
    pipeline = Pipeline.from_settings(given, 4, torch.Generator().manual_seed(0))
    assert pipeline.random
    rows = 20_000
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(rows, 3, 4)
    shared = torch.full((rows,), 2)
    arguments = logits, torch.full((rows, 4), 3), shared, shared
    excluded = pipeline.block(*arguments)[..., 0].isneginf().double()
    joint = (excluded.T @ excluded / rows)[torch.triu(torch.ones(3, 3)) > 0]
    expected = torch.tensor([0.3, 0.09, 0.09, 0.3, 0.09, 0.3], dtype=torch.float64)
    assert ((joint - expected).abs() < 5 * (expected * (1 - expected) / rows).sqrt()).all()
    mean = pipeline.probabilities(*arguments).mean(0)
    exact = pipeline.expected_probabilities(*arguments)
    assert torch.equal(exact[0], exact[-1])
    assert_close(mean, exact[0], atol=5 * 0.5 / math.sqrt(rows), rtol=0)


def test_expected_probabilities_of_xtc_by_hand_without_a_generator():
    pipeline = Pipeline.from_settings(settings(xtc_probability=0.3, xtc_threshold=0.15), 4)
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log().tolist()
    law = one(pipeline, logits, [0], method="expected_probabilities")
    by_hand = [0.28, 0.21, 0.34, 0.17]
    assert_close(law, torch.tensor(by_hand, dtype=torch.float64), atol=1e-15, rtol=0)
    with pytest.raises(UsageError, match="generator"):
        one(pipeline, logits, [0])


def test_a_token_that_no_coin_allows_is_out_of_reach_in_expectation():
    def allowed(emitted):
        return GRAMMAR(emitted)

    given = settings(allowed_tokens=allowed, xtc_probability=0.5)
    pipeline = Pipeline.from_settings(given, 4)
    probs = pipeline.expected_probabilities(
        torch.zeros(1, 3, 4), torch.tensor([[3, 1, 1]]), torch.tensor([1]), torch.tensor([1])
    )
    assert probs[0, 0].tolist() == [1, 0, 0, 0]
    assert_close(probs.sum(-1), torch.ones(1, 3).double())


@pytest.mark.parametrize("name", list(COMBINATIONS))
def test_probabilities_are_normalised_and_exclude_masked_tokens(name):
    arguments = batch(seed=9)
    pipeline = Pipeline.from_settings(settings(**COMBINATIONS[name]), VOCAB)
    probs = pipeline.probabilities(*arguments)
    assert_close(probs.sum(-1), torch.ones(40, 4).double(), atol=1e-12, rtol=0)
    assert bool((probs[pipeline.block(*arguments).isneginf()] == 0).all())
    assert torch.equal(probs, pipeline.expected_probabilities(*arguments))


# --- construction ----------------------------------------------------------------------------

NEUTRAL = {
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "min_new_tokens": 0,
    "stop_token_ids": (1,),
}


def test_neutral_settings_only_upcast():
    pipeline = Pipeline.from_settings(settings(**NEUTRAL), VOCAB)
    assert pipeline.history_free
    assert not pipeline.random
    logits, *rest = batch()
    assert pipeline.block(logits, *rest) is logits
    assert torch.equal(pipeline.block(logits.float(), *rest), logits.float().double())


@pytest.mark.parametrize(
    ("fields", "history_free", "random"),
    [
        ({"top_p": 0.5, "temperature": 0.3, "logit_bias": {1: 1.0}}, True, False),
        ({"xtc_probability": 0.5}, True, True),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.6}, True, False),
        ({"xtc_probability": 0.5, "temperature": 0.0}, True, False),
        ({"presence_penalty": 0.5}, False, False),
        ({"allowed_tokens": GRAMMAR}, False, False),
    ],
)
def test_pipelines_know_what_they_depend_on(fields, history_free, random):
    pipeline = Pipeline.from_settings(settings(**fields), VOCAB)
    assert (pipeline.history_free, pipeline.random) == (history_free, random)
    assert pipeline.settings == settings(**fields)


def test_empty_batches_and_blocks():
    for name in ("neutral", "everything"):
        pipeline = Pipeline.from_settings(settings(**COMBINATIONS[name]), VOCAB)
        none = torch.zeros(0, dtype=torch.long)
        for shape, rows in (((0, 3, VOCAB), 0), ((2, 0, VOCAB), 2)):
            ids = torch.ones(rows, 4, dtype=torch.long)
            lengths = none if rows == 0 else torch.full((rows,), 2)
            assert pipeline.block(torch.zeros(shape), ids, lengths, lengths).shape == shape


def test_a_single_token_vocabulary():
    given = settings(
        temperature=0.5, top_p=0.5, typical_p=0.5, top_n_sigma=1.0, presence_penalty=1.0
    )
    pipeline = Pipeline.from_settings(given, 1)
    assert one(pipeline, [4.0], [0, 0], method="probabilities").tolist() == [1.0]


def test_ids_outside_the_vocabulary_and_unknown_dialects_are_refused():
    with pytest.raises(SettingsError, match="stop_token_ids names token id 12"):
        Pipeline.from_settings(settings(stop_token_ids=(12,)), VOCAB)
    with pytest.raises(SettingsError, match="vllm"):
        Pipeline.from_settings(settings(dialect="vllm"), VOCAB)


def test_a_transform_given_as_extra_is_used_as_it_is():
    pipeline = Pipeline.from_settings(settings(), 3, extra=[PresencePenalty(1.0, 1)])
    assert one(pipeline, [0.0] * 3, [0, 1], 1).tolist() == [0, -1, 0]
    with pytest.raises(SettingsError, match="no_repeat_ngram_size"):
        one(Pipeline.from_settings(settings(), 3, extra=[NoRepeatNGram(1)]), [0.0] * 3, [0, 1, 2])


def test_an_extra_that_masks_everything_is_refused_by_name():
    def nothing(input_ids, scores):
        return scores - INF

    pipeline = Pipeline.from_settings(settings(), 3, extra=[nothing])
    with pytest.raises(SettingsError, match=r"nothing leaves no token.*\[0, 1\]"):
        one(pipeline, [0.0] * 3, [0, 1])


def test_the_dialect_decides_ties_boundaries_and_stop_words(monkeypatch):
    changed = {
        "keep_ties_at_k": False,
        "top_p_boundary": "keep",
        "bad_words_spare_stop_tokens": False,
        "allowed_tokens_revive": False,
    }
    monkeypatch.setitem(DIALECTS, "other", replace(DIALECTS["huggingface"], **changed))
    half = [0.0, -math.log(2), -2 * math.log(2), -2 * math.log(2)]

    def both(logits, **fields):
        given = [settings(dialect=name, **fields) for name in ("huggingface", "other")]
        return [possible(one(Pipeline.from_settings(s, 4), logits, [0])) for s in given]

    assert both([1.0, 1.0, 0.0, 0.0], top_k=1) == [[0, 1], [0]]
    assert both(half, top_p=0.5) == [[0], [0, 1]]
    assert both(half, bad_words=((1,),), stop_token_ids=(1,)) == [[0, 1, 2, 3], [0, 2, 3]]
    with pytest.raises(SettingsError, match="bad_words with allowed_tokens"):
        both(half, bad_words=((1,),), allowed_tokens=lambda _: (1,))
