"""The recorder alone: what it counts and what it stores."""

from types import SimpleNamespace

import pytest
import torch

from specverify.decoding.output import Counters
from specverify.decoding.run import Recorder, Run
from specverify.decoding.speculative import SpeculativeDecoder
from specverify.drafting.draft_model import DraftModel
from specverify.drafting.protocol import Histories
from specverify.drafting.schedule import Fixed
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.stopping import run_lengths
from specverify.verification import TOKEN


def run_of(tokens, prompt_lengths, lengths, passes=(0, 0)) -> Run:
    ids = torch.zeros((len(tokens), 1), dtype=torch.long)
    histories = Histories.from_prompts(ids, torch.ones_like(ids))
    histories.tokens = torch.tensor(tokens)
    histories.prompt_lengths = torch.tensor(prompt_lengths)
    histories.lengths = torch.tensor(lengths)
    target, draft = (SimpleNamespace(passes=number) for number in passes)
    return Run(histories, target, draft)  # type: ignore[arg-type]


def test_rounds_are_counted_by_hand():
    recorder = Recorder()
    active = torch.tensor([True, True, True])
    rows = torch.arange(3)
    recorder.round(rows, active, *map(torch.tensor, ([2, 2, 1], [2, 0, 1], [3, 1, 1])))
    active = torch.tensor([True, False, True])
    rows = torch.tensor([0, 2])
    recorder.round(rows, active, *map(torch.tensor, ([3, 0], [3, 0], [4, 1])))
    counters = recorder.counters
    assert (counters.rounds, counters.drafted, counters.accepted) == (5, 8, 6)
    assert (counters.emitted, counters.cut) == (10, 1)
    assert counters.accepted_by_position == [3, 2, 1]
    output = recorder.output(
        run_of([[0] * 9] * 3, [1] * 3, [8, 2, 3]), torch.tensor([1, 2, 3], dtype=torch.int8)
    )
    assert output.accepted is not None
    assert output.drafted is not None
    assert output.accepted.tolist() == [[2, 3], [0, -1], [1, 0]]
    assert output.drafted.tolist() == [[2, 3], [2, -1], [1, 0]]
    assert output.finish_reasons == ["stop_token", "stop_sequence", "length"]


def test_rounds_without_drafts_have_no_positions():
    recorder = Recorder()
    zero = torch.zeros(2, dtype=torch.long)
    recorder.round(torch.arange(2), torch.ones(2, dtype=torch.bool), zero, zero, zero + 1)
    assert recorder.counters.accepted_by_position == []
    assert recorder.counters.emitted == 2


def test_tokens_come_without_prompt_and_padded_whatever_the_prompts_lengths():
    run = run_of([[7, 1, 2, 3], [7, 8, 4, 0]], [1, 2], [4, 3])
    output = Recorder().output(run, torch.tensor([3, 3], dtype=torch.int8))
    assert output.tokens.tolist() == [[1, 2, 3], [4, -1, -1]]
    assert output.accepted is not None
    assert output.accepted.shape == (2, 0)
    assert output.logprobs is None


def test_log_probabilities_land_behind_those_of_earlier_rounds():
    recorder = Recorder()
    recorder.open(2, 4, torch.device("cpu"))
    first = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]], dtype=torch.float64)
    recorder.logprobs(
        torch.arange(2), torch.tensor([0, 0]), torch.tensor([2, 1]), first, 10 * first
    )
    recorder.logprobs(
        torch.tensor([1]), torch.tensor([1]), torch.tensor([3]), first[:1], 10 * first[:1]
    )
    output = recorder.output(
        run_of([[0] * 5] * 2, [1, 1], [3, 5]), torch.tensor([1, 3], dtype=torch.int8)
    )
    nan = float("nan")
    expected = torch.tensor([[-1.0, -2.0, nan, nan], [-4.0, -1.0, -2.0, -3.0]], dtype=torch.float64)
    assert output.logprobs is not None
    assert output.raw_logprobs is not None
    torch.testing.assert_close(output.logprobs, expected, equal_nan=True)
    torch.testing.assert_close(output.raw_logprobs, 10 * expected, equal_nan=True)


def test_recording_before_opening_is_a_mistake_of_the_caller():
    one = torch.zeros(1, dtype=torch.long)
    with pytest.raises(RuntimeError, match="open"):
        Recorder().logprobs(one, one, one, torch.zeros(1, 1), torch.zeros(1, 1))


def test_passes_of_earlier_runs_are_not_counted():
    recorder = Recorder(5, 7)
    output = recorder.output(
        run_of([[0, 0]], [1], [2], passes=(8, 9)), torch.tensor([3], dtype=torch.int8)
    )
    assert isinstance(output.counters, Counters)
    assert (output.counters.target_passes, output.counters.draft_passes) == (3, 2)


def test_phases_add_up():
    recorder = Recorder()
    for _ in range(2):
        with recorder.phase("draft"):
            pass
    with recorder.phase("score"):
        pass
    assert set(recorder.counters.seconds) == {"draft", "score"}
    assert recorder.counters.seconds["draft"] > 0


def test_appended_tokens_become_part_of_every_history():
    run = run_of([[7, 1, 0, 0], [7, 8, 4, 0]], [1, 2], [2, 3])
    run.append(torch.tensor([[5, 6], [2, 3]]))
    lengths = run.histories.lengths
    assert lengths.tolist() == [4, 5]
    rows = [row[:n] for row, n in zip(run.histories.tokens.tolist(), lengths, strict=True)]
    assert rows == [[7, 1, 5, 6], [7, 8, 4, 2, 3]]


def test_a_long_prompt_that_stops_at_once_beside_a_short_one_that_goes_on(seeded):
    target = TableModel.random(3, 1, seed=0)
    ids, mask = torch.zeros(2, 30, dtype=torch.long), torch.zeros(2, 30, dtype=torch.long)
    mask[0], mask[1, -1] = 1, 1
    ids[1, -1] = 1
    stops = SamplingSettings(max_new_tokens=40, stop_sequences=((0,),), logit_bias={0: -3.0})
    decoder = SpeculativeDecoder(target, DraftModel(target), TOKEN, Fixed(2))
    widths = set()
    for seed in range(20):
        tokens = decoder.generate(ids, mask, settings=stops, generator=seeded(seed)).tokens
        required, _ = run_lengths(tokens, stops)
        assert torch.equal((tokens >= 0).sum(1), required)
        widths.add(tuple(required.tolist()))
    assert any(long < short - 5 for long, short in widths)
