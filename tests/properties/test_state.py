"""Chapter state: caches after rejections, continued runs, and calls after other calls."""

from dataclasses import replace

import pytest
import torch

from specverify.certification.probes.ranks import LAW, ORDER, VOCAB_SIZE, ranked, wrong_row
from specverify.certification.registry import properties_of
from specverify.fixtures.lookalikes.batches import LOOKALIKES
from specverify.fixtures.mutants import calls, states
from specverify.fixtures.mutants.caches import MUTANTS as CACHES
from specverify.models.sliding_glass_box import SlidingGlassBoxModel
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import BLOCK, GREEDY, MATCH, TOKEN
from specverify.subjects.registry import load_subject

ROLLBACK, CONTINUED = "state.rollback", "state.continued"
ORDER_OF_CALLS, MANY = "state.order_of_calls", "state.many_calls"

SHOWS = {
    ("roll-back-gives-up", ROLLBACK): "sliding-window",
    ("recurrent-state-kept", ROLLBACK): "recurrent",
    ("rejected-tokens-published", CONTINUED): "turns",
    ("results-kept-by-prompt", MANY): "one-row",
    ("results-kept-without-model", ORDER_OF_CALLS): "models",
    ("first-stop-tokens-kept", ORDER_OF_CALLS): "settings",
    ("late-calls-from-draft", MANY): "rows",
    ("same-draws-every-call", MANY): "one-row",
    ("every-second-call-repeats", MANY): "one-row",
}
"""An input on which each mutant is caught by each property that must catch it."""

MUTANTS = (*states.MUTANTS, *calls.MUTANTS)
BY_ID = {mutant.id: mutant for mutant in MUTANTS}
SUBJECTS = {s.name: s for s in (TOKEN, BLOCK, MATCH, GREEDY)}
REFUSES = {"tables": "does not take models", "recurrent": "refuses a cache of this kind"}


def inputs_of(property: str) -> tuple[str, ...]:
    (found,) = [p for p in properties_of("decoder") if p.id == property]
    return found.inputs


STRUCTURAL = [
    *((ROLLBACK, input) for input in inputs_of(ROLLBACK)),
    (CONTINUED, "turns"),
    *((ORDER_OF_CALLS, input) for input in inputs_of(ORDER_OF_CALLS)),
]


@pytest.mark.parametrize(("mutant", "property"), SHOWS, ids=lambda name: name)
def test_mutants_are_caught(mutant, property, probe):
    record = probe(BY_ID[mutant].subject, property, SHOWS[mutant, property])
    assert record.verdict == "violated"


def test_every_mutant_is_tried_on_all_that_must_catch_it():
    assert set(SHOWS) == {(mutant.id, name) for mutant in MUTANTS for name in mutant.caught_by}


@pytest.mark.parametrize("mutant", CACHES, ids=lambda mutant: mutant.id)
def test_older_mutants_of_caches_are_caught_in_one_call(mutant, probe):
    on_tables = "language_model" in mutant.subject.capabilities.models
    input = "glass-box" if mutant.id == "positions-not-rolled-back" or not on_tables else "tables"
    assert probe(mutant.subject, ROLLBACK, input).verdict == "violated"


@pytest.mark.parametrize(("property", "input"), STRUCTURAL)
@pytest.mark.parametrize("name", [*SUBJECTS, "transformers"])
def test_right_ones_pass(name, property, input, probe):
    record = probe(SUBJECTS.get(name) or load_subject(name), property, input)
    if isinstance(record, str):
        assert REFUSES.get(input, "the subject takes no two calls that differ in this") in record
        assert name == "transformers" or input == "recurrent"
    else:
        assert record.verdict == "preserved"


@pytest.mark.parametrize(
    "name", ["reference", "reference-block", "reference-match", "transformers"]
)
def test_calls_of_right_ones_are_independent(name, probe):
    record = probe(SUBJECTS.get(name) or load_subject(name), MANY, "one-row")
    assert record.verdict == "preserved"
    assert record.tests[0].statistic < 3


@pytest.mark.parametrize("name", ["reference", "transformers"])
def test_a_continued_run_is_computed(name, probe):
    record = probe(SUBJECTS.get(name) or load_subject(name), CONTINUED, "sampled")
    assert record.verdict == "preserved"
    assert record.tests[0].evidence == "exact"


