import json
import subprocess
import sys

import numpy as np
import pytest

from specverify import cli
from specverify.certification.calibration_library import Detection, Detections
from specverify.certification.calibration_null import BLOCK, SETTINGS, NullRun, NullRuns
from specverify.cli_calibrate import calibrate


@pytest.fixture(autouse=True)
def added(monkeypatch):
    monkeypatch.setitem(cli.cli.commands, "calibrate", calibrate)


def run(capsys, *argv):
    code = cli.main(["calibrate", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def null(monkeypatch):
    """Null runs whose ln E is as given, and an interrupt at a block."""

    def make(log_e=0.0, interrupted_at=None):
        def block(self, number):
            if number == interrupted_at:
                raise KeyboardInterrupt
            names = tuple(SETTINGS)
            return [
                NullRun(names[i % 2], {"joint.every_token": np.array([log_e])}, {}, 1)
                for i in range(BLOCK)
            ]

        monkeypatch.setattr(NullRuns, "__call__", block)

    return make


@pytest.fixture
def library(monkeypatch):
    """Three mutants, one of them missed."""

    def make(missed=None, interrupted_at=None):
        def one(self, index):
            if index == interrupted_at:
                raise KeyboardInterrupt
            return [Detection(f"m{index}", self.seed, index != missed, (), 10, 20, "")]

        monkeypatch.setattr(Detections, "controls", [None, None, None])
        monkeypatch.setattr(Detections, "__call__", one)

    return make


def test_null_runs_of_the_reference(capsys):
    code, out, err = run(capsys, "--only", "null", "--runs", "20")
    assert (code, err) == (0, "")
    assert "joint.every_token" in out
    assert "reported only" in out
    assert "mutant" not in out
    assert "false alarms within limits" in out


def test_all_is_well(capsys, null, library):
    null()
    library()
    code, out, _ = run(capsys, "--seed", "5")
    assert code == 0
    assert "500" in out
    assert "3 of 3 mutants caught" in out


def test_too_many_false_alarms(capsys, null):
    null(log_e=3.0)
    code, out, _ = run(capsys, "--only", "null", "--runs", "30")
    assert code == 1
    assert "TOO HIGH" in out


def test_a_mutant_is_missed(capsys, library):
    library(missed=1)
    code, out, _ = run(capsys, "--only", "library")
    assert code == 1
    assert "MISSED: m1" in out


def test_json(capsys, null, library):
    null()
    library(missed=2)
    code, out, _ = run(capsys, "--json", "--runs", "25", "--seeds", "2", "--seed", "4")
    content = json.loads(out)
    assert code == 1
    assert content["null"][0]["runs"] == 25
    assert len(content["library"]) == 6
    assert content["seed"] == 4


def test_an_interrupt_prints_what_was_computed(capsys, null, library):
    null(interrupted_at=3)
    library()
    code, out, _ = run(capsys, "--runs", "100")
    assert code == 130
    assert "30" in out
    assert "mutant" not in out
    assert "interrupted" in out

    null()
    library(interrupted_at=2)
    code, out, _ = run(capsys)
    assert code == 130
    assert "2 of 2 mutants caught" in out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--runs", "19"], "give at least 20"),
        (["--runs", "0"], "--runs 0 is too few"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--seed", "-1"], "got -1"),
        (["--seed", str(2**63)], f"got {2**63}"),
        (["--seed", str(2**63 - 1), "--seeds", "2"], "the last of --seeds too"),
        (["--runs", str(10**30)], "--runs is at most 10,000,000"),
        (["--seeds", "10000001"], "--seeds is at most 10,000,000"),
        (["--jobs", "0"], "--jobs is a number of processes"),
        (["--only", "library", "--runs", "50"], "--only library leaves out"),
        (["--only", "null", "--seeds", "2"], "--only null leaves out"),
        (["--only", "nul"], "nul"),
        (["--runs", "many"], "many"),
    ],
)
def test_nonsense_is_refused(capsys, argv, named):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (4, "")
    assert named in err


def test_nothing_heavy_is_imported_at_load():
    code = (
        "import sys, specverify.cli_calibrate; "
        "print(sorted({'numpy', 'scipy', 'rich', 'torch', 'pydantic'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
