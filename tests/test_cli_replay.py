"""`specverify replay` on a certificate that a user's own rule was given."""

from pathlib import Path

import pytest

from specverify.certification.counterexamples.rules import smallest_round
from specverify.certification.exact_run import exact_cases, run_exact_case
from specverify.certification.registry import properties_of, unmet_need
from specverify.certification.run import certify
from specverify.cli import main
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.registry import load_subject

MODULE = '''
import torch

def rule(draft_tokens, draft_probs, target_probs, generator):
    """Accepts everything."""
    last = torch.multinomial(target_probs[:, -1], 1, generator=generator)
    return torch.cat([draft_tokens, last], 1)
'''
CASE = "exact/random-V3-K1-float64"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "replayed_rule.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    subject = load_subject("replayed_rule:rule", "rule")
    certificate = certify(
        subject, settings={"plain": SamplingSettings()}, tokens=600, exact=False, shrink=False
    )
    (case,) = (case for case in exact_cases(subject, ()) if case.id == CASE)
    properties = [p for p in properties_of("rule") if unmet_need(p, subject) is None]
    asked = [p for p in properties if p.evidence == "exact"]
    computed = run_exact_case(subject, case, asked, Budget(5e-7, certificate.tests), 0, 60.0)
    found = smallest_round(subject, "joint.round", 0, 60.0, 60.0)
    computed = computed.model_copy(update={"counterexample": found})
    whole = certificate.model_copy(update={"cases": (*certificate.cases, computed)})
    return whole.save(tmp_path / "mine.json")


def test_a_case_and_its_counterexample(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(written), CASE]) == 1
    said = capsys.readouterr()
    assert f"{CASE} of replayed_rule:rule: violated" in said.out
    assert "the same as in the certificate" in said.out
    assert "note:" not in said.err
    assert main(["replay", str(written), CASE, "--counterexample"]) == 1
    said = capsys.readouterr().out
    assert "Let p = (1/2, 1/2), q = (3/4, 1/4), K = 1" in said
    assert "However, the subject does so with probability 3/4." in said
    assert "the same as in the certificate" in said


def test_bad_usage_is_4_and_teaches(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(written), "exact/random-V3-K1-float46"]) == 4
    assert f"did you mean {CASE!r}?" in capsys.readouterr().err
    assert main(["replay", str(written.with_name("no.json")), CASE]) == 4
    assert "cannot read a certificate" in capsys.readouterr().err
    assert main(["replay", str(written), CASE, "--subject", "reference"]) == 4
    assert "not a rule" in capsys.readouterr().err
