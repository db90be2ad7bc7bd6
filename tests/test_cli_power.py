import json
import subprocess
import sys

import pytest

from specverify import cli


def run(capsys, *argv):
    code = cli.main(["power", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_small_vocabulary(capsys):
    code, out, err = run(capsys, "--vocab", "8", "--tv", "0.005")
    assert (code, err) == (0, "")
    assert "predictions" in out
    assert "5,523,726" in out
    assert "at 1" not in out
    assert "`preserved` asks" not in out


def test_a_large_vocabulary_says_what_is_asked_instead(capsys):
    code, out, _ = run(capsys, "--vocab", "49152", "--tv", "0.005", "--tokens", "1000000")
    assert code == 0
    assert "at 1,000,000 tokens" in out
    assert "`preserved` asks for the half-space bound" in " ".join(out.split())


def test_json_is_the_same(capsys):
    argv = ("--vocab", "64", "--tv", "0.01", "--tokens", "600000", "--tokens-per-run", "4")
    code, out, _ = run(capsys, *argv, "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["predictions"] is True
    table = run(capsys, *argv)[1]
    for row in plan["rows"]:
        each = {"tokens": 1, "first tokens": 4, "runs": 4}.get(row["unit"], 2)
        assert row["tokens_needed"] == row["needed"] * each
        assert f"{row['needed']:,}" in table
        assert row["meaning"]
        assert f"{row['gives']} {row['at_tokens']:.2g}" in table


def test_more_tests_cost_more_and_less_overlap_less(capsys):
    def needed(*argv):
        rows = json.loads(run(capsys, "--vocab", "8", "--tv", "0.01", "--json", *argv)[1])["rows"]
        return {row["method"]: row["needed"] for row in rows}

    few, many = needed("--tests", "1"), needed("--tests", "400")
    assert all(many[method] >= few[method] for method in few)
    assert many["mixture e-process"] > few["mixture e-process"]
    plain, little = needed("--overlap", "0.7"), needed("--overlap", "0.1")
    assert {m for m in plain if plain[m] != little[m]} == {"mixture e-process"}


def test_a_leak_that_cannot_be_is_explained(capsys):
    code, out, _ = run(capsys, "--vocab", "8", "--tv", "0.4", "--overlap", "0.7")
    assert code == 0
    assert "there is no leak of 0.4: even the draft itself is 0.3 away" in " ".join(out.split())
    assert "there is no leak" not in run(capsys, "--vocab", "8", "--tv", "0.2")[1]


def test_bits_that_cannot_be_are_explained(capsys):
    code, out, _ = run(capsys, "--vocab", "8", "--tv", "0.6", "--overlap", "0.1")
    assert code == 0
    assert "alike half of the time cannot be so too often by 0.6" in " ".join(out.split())
    assert "coins that are exactly 0" not in out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--vocab", "1", "--tv", "0.1"], "got 1"),
        (["--vocab", "8", "--tv", "0"], "got 0"),
        (["--vocab", "8", "--tv", "nan"], "got nan"),
        (["--vocab", "8", "--tv", "5"], "half a percent is 0.005"),
        (["--vocab", "8", "--tv", "1e-7"], "out of reach"),
        (["--vocab", "8", "--tv", "0.1", "--tokens", "0"], "--tokens must be at least 1"),
        (["--vocab", "8", "--tv", "0.1", "--overlap", "1"], "nothing can leak"),
        (["--vocab", "8", "--tv", "0.1", "--overlap", "-0.1"], "got -0.1"),
        (["--vocab", "8", "--tv", "0.1", "--alpha", "1"], "--alpha"),
        (["--vocab", "8", "--tv", "0.1", "--tests", "0"], "--tests"),
        (["--vocab", "8", "--tv", "0.1", "--tests", str(10**400)], "--tests is at most"),
        (["--vocab", "10000001", "--tv", "0.1"], "--vocab is at most 10,000,000"),
        (["--vocab", str(10**400), "--tv", "0.1"], "--vocab is at most 10,000,000"),
        (["--vocab", "8", "--tv", "0.1", "--alpha", "1e-301"], "--alpha of at least 1e-300"),
        (["--vocab", "8", "--tv", "0.1", "--alpha", "1e-320"], "--alpha of at least 1e-300"),
        (
            ["--vocab", "8", "--tv", "0.1", "--alpha", "1e-300", "--tests", "10000000"],
            "--alpha 1e-300 over --tests 10000000",
        ),
        (["--vocab", "8", "--tv", "0.1", "--tokens", str(10**400)], "--tokens is at most"),
        (["--vocab", "8", "--tv", "0.1", "--power", "1"], "--power"),
        (["--vocab", "8", "--tv", "0.1", "--tokens-per-run", "0"], "--tokens-per-run"),
        (["--tv", "0.1"], "--vocab"),
    ],
)
def test_nonsense_is_refused(capsys, argv, named):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (4, "")
    assert named in err


@pytest.mark.parametrize(
    "argv",
    [
        ["--vocab", "10000000", "--tv", "0.1"],
        ["--vocab", "8", "--tv", "0.1", "--alpha", "1e-300", "--tests", "100000"],
        ["--vocab", "8", "--tv", "0.1", "--tests", "1000000000"],
        ["--vocab", "8", "--tv", "0.1", "--tokens", "1000000000000"],
    ],
)
def test_the_largest_numbers_are_answered(capsys, argv):
    code, out, err = run(capsys, *argv)
    assert (code, err) == (0, "")
    assert "predictions" in out


def test_nothing_heavy_is_imported_at_load():
    code = (
        "import sys, specverify.cli_power; "
        "print(sorted({'numpy', 'scipy', 'rich', 'torch'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
