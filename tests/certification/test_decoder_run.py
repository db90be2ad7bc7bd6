"""One case from sampling to record: verdicts when the subject fails, is stopped, or is wrong."""

import pytest
import torch

from specverify.certification.decoder_run import Sampling, run_decoder_case
from specverify.certification.generation import decoder_generation
from specverify.certification.plan import PlannedCase
from specverify.certification.registry import properties_of
from specverify.models.table import TableModel
from specverify.sampling.token_scores import RATIOS
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.statistics.sequences import look_schedule
from specverify.subjects.reference import TOKEN

PROPERTIES = [p for p in properties_of("decoder") if p.evidence == "sampled"]
BUDGET = Budget(1e-6, 20)


TO_THE_END = Sampling(stop_early=False)


def judged(
    subject, case, *, rows=1000, dropped=(), seed=0, progress=lambda event: None, sampling=None
):
    generate = decoder_generation(
        subject, case.target, case.draft, case.settings, case.num_draft_tokens, 60.0
    )
    planned = PlannedCase(case, generate, rows, dropped)
    return run_decoder_case(subject, planned, PROPERTIES, BUDGET, seed, progress, sampling=sampling)


def failing_at(number, error, call=TOKEN.call):
    """A decoder that raises at its n-th call."""
    calls = []

    def generate(*arguments):
        calls.append(1)
        if len(calls) == number:
            raise error
        return call(*arguments)

    return generate


def constant(target, draft, ids, mask, settings, k, generator):
    return torch.zeros(len(ids), settings.max_new_tokens, dtype=torch.long)


def test_a_right_decoder_is_preserved(case, decoder):
    events = []
    record, interrupted = judged(
        decoder(),
        case(tokens=3_200_000),
        rows=100_000,
        dropped=("top_k",),
        progress=events.append,
        sampling=TO_THE_END,
    )
    assert (record.verdict, record.reason, interrupted) == ("preserved", "", False)
    assert (record.runs, record.planned_runs, record.stopped) == (800_000, 800_000, "")
    assert record.shards == 32
    assert record.tokens == 3_200_000
    assert record.tv_bound is not None
    assert record.tv_bound < 6e-3
    assert record.tv_bound_alpha == BUDGET.alpha
    assert {r.property for r in record.tests} | {"joint.own_distributions"} == {
        p.id for p in PROPERTIES
    }
    assert {r.decision for r in record.tests} == {"pass", "reported"}
    assert [n.property for n in record.not_applicable] == [
        "settings.top_k",
        "joint.own_distributions",
    ]
    assert sum(record.counters["first_round_accepted"].values()) == record.runs
    assert [(e.case, e.done, e.total) for e in events] == [
        ("case", 25_000 * i, 800_000) for i in range(1, 33)
    ]


def test_a_right_decoder_ends_as_soon_as_its_bounds_are_reached(case, decoder):
    record, _ = judged(decoder(), case(tokens=6_400_000), rows=100_000)
    assert (record.verdict, record.stopped) == ("preserved", "bounds reached")
    assert record.runs < record.planned_runs == 1_600_000
    (bound,) = [b for b in record.bounds if b.limit is not None]
    assert bound.value <= bound.limit
    assert bound.name == "total variation of the first token"


def test_bounds_that_hold_at_every_look_end_a_case_at_any_of_them(case, decoder):
    """Above 64 tokens of vocabulary no bound is asked for that was fixed to some looks."""
    target = TableModel.random(80, 1, seed=5)
    wide = case(tokens=64_000, target=target, draft=target.near(seed=6, noise=0.8), leak_limit=0.03)
    record, _ = judged(decoder(), wide, rows=500)
    assert (record.verdict, record.stopped) == ("preserved", "bounds reached")
    assert record.shards not in look_schedule(32)
    asked = [bound for bound in record.bounds if bound.limit is not None]
    assert len(asked) == len(RATIOS)
    assert all(bound.value <= 0.03 for bound in asked)
    # The one that was fixed is not claimed there.
    assert record.tv_bound is None
    assert "total variation of the first token" not in {bound.name for bound in record.bounds}


def test_a_wrong_one_ends_as_soon_as_it_is_caught(case, decoder):
    early, _ = judged(decoder(constant), case(tokens=40_000))
    late, _ = judged(decoder(constant), case(tokens=40_000), sampling=TO_THE_END)
    assert (early.verdict, early.stopped) == ("violated", "violated")
    assert (late.verdict, late.stopped) == ("violated", "")
    assert early.runs < late.runs == late.planned_runs == 10_000
    (every,) = [r for r in late.tests if r.property == "joint.every_token" and r.alpha]
    assert every.n == early.tokens, "what has crossed stays as it was then"


