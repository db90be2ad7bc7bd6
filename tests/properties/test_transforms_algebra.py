"""Chapter transforms: laws of a single transform hold for what is right, and for nothing else."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers.generation import logits_process as hf

from specverify.certification.certificate import CaseRecord
from specverify.certification.probes.constraint_laws import BEFORE_LARGE
from specverify.certification.probes.run import probes_of
from specverify.certification.probes.transform_laws import LAWS
from specverify.certification.probes.transform_rows import Batch, batch, decided, expected
from specverify.certification.registry import properties_of
from specverify.certification.transform_case import PARAMETERS, transform_cases
from specverify.certification.transform_evidence import run_transform
from specverify.fixtures.lookalikes.transforms_algebra import LOOKALIKES
from specverify.fixtures.mutants.transforms_algebra import MUTANTS
from specverify.properties.transforms import equals_reference
from specverify.subjects.protocols import Capabilities, Subject
from specverify.transforms import REFERENCE, TopK
from tests.transformers_constraints import CONSTRAINTS

TRANSFORMERS = {
    "temperature": hf.TemperatureLogitsWarper,
    "top_k": hf.TopKLogitsWarper,
    "top_p": hf.TopPLogitsWarper,
    "min_p": hf.MinPLogitsWarper,
    "typical_p": lambda typical_p: hf.TypicalLogitsWarper(typical_p),
    "epsilon": hf.EpsilonLogitsWarper,
    "eta": hf.EtaLogitsWarper,
    "repetition_penalty": hf.RepetitionPenaltyLogitsProcessor,
    "no_repeat_ngram": hf.NoRepeatNGramLogitsProcessor,
    "bad_words": lambda bad_words: hf.NoBadWordsLogitsProcessor(bad_words, eos_token_id=None),
    "logit_bias": lambda bias: hf.SequenceBiasLogitsProcessor([[[t], b] for t, b in bias.items()]),
    **CONSTRAINTS,
}
CHAPTER = [
    p for p in properties_of("transform") if p.chapter == "transforms" and p.evidence == "probed"
]
PROBES = probes_of(CHAPTER)
Tried = Callable[..., CaseRecord | str]

REFUSED = {"typical_p": "transforms.neutral"}
"""What transformers refuses to be built with."""


def tried(subject: Subject, probe: Tried, seed: int = 0) -> dict[str, CaseRecord | str]:
    """Records by case, or why there is none."""
    applicable = [p for p in PROBES if p.asked.needs(subject) is None]
    return {
        f"{p.asked.id}/{p.input}": probe(subject, p.asked.id, p.input, seed) for p in applicable
    }


def violated(subject: Subject, probe: Tried) -> set[str]:
    records = tried(subject, probe).values()
    return {
        test.property
        for record in records
        if isinstance(record, CaseRecord)
        for test in record.tests
        if test.decision == "violated"
    }


def assert_calm(records: dict[str, CaseRecord | str], *, refused: str = "") -> None:
    """All preserved without a finding, but for cases that say why they do not apply."""
    for id, record in records.items():
        if isinstance(record, str):
            kept_out = "keeps or bans whatever its strictness" in record or "refuses" in record
            assert kept_out, (id, record)
            assert "refuses" not in record or (refused and refused in id), (id, record)
        else:
            assert record.verdict == "preserved", (id, [t.detail for t in record.tests])
            assert record.findings == (), id


def test_every_reference_has_its_laws():
    assert set(LAWS) == set(PARAMETERS)


@pytest.mark.parametrize("reference", PARAMETERS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_references_obey_their_laws(reference, seed, probe):
    subject = Subject("mine", "transform", REFERENCE[reference], reference=reference)
    assert_calm(tried(subject, probe, seed))


@pytest.mark.parametrize("reference", TRANSFORMERS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_transformers_own_obey_them(reference, seed, probe):
    subject = Subject("theirs", "transform", TRANSFORMERS[reference], reference=reference)
    assert_calm(tried(subject, probe, seed), refused=REFUSED.get(reference, ""))


def differs_from_reference(subject: Subject) -> bool:
    for case in transform_cases(subject.reference):
        evidence = run_transform(subject, case, 0, 60.0)
        if equals_reference(evidence, 1e-6).violations:
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_mutants_are_caught_by_what_should_catch_them(mutant, probe):
    caught = violated(mutant.subject, probe)
    if "transforms.equals_reference" in mutant.caught_by and differs_from_reference(mutant.subject):
        caught.add("transforms.equals_reference")
    assert mutant.caught_by <= caught


def test_every_law_has_a_mutant_that_breaks_it():
    caught = set().union(*(mutant.caught_by for mutant in MUTANTS))
    assert caught >= {p.id for p in CHAPTER}


ONLY_HERE = (
    "logits-changed-in-place",
    "history-changed-in-place",
    "results-remembered-without-copy",
    "one-row-shortcut",
    "temperature-raised",
    "zero-is-missing",
    "tiny-is-off",
    "thousand-candidates",
    "nothing-above-sort-limit",
    "counts-in-bytes",
    "counts-in-logits-dtype",
    "half-widths-pass",
    "everything-removed",
)


@pytest.mark.parametrize("id", ONLY_HERE)
def test_some_are_right_on_all_that_is_compared_with_the_reference(id):
    """So that these laws are no repetition of `transforms.equals_reference`."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.id == id]
    assert not differs_from_reference(mutant.subject)


