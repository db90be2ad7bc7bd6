"""Scripts that reproduce a counterexample: they run alone, and tell right from wrong."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import JsonValue

from specverify.certification.certificate import (
    CaseRecord,
    CounterexampleRecord,
    OutcomeRecord,
)
from specverify.models.protocol import LanguageModel
from specverify.models.table import TableModel
from specverify.reporting.script import import_path, script, script_name
from specverify.reporting.script_decoders import STAND_ALONE
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN as REFERENCE

RULE = """
import torch

def {name}(draft_tokens, draft_probs, target_probs, generator):
    index = draft_tokens[..., None]
    ratio = target_probs[:, :-1].gather(2, index) / draft_probs.gather(2, index)
    coins = torch.rand(draft_tokens.shape, dtype=target_probs.dtype, generator=generator)
    n = (coins < {test}).long().cumprod(1).sum(1)
    residual = {residual}
    weights = torch.cat([residual, target_probs[:, -1:]], 1)[range(len(n)), n]
    last = torch.multinomial(weights, 1, generator=generator)
    out = torch.cat([draft_tokens, last], 1).scatter(1, n[:, None], last)
    return out.masked_fill(torch.arange(out.shape[1]) > n[:, None], -1)
"""
RIGHT = "(target_probs[:, :-1] - draft_probs).clamp(min=0)"
RULES = {
    "right": RULE.format(name="right", test="ratio[..., 0]", residual=RIGHT),
    "unsubtracted": RULE.format(
        name="unsubtracted", test="ratio[..., 0]", residual="target_probs[:, :-1]"
    ),
    "accepting": RULE.format(name="accepting", test="2.0", residual=RIGHT),
}
ROUND = CounterexampleRecord(
    kind="round",
    property="joint.round",
    inputs={
        "num_draft_tokens": 1,
        "dtype": "float64",
        "one_hot": False,
        "target": [[[0.5, 0.5]], [[0.5, 0.5], [0.25, 0.75]]],
        "draft": [[[0.25, 0.75]]],
    },
    outcomes=tuple(
        OutcomeRecord(what=str(t), tokens=t, observed=0.25, expected=mass)
        for t, mass in {(0, 0): 0.25, (0, 1): 0.25, (1, 0): 0.125, (1, 1): 0.375}.items()
    ),
    total_variation=0.125,
    tolerance=1e-12,
    text='Let p = (1/2, 1/2). Then "it" goes wrong.',
)
WORLD = CounterexampleRecord(
    kind="world",
    property="joint.run",
    inputs={
        "num_draft_tokens": 1,
        "order": 1,
        "target": [[0.5, 0.5], [0.75, 0.25], [0.5, 0.5]],
        "draft": [[0.25, 0.75], [0.5, 0.5], [0.25, 0.75]],
        "prompts": [[0]],
        "settings": {"max_new_tokens": 2},
    },
    outcomes=tuple(
        OutcomeRecord(what=str(t), tokens=t, observed=0.25, expected=mass)
        for t, mass in {(0, 0): 0.25, (0, 1): 0.25, (1, 0): 0.375, (1, 1): 0.125}.items()
    ),
    total_variation=0.125,
    tolerance=1e-12,
    text="Let it be.",
)


ROW = CounterexampleRecord(
    kind="transform",
    property="transforms.equals_reference",
    inputs={
        "reference": "top_p",
        "parameters": {"top_p": 0.75},
        "history": [0],
        "logits": [1.0, 0.0, "-Infinity"],
        "dtype": "float32",
    },
    outcomes=tuple(
        OutcomeRecord(what=str(t), tokens=(t,), observed=0.5, expected=mass)
        for t, mass in enumerate((0.7310585786300049, 0.2689414213699951, 0.0))
    ),
    total_variation=0.25,
    tolerance=1e-6,
    text="Let top_p = 3/4.",
)
TRANSFORMS = """
import torch

class right:
    kept = 0.0

    def __init__(self, top_p):
        self.top_p = top_p

    def __call__(self, input_ids, logits):
        descending, order = logits.sort(dim=-1, descending=True)
        before = descending.softmax(-1).cumsum(-1) - (1 - self.kept) * descending.softmax(-1)
        removed = before >= self.top_p
        removed[..., 0] = False
        return logits.masked_fill(removed.scatter(-1, order, removed), -torch.inf)

class crossing(right):
    kept = 1.0

class leaking(right):
    def __call__(self, input_ids, logits):
        return super().__call__(input_ids, logits).clamp(min=-30.0)
