"""The reference decoder with drafts that need no draft model, as subjects."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import specverify
from specverify.errors import SubjectError
from specverify.models.pairs import load_pair
from specverify.models.transformers_model import TransformersModel
from specverify.settings import SamplingSettings
from specverify.subjects.calling import call_decoder
from specverify.subjects.protocols import Subject
from specverify.subjects.reference_drafters import EARLY_EXIT, PROMPT_LOOKUP
from specverify.verification import TOKEN

torch.set_num_threads(1)
FILTERED = {"filtered": SamplingSettings(max_new_tokens=6, temperature=0.8, top_k=20, top_p=0.9)}


def generate(
    subject: Subject, models: tuple[Any, Any], prompts: tuple[tuple[int, ...], ...], **fields: Any
) -> Any:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    settings = SamplingSettings(**{"max_new_tokens": 7, **fields})
    return call_decoder(subject, *models, ids, mask, settings, 3, torch.Generator().manual_seed(0))


def depth_used(monkeypatch: pytest.MonkeyPatch, models: tuple[Any, Any]) -> int:
    from specverify.models import early_exit

    used: list[int] = []
    original = early_exit.EarlyExit.__init__

    def watch(self: Any, target: TransformersModel, layers: int) -> None:
        used.append(layers)
        original(self, target, layers)

    monkeypatch.setattr(early_exit.EarlyExit, "__init__", watch)
    generate(EARLY_EXIT, models, ((5, 6),), max_new_tokens=2)
    return used[-1]


@pytest.mark.parametrize("model_class", ["language_model", "transformers"])
@pytest.mark.parametrize("subject", [EARLY_EXIT, PROMPT_LOOKUP])
def test_both_decode_both_kinds_of_the_trained_pair(subject: Subject, model_class: Any) -> None:
    pair = load_pair("trained")
    # A text that repeats, so that prompt lookup has something to propose.
    call = generate(subject, pair.open(model_class), (*pair.prompts, pair.prompts[0] * 3))
    assert call.findings == ()
    assert call.value.tokens.shape == (len(pair.prompts) + 1, 7)
    assert call.value.drafted.max() == 3
    assert call.value.accepted.max() > 0


@pytest.mark.parametrize("subject", [EARLY_EXIT, PROMPT_LOOKUP])
def test_greedily_they_emit_what_the_target_does(subject: Subject) -> None:
    pair = load_pair("trained")
    target, draft = pair.open("language_model")
    tokens = generate(subject, (target, draft), pair.prompts, temperature=0.0).value.tokens
    for prompt, row in zip(pair.prompts, tokens.tolist(), strict=True):
        history = list(prompt)
        for token in row:
            logits = target.start(torch.tensor([history])).extend(torch.tensor([history[-1:]]))
            assert token == int(logits[0, 0].argmax())
            history.append(token)


def test_early_exit_drafts_with_half_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert depth_used(monkeypatch, load_pair("trained").open("transformers")) == 2


@pytest.mark.parametrize("depth", [1, 3])
def test_early_exit_goes_as_deep_as_a_draft_made_of_the_target(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    target, _ = load_pair("trained").open("transformers")
    draft = TransformersModel(target).early_exit(depth).model
    assert depth_used(monkeypatch, (target, draft)) == depth


def test_a_copy_of_the_target_is_not_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = load_pair("trained")
    target, other = pair.open("transformers")[0], pair.open("transformers")[0]
    draft = TransformersModel(other).early_exit(3).model
    assert depth_used(monkeypatch, (target, draft)) == 2


def test_early_exit_says_that_tables_have_no_layers() -> None:
    models = load_pair("toy").open("language_model")
    with pytest.raises(SubjectError, match=r"TableModel, which has no layers .* --pair trained"):
        generate(EARLY_EXIT, models, ((0, 1),))


def test_prompt_lookup_runs_on_tables() -> None:
    pair = load_pair("toy")
    call = generate(PROMPT_LOOKUP, pair.open("language_model"), ((0, 1, 0, 1, 0, 1), (2,)))
    assert call.findings == ()
    assert call.value.tokens.shape == (2, 7)


@pytest.mark.parametrize("name", ["reference-early-exit", "reference-prompt-lookup"])
def test_what_they_declare(name: str) -> None:
    declared = {subject.name: subject for subject in (EARLY_EXIT, PROMPT_LOOKUP)}[name].capabilities
    assert declared.algorithm == "token"
    assert not declared.standard_draft


CERTIFIED = [
    pytest.param(PROMPT_LOOKUP, "toy", id="lookup"),
    pytest.param(EARLY_EXIT, "trained", id="early exit", marks=pytest.mark.slow),
]


def certified(subject: Subject, pair: str) -> str:
    certificate = specverify.certify(
        subject, pair, settings=FILTERED, tokens=1000, exact=False, seed=3
    )
    return certificate.verdict


@pytest.mark.parametrize(("subject", "pair"), CERTIFIED)
def test_certification_finds_nothing(subject: Subject, pair: str) -> None:
    # Too few tokens for a bound: what is asked is that nothing is rejected.
    assert certified(subject, pair) == "inconclusive"


def believe(
    draft_tokens: Tensor, draft_probs: Any, target_probs: Tensor, generator: Any, counts: Tensor
) -> Any:
    """Accept every draft token, as if the target were sure of it."""
    sure = torch.nn.functional.one_hot(draft_tokens.clamp(min=0), target_probs.shape[2])
    drafted = torch.arange(draft_tokens.shape[1]) < counts[:, None]
    probs = target_probs.clone()
    probs[:, :-1] = torch.where(drafted[:, :, None], sure.to(probs), probs[:, :-1])
    return TOKEN(draft_tokens, draft_probs, probs, generator, counts)


@pytest.mark.parametrize(("subject", "pair"), CERTIFIED)
def test_certification_finds_drafts_that_are_believed(
    monkeypatch: pytest.MonkeyPatch, subject: Subject, pair: str
) -> None:
    rule = SimpleNamespace(unchecked=lambda: believe)
    monkeypatch.setattr("specverify.verification.get_verification", lambda _: rule)
    assert certified(subject, pair) == "violated"


@pytest.mark.slow
def test_exact_evidence_is_not_applicable_to_early_exit_and_no_error():
    certificate = specverify.certify(
        "reference-early-exit", "trained", settings={"plain": SamplingSettings()}, tokens=300
    )
    assert certificate.verdict == "inconclusive", certificate.reason
    unmet = {entry.property: entry.reason for entry in certificate.not_applicable}
    assert "tiny models" in unmet["joint.run"]
    assert not any(case.small for case in certificate.cases)
