"""The loop: its output, its caches, its counters."""

import pytest
import torch
from scipy.stats import chisquare
from transformers import LlamaConfig, LlamaForCausalLM

from specverify.decoding.scoring import TeacherForced
from specverify.decoding.speculative import SpeculativeDecoder
from specverify.drafting.draft_model import DraftModel
from specverify.drafting.early_exit import EarlyExitDrafter
from specverify.drafting.prompt_lookup import PromptLookup
from specverify.drafting.schedule import Fixed, HeuristicTransient
from specverify.errors import CacheNotRollable, UsageError, VocabularyMismatch
from specverify.exact.prefix_tree import PrefixTree
from specverify.models.glass_box import RecurrentGlassBoxModel
from specverify.models.table import TableModel
from specverify.models.transformers_model import TransformersModel
from specverify.models.vocabulary import Vocabulary
from specverify.settings import SamplingSettings
from specverify.stopping import run_lengths
from specverify.verification import BLOCK, GREEDY, MATCH, TOKEN

PROMPTS = ((3,), (0, 4), (4, 1, 4, 2))
HARD = {
    "temperature": 0.9,
    "presence_penalty": 0.8,
    "repetition_penalty": 1.3,
    "stop_token_ids": (4,),
    "stop_sequences": ((1, 2),),
    "min_new_tokens": 1,
}
"""Settings in which every position depends on its own history, and runs end anywhere."""


def p_value(tokens: torch.Tensor, target: TableModel, prompt, settings: SamplingSettings) -> float:
    """Chi-squared of whole runs against their exact stopped distribution."""

    def is_end(prefixes):
        lengths, _ = run_lengths(torch.from_numpy(prefixes), settings)
        return lengths.numpy() == prefixes.shape[1]

    tree = PrefixTree.grow(
        TeacherForced(target, prompt, settings),
        target.vocab_size,
        settings.max_new_tokens,
        is_end,
        minimum_mass=25 / len(tokens),
    )
    cells = tree.locate(tokens.numpy())
    assert (cells >= 0).all()
    counts = torch.bincount(torch.from_numpy(cells), minlength=len(tree.probabilities))
    expected = tree.leaf_probabilities() * len(tokens)
    few = expected < 25
    if few.any():
        counts = torch.cat([counts[~few], counts[few].sum()[None]])
        expected = [*expected[~few], expected[few].sum()]
    return chisquare(counts.numpy(), expected).pvalue


@pytest.mark.parametrize("verification", [TOKEN, BLOCK, MATCH], ids=lambda rule: rule.name)
@pytest.mark.parametrize("extra", [{}, HARD], ids=["plain", "hard"])
def test_whole_runs_of_a_ragged_batch_follow_the_target(
    target, draft, batch, seeded, verification, extra
):
    settings = SamplingSettings(max_new_tokens=5, **extra)
    decoder = SpeculativeDecoder(target, DraftModel(draft), verification, Fixed(3))
    ids, mask = batch(*PROMPTS * 8_000)
    output = decoder.generate(ids, mask, settings=settings, generator=seeded())
    for index, prompt in enumerate(PROMPTS):
        assert p_value(output.tokens[index :: len(PROMPTS)], target, prompt, settings) > 1e-4


def test_the_same_check_rejects_a_draft_passed_off_as_the_target(target, draft, batch, seeded):
    settings = SamplingSettings(max_new_tokens=5)
    output = SpeculativeDecoder(draft).generate(
        *batch(*PROMPTS[:1] * 8_000), settings=settings, generator=seeded()
    )
    assert p_value(output.tokens, target, PROMPTS[0], settings) < 1e-9


def test_autoregressive_decoding_is_the_loop_without_a_drafter(target, batch, seeded):
    settings = SamplingSettings(max_new_tokens=5, **HARD)
    output = SpeculativeDecoder(target).generate(
        *batch(*PROMPTS[2:] * 20_000), settings=settings, generator=seeded()
    )
    assert p_value(output.tokens, target, PROMPTS[2], settings) > 1e-4
    assert output.counters is not None
    assert output.counters.drafted == 0