"""
DECODER = """
from types import SimpleNamespace
import torch

def decode(target, draft, prompt_ids, attention_mask, settings, num_draft_tokens, generator):
    sessions = target.start(prompt_ids, attention_mask), draft.start(prompt_ids, attention_mask)
    draw = lambda weights: torch.multinomial(weights, 1, generator=generator)
    last, tokens = prompt_ids[:, -1:], []
    while len(tokens) < settings.max_new_tokens:
        q = sessions[1].extend(last)[:, -1].softmax(-1)
        guess = draw(q)
        sessions[1].extend(guess)
        p = sessions[0].extend(torch.cat([last, guess], 1)).softmax(-1)
        ratio = p[0, 0, guess] / q[0, guess]
        if {accept}:
            last = draw(p[:, 1])
            tokens += [int(guess), int(last)]
        else:
            last = draw((p[:, 0] - q).clamp(min=0))
            tokens.append(int(last))
            for session in sessions:
                session.roll_back(session.lengths - 1)
    return SimpleNamespace(tokens=torch.tensor([tokens[:settings.max_new_tokens]]))
"""
DECODERS = {
    "right": DECODER.format(accept="torch.rand((), generator=generator) < ratio"),
    "accepting": DECODER.format(accept="True"),
}
LOOKING = """
import torch

def look(target, draft, prompt_ids, attention_mask, settings, num_draft_tokens, generator):
    session = target.start(prompt_ids, attention_mask)
    print(session.lengths.tolist(), session.passes - 1)
    found = session.extend(torch.tensor([[0], [-1]]), torch.tensor([1, 0]))
    print([session.model.logits.exp()[row].tolist() for row in (1, 0)])
    print(session.lengths.tolist() if found.shape == (2, 1, 2) else found.shape)
    session.roll_back(torch.tensor([0, 1]))
    print(session.lengths.tolist(), session.passes)
    settings = settings.model_copy(update={"top_k": None})
    print(settings.max_new_tokens, settings.stop_token_ids, settings.logit_bias,
          settings.temperature, settings.greedy, settings.allowed_tokens)
    cold = settings.model_copy(update={"temperature": 0.0})
    print(cold.temperature, cold.greedy, settings.temperature)
    raise SystemExit(0)
