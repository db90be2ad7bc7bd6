"""`specverify exact`: verdicts, exit codes, refusals, progress that is kept."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specverify import cli, cli_exact
from specverify.exact.large import PositionResult
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.subjects import registry
from specverify.subjects.protocols import Capabilities, Subject
from specverify.verification import get_verification

MUTANTS = {mutant.id: mutant.subject for mutant in RULE_MUTANTS}
CLEAN = PositionResult(1, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, (), 0.0, 0.7, 0.0, {}, (), (), 2)


def right(tokens: Any, q: Any, p: Any, generator: Any) -> Any:
    return get_verification("token")(tokens, q, p, generator).tokens


RIGHT = Subject("right", "rule", right)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for subject in (RIGHT, *MUTANTS.values()):
        monkeypatch.setitem(registry._REGISTERED, subject.name, subject)
    return


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(["exact", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


class TestToyPair:
    def test_a_right_rule_is_preserved(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = run(
            capsys,
            *("right", "--pair", "toy", "--contexts", "2", "--num-draft-tokens", "2"),
            *("--prefixes", "2", "--dtype", "float64"),
        )
        assert code == 0
        labels = [line.split(":")[0] for line in out.splitlines()]
        assert labels[:3] == [
            "context 1, position 1",
            "context 1, position 2, block 1",
            "context 1, position 2, block 2",
        ]
        assert labels[3].startswith("context 2")
        assert out.splitlines()[-1].startswith("PRESERVED  right · pair toy")

    @pytest.mark.parametrize("name", ["residual-not-subtracted", "bonus-previous-row"])
    def test_a_mutant_is_violated(self, capsys: pytest.CaptureFixture[str], name: str) -> None:
        code, out, _ = run(capsys, name, "--pair", "toy")
        assert code == 1
        assert "VIOLATED" in out

    def test_a_rule_that_takes_one_row_and_no_generator(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def call(tokens: Any, q: Any, p: Any) -> Any:
            assert len(tokens) == 1
            return right(tokens, q, p, None)

        subject = replace(
            RIGHT, name="alone", call=call, capabilities=Capabilities(batch=False, generator=False)
        )
        monkeypatch.setitem(registry._REGISTERED, "alone", subject)
        assert run(capsys, "alone", "--pair", "toy")[0] == 0

    def test_progress_is_kept_and_used(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        argv = ("right", "--pair", "toy", "--resume", str(tmp_path / "kept"))
        first = run(capsys, *argv)[1]
        names = {file.name for file in (tmp_path / "kept").iterdir()}
        assert names == {"context-1-position-1.npz", "manifest.json"}
        again = run(capsys, *argv)[1]
        assert again.split(" runs")[0] == first.split(" runs")[0]
        code, _, err = run(capsys, *argv, "--seed", "1")
        assert code == 4
        assert f"the folder '{tmp_path / 'kept'}'" in err
        assert "seed is 0 there and 1 here" in err
        assert run(capsys, *argv, "--contexts", "2")[0] == 0

    def test_a_folder_of_other_files_is_refused(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        (tmp_path / "thesis.tex").write_text("Hello.")
        code, out, err = run(capsys, "right", "--pair", "toy", "--resume", str(tmp_path))
        assert (code, out) == (4, "")
        assert "holds other files ('thesis.tex')" in err
        assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]

    @pytest.mark.parametrize("batch", [True, False])
    def test_a_rule_that_hangs_is_an_error(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, batch: bool
    ) -> None:
        def hangs(tokens: Any, q: Any, p: Any, generator: Any) -> Any:
            time.sleep(60)

        subject = Subject("hangs", "rule", hangs, Capabilities(batch=batch))
        monkeypatch.setitem(registry._REGISTERED, "hangs", subject)
        begin = time.monotonic()
        code, _, err = run(capsys, "hangs", "--pair", "toy", "--time-limit", "0.2")
        assert code == 3
        assert "'hangs': a call ran past its time limit of 0.2 s" in err
        assert time.monotonic() - begin < 20

    def test_control_c_is_no_timeout(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(tokens: Any, q: Any, p: Any, generator: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setitem(
            registry._REGISTERED, "stopped", Subject("stopped", "rule", interrupted)
        )
        code, _, err = run(capsys, "stopped", "--pair", "toy", "--time-limit", "5")
        assert (code, err.strip()) == (130, "Interrupted.")

    def test_a_rule_without_standard_output_is_reported(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def mute(*arguments: Any) -> Any:
            sys.stdout = None
            return right(*arguments)

        monkeypatch.setitem(registry._REGISTERED, "mute", Subject("mute", "rule", mute))
        code, out, _ = run(capsys, "mute", "--pair", "toy")
        assert code == 0
        assert "PRESERVED  mute" in out

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (("--num-draft-tokens", "257"), "--num-draft-tokens is at most 256, got 257"),
            (("--prefixes", "10001"), "--prefixes is at most 10,000, got 10001"),
        ],
    )
    def test_numbers_too_large(
        self, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
    ) -> None:
        code, out, err = run(capsys, "right", "--pair", "toy", *argv)
        assert (code, out) == (4, "")
        assert message in err

    def test_only_the_kind_it_takes_is_advised(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = run(capsys, "math:sqrt")
        assert code == 4
        assert "pass --kind rule (kind= in Python)" in err


@pytest.mark.slow
class TestTrainedPair:
    """V = 1024, every draft token after one prompt."""

    @pytest.mark.parametrize(
        ("name", "code"),
        [
            ("right", 0),
            ("residual-not-subtracted", 1),
            ("bonus-previous-row", 1),
            ("residual-clamped", 1),
        ],
    )
    def test_one_draft_token(
        self, capsys: pytest.CaptureFixture[str], name: str, code: int
    ) -> None:
        pytest.importorskip("transformers")
        returned, out, err = run(capsys, name, "--pair", "trained", "--memory", "200MB")
        assert (returned, err) == (code, "")
        assert "tolerance 1e-06" in out


class TestVerdicts:
    @pytest.mark.parametrize(
        ("change", "verdict"),
        [
            ({}, "preserved"),
            ({"token_deviation": 5e-7, "outside_mass": 5e-7}, "preserved"),
            ({"next_deviation": 2e-6}, "violated"),
            ({"crashes": {"ZeroDivisionError: no": 1e-9}}, "error"),
            ({"crashes": {"ZeroDivisionError: no": 0.1}, "token_deviation": 0.1}, "violated"),
            ({"unchecked": 1e-3}, "inconclusive"),
            ({"stray_deviation": 1e-3}, "inconclusive"),
        ],
    )
    def test_of_a_result(self, change: dict[str, Any], verdict: str) -> None:
        assert cli_exact.verdict_of(replace(CLEAN, **change), 1e-6) == verdict

    def test_tolerance_follows_dtype_and_size(self) -> None:
        assert cli_exact.tolerance_of(torch.float32, 49_152) == 1e-6
        assert cli_exact.tolerance_of(torch.float32, 128_000) == 2e-5
        assert cli_exact.tolerance_of(torch.float64, 1024) == 1e-12
        assert 1e-12 < cli_exact.tolerance_of(torch.float64, 49_152) < 1e-10

    def test_everything_found_is_described(self) -> None:
        result = replace(
            CLEAN,
            outside_mass=1e-9,
            crashes={"ZeroDivisionError: no": 0.25},
            unchecked=0.125,
            findings=("draws twice",),
        )
        text = "\n".join(cli_exact.describe("here", result, "error", 1.0))
        assert "mass 1e-09; behind the position" in text
        assert "probability 0.25: ZeroDivisionError: no" in text
        assert "0.125" in text
        assert "finding: draws twice" in text


class TestRefusals:
    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["reference"], "is a decoder"),
            (["right", "--memory", "much"], "no amount of memory"),
            (["right", "--pair", "toy", "--memory", "1k"], "not a single row"),
            (["right", "--pair", "toy", "--contexts", "1000"], "prompts"),
            (["right", "--pair", "nowhere"], "unknown pair"),
        ],
    )
    def test_bad_usage(
        self, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
    ) -> None:
        code, out, err = run(capsys, *argv)
        assert (code, out) == (4, "")
        assert message in err

    @pytest.mark.parametrize(
        ("text", "size"), [("500", 500), ("2GB", 2 << 30), ("1.5 MiB", 3 << 19), ("3k", 3072)]
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert cli_exact._Bytes().convert(text, None, None) == size


def test_nothing_heavy_is_imported_for_help() -> None:
    code = "import sys, specverify.cli; print('torch' in sys.modules or 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