def test_what_is_not_asked_is_said(probe):
    greedy, transformers = probe(GREEDY, CONTINUED, "sampled"), load_subject("transformers")
    assert greedy == "the subject decodes greedily only"
    assert probe(transformers, MANY, "rows") == "the subject takes one row a call"


@pytest.mark.parametrize("lookalike", LOOKALIKES, ids=lambda lookalike: lookalike.id)
@pytest.mark.parametrize(
    ("property", "input"), [*STRUCTURAL, (MANY, "one-row")], ids=lambda name: name
)
def test_lookalikes_pass(lookalike, property, input, probe):
    record = probe(lookalike.subject, property, input)
    assert isinstance(record, str) or record.verdict == "preserved"


class LeftOver:
    """Draws more uniforms than it needs and uses the rest in its next call: right, and odd."""

    def __init__(self):
        self.pool = torch.zeros(0, dtype=torch.float64)

    def __call__(self, target, draft, ids, mask, settings, k, generator):
        session, emitted = target.start(ids, mask), []
        last = ids[:, -1:]
        for _ in range(settings.max_new_tokens):
            law = session.extend(last)[:, -1].softmax(1).cumsum(1)
            if len(self.pool) < len(ids):
                more = torch.rand(3 * len(ids) + 7, dtype=torch.float64, generator=generator)
                self.pool = torch.cat([self.pool, more])
            coins, self.pool = self.pool[: len(ids)], self.pool[len(ids) :]
            last = (law <= coins[:, None]).sum(1, keepdim=True).clamp(max=law.shape[1] - 1)
            emitted.append(last)
        return torch.cat(emitted, 1)


def test_draws_left_over_from_the_last_call_may_be_used(probe):
    capabilities = Capabilities(models=frozenset({"language_model"}), coin_dtype="float64")
    subject = Subject("left-over", "decoder", LeftOver(), capabilities)
    for input in ("one-row", "rows"):
        assert probe(subject, MANY, input).verdict == "preserved"


def test_the_likeliest_tokens_visit_every_context_once():
    tables = ranked()
    prompt = (0, 1, 2)
    text = [*prompt, *tables.likeliest(prompt, VOCAB_SIZE**ORDER)]
    seen = {tuple(text[i : i + ORDER]) for i in range(VOCAB_SIZE**ORDER)}
    assert len(seen) == VOCAB_SIZE**ORDER
    assert tuple(text[-ORDER:]) == prompt


def test_ranks_have_their_law_after_every_context():
    tables = ranked()
    law = torch.tensor(LAW, dtype=torch.float64)
    ordered = tables.target.logits.softmax(1).gather(1, tables.order)
    assert torch.allclose(ordered, law.expand(ordered.shape))
    forced = ranked(forced=True).target.logits.softmax(1)
    assert torch.equal(forced.max(1).values, torch.ones(len(forced), dtype=torch.float64))


def test_a_run_of_the_wrong_length_is_told():
    tables = ranked()
    world = tables.world(((0, 1, 2),), 3, temperature=0.0)
    right = torch.tensor([tables.likeliest((0, 1, 2), 3)])
    assert wrong_row(world, tables, right) is None
    assert "ends" not in (wrong_row(world, tables, right.flip(1)) or "")
    assert "end it after 3" in (wrong_row(world, tables, right[:, :2]) or "")
    longer = torch.tensor([tables.likeliest((0, 1, 2), 4)])
    assert "4 tokens; its settings end it after 3" in (wrong_row(world, tables, longer) or "")


class FullWindow:
    """Right, and at a loss where a cache has forgotten what a roll-back would need."""

    def __init__(self, how, longest=4):
        self.how, self.longest = how, longest

    def __call__(self, target, draft, ids, mask, settings, *rest):
        if isinstance(target, SlidingGlassBoxModel) and settings.max_new_tokens > self.longest:
            return self.how(target)
        return TOKEN.call(target, draft, ids, mask, settings, *rest)


def says_no(target):
    raise NotImplementedError("the window is full")


def runs_out(target):
    return [target][1]


def floats(target):
    return torch.zeros((2, 32))


@pytest.mark.parametrize("longest", [0, 4], ids=["at once", "when it comes to that"])
def test_a_cache_may_be_refused_and_nothing_else(longest, probe):
    def asked(how):
        subject = replace(TOKEN, name="full-window", call=FullWindow(how, longest))
        return probe(subject, ROLLBACK, "sliding-window")

    for how in (says_no, runs_out):
        assert "refuses a cache of this kind" in asked(how)
    assert asked(floats).verdict == "error"