def test_one_row_at_a_time_has_the_distribution_of_the_batch(target, draft, seeded):
    settings = SamplingSettings(max_new_tokens=3)
    decoder = SpeculativeDecoder(target, DraftModel(draft), TOKEN, Fixed(2))
    generator = seeded()
    runs = [
        decoder.generate(torch.tensor([[3]]), settings=settings, generator=generator).tokens
        for _ in range(3_000)
    ]
    assert p_value(torch.cat(runs), target, (3,), settings) > 1e-4


@pytest.mark.parametrize("schedule", [HeuristicTransient(2), Fixed(6)])
@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_drafts_and_block_lengths_do_not_change_the_distribution(
    target, draft, batch, seeded, schedule, drafter
):
    settings = SamplingSettings(max_new_tokens=5)
    proposer = DraftModel(draft, confidence_threshold=0.3) if drafter == "model" else PromptLookup()
    decoder = SpeculativeDecoder(target, proposer, TOKEN, schedule)
    output = decoder.generate(*batch(*PROMPTS[2:] * 8_000), settings=settings, generator=seeded())
    assert output.counters is not None
    assert output.counters.accepted > 0
    assert p_value(output.tokens, target, PROMPTS[2], settings) > 1e-4


@pytest.mark.parametrize("verification", [GREEDY, TOKEN, BLOCK, MATCH], ids=lambda rule: rule.name)
def test_greedy_runs_equal_greedy_autoregressive_runs(target, draft, batch, seeded, verification):
    settings = SamplingSettings(temperature=0.0, max_new_tokens=20, repetition_penalty=1.5)
    expected = SpeculativeDecoder(target).generate(
        *batch(*PROMPTS), settings=settings, generator=seeded()
    )
    decoder = SpeculativeDecoder(target, DraftModel(draft), verification, Fixed(4))
    output = decoder.generate(*batch(*PROMPTS), settings=settings, generator=seeded(9))
    assert torch.equal(output.tokens, expected.tokens)
    assert output.counters is not None
    assert output.counters.target_passes < 20


