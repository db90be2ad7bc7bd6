"""Scripts that reproduce a counterexample: they run alone, and tell right from wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from specverify.certification.certificate import (
    CaseRecord,
    CounterexampleRecord,
    OutcomeRecord,
)
from specverify.reporting.script import import_path, script, script_name
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