@pytest.mark.parametrize("lookalike", LOOKALIKES, ids=lambda lookalike: lookalike.id)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_lookalikes_are_not_accused(lookalike, seed, probe):
    refused = "transforms.dtypes" if lookalike.id == "only-float32" else ""
    assert_calm(tried(lookalike.subject, probe, seed), refused=refused)


def test_a_width_that_is_refused_is_not_applicable(probe):
    (lookalike,) = [lookalike for lookalike in LOOKALIKES if lookalike.id == "only-float32"]
    said = probe(lookalike.subject, "transforms.dtypes", "bfloat16")
    assert said.startswith("refuses logits of bfloat16: ")
    assert probe(lookalike.subject, "transforms.dtypes", "float32").verdict == "preserved"


def test_what_crashes_is_an_error_and_what_returns_nan_is_violated(probe):
    def crashes(top_k):
        def transform(ids, logits):
            raise ZeroDivisionError

        return transform

    def undefined(top_k):
        return lambda ids, logits: TopK(top_k)(ids, logits) * math.nan

    record = probe(Subject("a", "transform", crashes, reference="top_k"), "transforms.shift", "up")
    assert record.verdict == "error"
    assert "ZeroDivisionError" in record.reason
    for id in ("transforms.shift", "transforms.idempotent", "transforms.dtypes"):
        subject = Subject("b", "transform", undefined, reference="top_k")
        input = next(p.input for p in PROBES if p.asked.id == id)
        record = probe(subject, id, input)
        assert record.verdict == "violated"
        assert "is NaN" in record.tests[0].detail


def test_a_violation_shows_the_row_and_the_numbers(probe):
    (mutant,) = [mutant for mutant in MUTANTS if mutant.id == "tiny-is-off"]
    (test,) = probe(mutant.subject, "transforms.monotone", "random").tests
    assert "with {'top_p': 0.2}: " in test.detail
    assert "go that {'top_p': 0.05} keeps" in test.detail
    (mutant,) = [mutant for mutant in MUTANTS if mutant.id == "first-id-kept"]
    (test,) = probe(mutant.subject, "transforms.order", "random").tests
    assert "on logits [" in test.detail
    assert "come out with [" in test.detail


def test_laws_that_do_not_hold_are_not_asked_for():
    (shift,) = [p for p in CHAPTER if p.id == "transforms.shift"]
    penalty = Subject(
        "p", "transform", REFERENCE["repetition_penalty"], reference="repetition_penalty"
    )
    assert shift.needs(penalty) == "repetition_penalty sees where the logits' zero is"
    nameless = Subject("n", "transform", REFERENCE["top_k"])
    assert "None is none" in str(shift.needs(nameless))
    (apart,) = [p for p in CHAPTER if p.id == "transforms.batch"]
    alone = Capabilities(batch=False)
    single = Subject("s", "transform", REFERENCE["top_k"], alone, reference="top_k")
    assert apart.needs(single) == "takes one row a call"


BROKEN = {
    "idempotent": ("transforms.idempotent", {"idempotent": True}, lambda laws: laws.idempotent),
    "cooled": ("transforms.cooling", {"cooled": lambda same, _: same}, lambda laws: laws.cooled),
    "shift": ("transforms.shift", {"shift": True}, lambda laws: laws.shift),
    "from_the_top": (
        "transforms.order",
        {"from_the_top": True},
        lambda laws: laws.effect != "truncates" or laws.from_the_top,
    ),
}
"""A property, a claim that the table does not make for all, and where it does or need not."""


@pytest.mark.parametrize("law", BROKEN)
def test_laws_that_the_table_does_not_claim_do_not_hold(law, monkeypatch, probe):
    property, claim, known = BROKEN[law]
    inputs = [p.input for p in PROBES if p.asked.id == property]
    for reference in [name for name, laws in LAWS.items() if not known(laws)]:
        monkeypatch.setitem(LAWS, reference, replace(LAWS[reference], **claim))
        subject = Subject("mine", "transform", REFERENCE[reference], reference=reference)
        verdicts = {probe(subject, property, input).verdict for input in inputs}
        assert "violated" in verdicts, reference


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reference", [name for name, laws in LAWS.items() if laws.masks])
def test_enough_rows_are_decided_and_cut(reference, dtype):
    """Rows that no rounding decides are left, and the transform does something to them."""
    rows = batch("random", 0)
    values = Batch(rows.ids, rows.logits.to(dtype).double())
    cut = 0
    for parameters in PARAMETERS[reference]:
        clear = decided(reference, parameters, values, torch.finfo(dtype).eps)
        kept = expected(reference, parameters, values) > -torch.inf
        cut += int((clear & ~kept.all(-1)).sum())
    assert cut >= 8


def test_rows_are_what_they_are_called():
    assert torch.equal(batch("random", 3).logits, batch("random", 3).logits)
    assert not torch.equal(batch("random", 3).logits, batch("random", 4).logits)
    assert (batch("one-token", 0).logits > -math.inf).sum(1).unique().tolist() == [1]
    assert batch("equal", 0).logits.unique().tolist() == [0.0]
    assert batch("long-history", 0).ids.shape[1] == 700
    assert batch("short-history", 0).ids.shape[1] == 1
    assert batch("small-vocabulary", 0).logits.shape[1] == 6
    assert int(batch("small-vocabulary", 0).ids.max()) < 6
    large = batch("large-vocabulary", 0)
    assert large.ids.shape[1] == BEFORE_LARGE
    assert large.logits.shape[1] == 50_000
    assert float(large.logits.softmax(-1)[:, large.ids[0].unique()].sum(1).min()) > 0.2
    with pytest.raises(ValueError, match="no rows are called 'tiny'"):
        batch("tiny", 0)