def test_same_seed_same_tokens_and_the_global_generator_is_left_alone(target, draft, batch, seeded):
    settings = SamplingSettings(max_new_tokens=30)
    decoder = SpeculativeDecoder(target, DraftModel(draft), TOKEN, Fixed(4))
    before = torch.get_rng_state()
    first, second, other = (
        decoder.generate(*batch(*PROMPTS), settings=settings, generator=seeded(seed)).tokens
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_caches_hold_what_was_emitted_and_nothing_else(target, draft, batch, seeded):
    settings = SamplingSettings(max_new_tokens=12, stop_token_ids=(4,))
    decoder = SpeculativeDecoder(target, DraftModel(draft), TOKEN, Fixed(4))
    run = decoder.start(*batch(*PROMPTS * 20))
    output = decoder.advance(run, settings=settings, generator=seeded())
    lengths = (output.tokens >= 0).sum(1) + torch.tensor([len(p) for p in PROMPTS * 20])
    assert torch.equal(run.target.lengths, lengths - 1)
    assert len(set(lengths.tolist())) > 3
    last = run.histories.tokens.gather(1, run.histories.lengths[:, None] - 1)
    logits = run.target.extend(last)[:, 0]
    for row, prompt in enumerate(PROMPTS * 20):
        emitted = output.tokens[row][output.tokens[row] >= 0].tolist()
        context = target.context_after([*prompt, *emitted])
        assert torch.equal(logits[row], target.logits[context])


@pytest.mark.parametrize("appended", [0, 1, 3])
def test_a_continued_run_equals_a_fresh_one(target, draft, batch, seeded, appended):
    settings = SamplingSettings(max_new_tokens=6, stop_token_ids=(4,), presence_penalty=0.5)
    decoder = SpeculativeDecoder(target, DraftModel(draft), TOKEN, Fixed(3))
    rows = 6_000
    run = decoder.start(*batch(*PROMPTS[1:2] * rows))
    greedy = settings.model_copy(update={"temperature": 0.0})
    first = decoder.advance(run, settings=greedy, generator=seeded())
    turn = torch.tensor([[2, 0, 1]])[:, :appended].expand(rows, -1)
    run.append(turn)
    second = decoder.advance(run, settings=settings, generator=seeded())
    emitted = first.tokens[0][first.tokens[0] >= 0].tolist()
    prompt = (*PROMPTS[1], *emitted, *turn[0].tolist())
    assert p_value(second.tokens, target, prompt, settings) > 1e-4


def test_log_probabilities_are_the_targets(target, draft, batch, seeded):
    settings = SamplingSettings(max_new_tokens=8, temperature=0.7, top_k=3, stop_token_ids=(4,))
    decoder = SpeculativeDecoder(target, DraftModel(draft), TOKEN, Fixed(3))
    output = decoder.generate(*batch(*PROMPTS), settings=settings, generator=seeded())
    for row, prompt in enumerate(PROMPTS):
        tokens = output.tokens[row : row + 1]
        emitted = tokens[tokens >= 0]
        for recorded, contract in (
            (output.logprobs, settings),
            (output.raw_logprobs, SamplingSettings()),
        ):
            assert recorded is not None
            laws = TeacherForced(target, prompt, contract).along(tokens)[0, : len(emitted)]
            expected = laws.gather(1, emitted[:, None]).squeeze(1).log()
            torch.testing.assert_close(recorded[row, : len(emitted)], expected)
            assert recorded[row, len(emitted) :].isnan().all()


def test_counters_satisfy_their_identities(target, draft, batch, seeded):
    settings = SamplingSettings(max_new_tokens=12, stop_token_ids=(4,))
    decoder = SpeculativeDecoder(target, DraftModel(draft), TOKEN, Fixed(4))
    output = decoder.generate(*batch(*PROMPTS * 50), settings=settings, generator=seeded())
    counters, accepted, drafted = output.counters, output.accepted, output.drafted
    assert counters is not None
    assert accepted is not None
    assert drafted is not None
    took_part = accepted >= 0
    assert counters.rounds == int(took_part.sum())
    assert counters.emitted == int((output.tokens >= 0).sum())
    assert counters.emitted == counters.accepted + counters.rounds - counters.cut
    assert counters.cut > 0
    assert counters.accepted == int(accepted[took_part].sum()) == sum(counters.accepted_by_position)
    assert counters.drafted == int(drafted[took_part].sum())
    assert counters.accepted_by_position == sorted(counters.accepted_by_position, reverse=True)
    assert counters.target_passes == accepted.shape[1] + 1
    assert counters.draft_passes <= 4 * accepted.shape[1] + 1
    assert set(counters.seconds) == {"prefill", "draft", "score", "verify", "commit"}
    assert counters.peak_memory_bytes > 1e6


def test_a_second_run_counts_only_itself(target, draft, batch, seeded):
    settings = SamplingSettings(max_new_tokens=4)
    decoder = SpeculativeDecoder(target, DraftModel(draft), TOKEN, Fixed(2))
    run = decoder.start(*batch(*PROMPTS))
    outputs = [decoder.advance(run, settings=settings, generator=seeded()) for _ in range(2)]
    counters = outputs[1].counters
    assert counters is not None
    assert counters.emitted == 12
    assert outputs[1].accepted is not None
    assert counters.target_passes == outputs[1].accepted.shape[1]


def test_every_row_says_why_it_ended(target, draft, batch, seeded):
    settings = SamplingSettings(
        max_new_tokens=4, stop_token_ids=(4,), stop_sequences=((1,), (2, 3)), min_new_tokens=1
    )
    decoder = SpeculativeDecoder(target, DraftModel(draft), TOKEN, Fixed(3))
    output = decoder.generate(*batch(*PROMPTS * 100), settings=settings, generator=seeded())
    required, codes = run_lengths(output.tokens, settings)
    assert torch.equal((output.tokens >= 0).sum(1), required)
    assert output.finish_reasons is not None
    assert set(output.finish_reasons) == {"stop_token", "stop_sequence", "length"}
    reasons = ["stop_token", "stop_sequence", "length"]
    assert output.finish_reasons == [reasons[code - 1] for code in codes.tolist()]


def test_one_token_vocabulary():
    model = TableModel.random(1, 1, seed=0)
    decoder = SpeculativeDecoder(model, DraftModel(model), TOKEN, Fixed(3))
    output = decoder.generate(
        torch.tensor([[0]]),
        settings=SamplingSettings(max_new_tokens=6),
        generator=torch.Generator().manual_seed(0),
    )
    assert output.tokens.tolist() == [[0] * 6]


class TestBadInput:
    def test_vocabularies_of_different_size(self, target):
        with pytest.raises(VocabularyMismatch, match=r"target has 5 token ids, the draft 6"):
            SpeculativeDecoder(target, DraftModel(TableModel.random(6, 1, seed=0)))

    def test_no_room_in_the_window_is_refused_before_any_pass(self, seeded):
        model = TableModel.random(3, 1, seed=0, window=8)
        model.start = None  # type: ignore[method-assign]
        with pytest.raises(UsageError, match=r"prompt of 4 tokens and max_new_tokens=5 need 9.*8"):
            SpeculativeDecoder(model).generate(
                torch.tensor([[0, 1, 2, 0]]),
                settings=SamplingSettings(max_new_tokens=5),
                generator=seeded(),
            )

    def test_an_empty_prompt(self, target, seeded):
        with pytest.raises(UsageError, match="prompt 1 is empty"):
            SpeculativeDecoder(target).generate(
                torch.tensor([[1], [1]]),
                torch.tensor([[1], [0]]),
                settings=SamplingSettings(),
                generator=seeded(),
            )

    def test_settings_that_name_unknown_tokens(self, target, seeded):
        with pytest.raises(UsageError, match=r"stop_token_ids names token id 9.*5"):
            SpeculativeDecoder(target).generate(
                torch.tensor([[1]]),
                settings=SamplingSettings(stop_token_ids=(9,)),
                generator=seeded(),
            )

    def test_a_draft_with_permuted_ids_is_mapped(self, target, draft, batch, seeded):
        names = tuple("abcde")
        order = [2, 0, 4, 1, 3]
        target.vocabulary = Vocabulary(names)
        permuted = TableModel(
            draft.logits.reshape(6, 6, 5)[[*order, 5]][:, [*order, 5]][:, :, order].reshape(36, 5),
            2,
            vocabulary=Vocabulary(tuple(names[i] for i in order)),
        )
        settings = SamplingSettings(max_new_tokens=5)
        expected, output = (
            SpeculativeDecoder(target, DraftModel(model), TOKEN, Fixed(3)).generate(
                *batch(*PROMPTS * 4), settings=settings, generator=seeded()
            )
            for model in (
                TableModel(draft.logits, 2, vocabulary=Vocabulary(names)),
                permuted,
            )
        )
        assert torch.equal(output.tokens, expected.tokens)

    def test_a_draft_with_other_strings_behind_its_ids(self, target, draft):
        target.vocabulary = Vocabulary(tuple("abcde"))
        draft.vocabulary = Vocabulary(tuple("abcdx"))
        with pytest.raises(VocabularyMismatch, match=r"id 4 is 'e' in the target and 'x'"):
            SpeculativeDecoder(target, DraftModel(draft))

    @pytest.mark.parametrize("role", ["target", "draft"])
    def test_a_cache_that_cannot_be_rolled_back(self, target, draft, role):
        recurrent = TransformersModel(RecurrentGlassBoxModel.from_table(target))
        models = {"target": target, "draft": draft, role: recurrent}
        with pytest.raises(CacheNotRollable, match="cannot undo"):
            SpeculativeDecoder(models["target"], DraftModel(models["draft"]))

    def test_an_early_exit_of_another_model(self, target):
        tiny = TransformersModel(
            LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=5,
                    hidden_size=8,
                    intermediate_size=8,
                    num_hidden_layers=2,
                    num_attention_heads=1,
                )
            )
        )
        with pytest.raises(UsageError, match="the target is another one"):
            SpeculativeDecoder(target, EarlyExitDrafter(tiny, 1))