"""


def run(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "counterexample.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "counterexample.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "code"), [("right", 0), ("unsubtracted", 1), ("accepting", 1)])
def test_a_rule(name: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RULES[name], encoding="utf-8")
    subject = Subject(f"mine:{name}", "rule", print, Capabilities())
    source = script(ROUND, subject, f"mine:{name}")
    assert source is not None
    assert "specverify" not in source.partition("import sys")[2]
    done = run(source, tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("WRONG" in done.stdout) == bool(code)
    assert "observed" in done.stdout


def test_a_rule_of_one_row_a_call_without_a_generator(tmp_path: Path) -> None:
    text = RULES["unsubtracted"].replace(", generator)", ")").replace(", generator=generator", "")
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    declared = Capabilities(batch=False, generator=False)
    source = script(ROUND, Subject("x", "rule", print, declared), "mine:unsubtracted")
    assert source is not None
    done = run(source.replace("ROUNDS = 20_000", "ROUNDS = 3_000"), tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr


def test_a_right_decoder(tmp_path: Path) -> None:
    path = import_path(REFERENCE)
    assert path == "specverify.subjects.reference:TOKEN"
    source = script(WORLD, REFERENCE, path)
    assert source is not None
    done = run(source, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


ALONE = "raise ImportError('no script may need specverify')"


@pytest.mark.parametrize(("name", "code"), [("right", 0), ("accepting", 1)])
def test_a_decoder_without_specverify(name: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DECODERS[name], encoding="utf-8")
    (tmp_path / "specverify.py").write_text(ALONE, encoding="utf-8")
    declared = Capabilities(models=frozenset({"language_model"}))
    source = script(WORLD, Subject("mine:decode", "decoder", print, declared), "mine:decode")
    assert source is not None
    done = run(source, tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("WRONG" in done.stdout) == bool(code)


def test_a_decoder_of_transformers_models_says_what_it_needs() -> None:
    source = script(WORLD, Subject("mine:decode", "decoder", print), "mine:decode")
    assert source is not None
    docstring, _, rest = source.partition("import importlib")
    assert "Needs torch, transformers and specverify beside the" in docstring
    assert "from specverify.models.glass_box import GlassBoxModel" in rest


@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_table_of_a_script_is_the_one_that_was_decoded(order: int) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(STAND_ALONE["models"].partition('if "specverify" in')[0], names)
    table = TableModel.random(3, order, seed=1)
    copy = names["Table"](table.logits, order)
    prompts, mask = torch.tensor([[0, 2], [1, 0]]), torch.tensor([[0, 1], [1, 1]])
    sessions = table.start(prompts, mask), copy.start(prompts, mask)
    for block, counts, lengths in (
        ([[2, 1], [0, -1]], [2, 1], [1, 2]),
        ([[0, 2], [1, 1]], None, [3, 2]),
        ([[-1], [-1]], [0, 0], [0, 1]),
    ):
        read = torch.tensor(counts) if counts else None
        real, own = (session.extend(torch.tensor(block), read) for session in sessions)
        shown = torch.arange(len(block[0])) < torch.tensor(counts or [2, 2])[:, None]
        assert torch.equal(real[shown], own[shown])
        for session in sessions:
            session.roll_back(torch.tensor(lengths))
        assert torch.equal(sessions[0].lengths, sessions[1].lengths)
        assert sessions[0].passes == sessions[1].passes
    with pytest.raises(ValueError, match="cannot roll back"):
        sessions[1].roll_back(torch.tensor([9, 0]))
    with pytest.raises(ValueError, match="outside the vocabulary"):
        sessions[1].extend(torch.tensor([[3], [0]]))
    assert isinstance(copy, LanguageModel)


def test_rows_of_a_batch_and_all_settings(tmp_path: Path) -> None:
    """Rows of different length; the subject prints what it is handed."""
    (tmp_path / "mine.py").write_text(LOOKING, encoding="utf-8")
    (tmp_path / "specverify.py").write_text(ALONE, encoding="utf-8")
    settings: dict[str, JsonValue] = {
        "max_new_tokens": 2,
        "stop_token_ids": [1],
        "logit_bias": {"0": "-Infinity"},
    }
    record = WORLD.model_copy(
        update={"inputs": {**WORLD.inputs, "prompts": [[0], [1, 0]], "settings": settings}}
    )
    declared = Capabilities(models=frozenset({"language_model"}))
    source = script(record, Subject("mine:look", "decoder", print, declared), "mine:look")
    assert source is not None
    done = run(source, tmp_path)
    assert done.stdout.splitlines()[:6] == [
        "[0, 1] 0",
        "[[0.75, 0.25], [0.5, 0.5]]",
        "[1, 1]",
        "[0, 1] 2",
        "2 (1,) {0: -inf} 1.0 False None",
        "0.0 True 1.0",
    ], done.stdout + done.stderr


@pytest.mark.parametrize(("name", "code"), [("right", 0), ("crossing", 1), ("leaking", 1)])
def test_a_transform(name: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRANSFORMS, encoding="utf-8")
    (tmp_path / "specverify.py").write_text(ALONE, encoding="utf-8")
    source = script(ROW, Subject(f"mine:{name}", "transform", print), f"mine:{name}")
    assert source is not None
    assert "specverify" not in source
    done = run(source, tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("WRONG" in done.stdout) == bool(code)
    assert "observed" in done.stdout


def test_parameters_are_as_a_factory_takes_them() -> None:
    inputs: dict[str, JsonValue] = {
        "reference": "logit_bias",
        "parameters": {"bias": {"0": 1.5, "3": -2.0}},
        "history": [0],
        "logits": [0.0, 0.0, "-Infinity", 0.0],
        "dtype": "float32",
    }
    record = ROW.model_copy(update={"inputs": inputs})
    source = script(record, Subject("mine:bias", "transform", print), "mine:bias")
    assert source is not None
    assert "\"parameters\": {'bias': {0: 1.5, 3: -2.0}}" in source


def test_what_cannot_be_run_has_no_script() -> None:
    assert script(ROUND.model_copy(update={"kind": "cell"}), REFERENCE, "a:b") is None


def test_where_a_subject_is_imported_from() -> None:
    def local() -> None: ...

    assert import_path(Subject("mine.rules:verify", "rule", print)) == "mine.rules:verify"
    assert import_path(Subject("nameless", "rule", local)) is None
    assert import_path(Subject("run", "rule", run)) == f"{run.__module__}:run"


def test_file_names_hold_on_any_system() -> None:
    case = CaseRecord(id="exact/random V3", verdict="violated")
    assert script_name("mine-toy-seed0.json", case) == "mine-toy-seed0-exact-random-V3.py"