def test_too_few_tokens_are_inconclusive_and_say_how_many_it_takes(case, decoder):
    record, _ = judged(decoder(), case(tokens=2_000))
    assert record.verdict == "inconclusive"
    assert "the bound on the first token's TV is" in record.reason
    assert record.missing is not None
    needed = int(record.missing.split("about ")[1].split(" tokens")[0].replace(",", ""))
    enough, _ = judged(decoder(), case(tokens=int(1.3 * needed)), rows=100_000)
    assert enough.verdict == "preserved", enough.reason


def test_a_crash_at_the_third_call_keeps_the_evidence_of_the_first_two(case, decoder):
    crashing = decoder(failing_at(3, RuntimeError("out of cheese")))
    record, interrupted = judged(crashing, case(tokens=40_000))
    assert (record.verdict, interrupted) == ("error", False)
    assert "raised RuntimeError: out of cheese" in record.reason
    assert record.runs == 2 * 313
    assert record.tests
    # Nobody had fixed a look there, and the bound holds at no other.
    assert record.tv_bound is None
    names = {bound.name for bound in record.bounds}
    assert "total variation of the first token" not in names
    assert "leak rate d, within (1 - d) p + d q" in names


def test_a_crash_after_proof_of_a_violation_is_violated(case, decoder):
    late = decoder(failing_at(3, RuntimeError("late"), constant))
    record, _ = judged(late, case(tokens=40_000), sampling=TO_THE_END)
    assert record.verdict == "violated"
    assert "joint.first_token" in record.reason
    assert "raised RuntimeError: late" in record.reason


def test_a_crash_at_once(case, decoder):
    record, _ = judged(decoder(failing_at(1, RuntimeError("early"))), case())
    assert (record.verdict, record.runs, record.tests) == ("error", 0, ())
    assert "early" in record.reason


@pytest.mark.parametrize(
    ("call", "verdict"), [(TOKEN.call, "inconclusive"), (constant, "violated")]
)
def test_control_c_keeps_what_was_tallied(case, decoder, call, verdict):
    stopped = decoder(failing_at(3, KeyboardInterrupt(), call))
    record, interrupted = judged(stopped, case(tokens=40_000), sampling=TO_THE_END)
    assert interrupted
    assert (record.verdict, record.runs) == (verdict, 626)
    if verdict == "inconclusive":
        assert record.reason == "interrupted after 626 of 10,000 runs"


def too_long(target, draft, ids, mask, settings, k, generator):
    more = settings.model_copy(update={"max_new_tokens": settings.max_new_tokens + 1})
    return TOKEN.call(target, draft, ids, mask, more, k, generator)


def too_short(*arguments):
    output = TOKEN.call(*arguments)
    return output.tokens[:, :-1]


@pytest.mark.parametrize("call", [too_long, too_short])
def test_one_run_that_ends_in_the_wrong_place_is_proof(case, decoder, call):
    record, _ = judged(decoder(call), case(tokens=100))
    assert record.verdict == "violated"
    (ends,) = [r for r in record.tests if r.property == "stopping.run_length"]
    assert (ends.decision, ends.evidence) == ("violated", "structural")
    assert "max_new_tokens=4" in ends.detail


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda *_: None, "is a NoneType"),
        (lambda *a: TOKEN.call(*a).tokens[:1], r"must be \[125, L\]"),
        (lambda *a: TOKEN.call(*a).tokens + 90, "token ids run from 0 to 3"),
        (lambda *a: TOKEN.call(*a).tokens.float(), "must hold integers"),
        (lambda *a: TOKEN.call(*a).tokens[:, :0], "holds no token"),
    ],
)
def test_nonsense_is_an_error_with_a_message(case, decoder, call, message):
    record, _ = judged(decoder(call), case())
    assert record.verdict == "error"
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(record.reason)


def test_one_row_a_call_and_stops_inside_the_block(case, decoder):
    """Accepted counts larger than what the only row of a call emitted."""
    settings = SamplingSettings(stop_token_ids=(0, 1))
    record, _ = judged(decoder(batch=False), case(tokens=400, settings=settings), rows=1)
    assert record.verdict == "inconclusive"
    assert record.runs == 100


def test_same_seed_same_record(case, decoder):
    first, again, other = (
        judged(decoder(), case(), seed=seed)[0].model_copy(update={"seconds": 0.0})
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
