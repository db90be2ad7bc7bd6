"""The README: its commands exist and parse, and those that cost seconds are run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from specverify import cli
from specverify.subjects import registry
from specverify.subjects.registry import as_subject

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"(?ms)^```(.*?)\n(.*?)^```$")
TARGETS = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))

RULE = """
import specverify
from specverify.verification.token import TOKEN

@specverify.subject(kind="rule", algorithm="token", coin_dtype="float64")
def verify(draft_tokens, draft_probs, target_probs, generator):
    return TOKEN(draft_tokens, draft_probs, target_probs, generator).tokens
"""


def commands(text: str) -> list[list[str]]:
    """Programs and arguments of the blocks without a language, comments left out."""
    lines = [
        line
        for language, block in FENCE.findall(text)
        if not language
        for line in block.splitlines()
    ]
    found = [
        shlex.split(line, comments=True)
        for line in lines
        if re.match(r"(\.venv/bin/)?(specverify|make|pytest) ", line)
    ]
    return [[Path(program).name, *rest] for program, *rest in found]


def refused(command: list[str]) -> str | None:
    """Why a command would not start; None if it would."""
    program, name, *rest = command
    if program == "make":
        return None if name in TARGETS else f"no target {name!r}"
    if name not in cli.cli.commands:
        return f"no command {name!r}"
    try:
        # A command keeps what it learned of its help option, from the context that it first had.
        above = click.Context(cli.cli, info_name="specverify", **cli.cli.context_settings)
        cli.cli.commands[name].make_context(name, [*rest], parent=above)
    except click.ClickException as error:
        return error.format_message()
    return None


COMMANDS = commands(TEXT)
PYTHON = [block for language, block in FENCE.findall(TEXT) if language == "python"]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subjects that an example declares are no others' business."""
    monkeypatch.setattr(registry, "_REGISTERED", {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a right rule, and a certificate as the README makes them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.py").write_text(RULE)
    (tmp_path / "certificates").mkdir()
    return tmp_path


@pytest.fixture
def certificate(folder: Path) -> Path:
    """A certificate in the folder that the README names."""
    argv = ["certify", "specverify.transforms:TopK", "--kind", "transform", "--out", "certificates"]
    assert cli.main([*argv, "--reference-transform", "top_k", "--only", "transforms.round"]) == 0
    (path,) = (folder / "certificates").iterdir()
    return path


def test_there_are_commands_of_each_kind() -> None:
    assert {command[0] for command in COMMANDS} == {"make", "specverify"}
    assert {"certify", "power", "check-certificate", "calibrate", "selftest"} <= {
        command[1] for command in COMMANDS
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_would_start(command: list[str], folder: Path) -> None:
    assert refused(command) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("make certificate", "no target 'certificate'"),
        ("specverify certfy mine:generate", "no command 'certfy'"),
        ("specverify certify mine:generate --run-lenght 64", "No such option '--run-lenght'"),
        ("specverify certify mine:generate --profile slow", "'slow' is not one of"),
    ],
)
def test_a_wrong_command_is_seen(line: str, said: str, folder: Path) -> None:
    (command,) = commands(f"```\n{line}  # a comment\n```\n")
    assert said in (refused(command) or "")


@pytest.mark.parametrize(
    "name", sorted({command[1] for command in COMMANDS if command[0] != "make"})
)
def test_commands_explain_themselves(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    assert f"specverify {name}" in capsys.readouterr().out


def test_the_cheap_commands_run(certificate: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others sample for minutes; docs/ shows them on small inputs, and is tested there."""
    cheap = {
        command[1]: command[2:]
        for command in COMMANDS
        if command[1] in ("power", "check-certificate")
    }
    assert cli.main(["power", *cheap["power"]]) == 0
    (pattern,) = cheap["check-certificate"]
    assert cli.main(["check-certificate", *map(str, Path.cwd().glob(pattern))]) == 0
    assert certificate.stem in capsys.readouterr().out
    for name in set(re.findall(r"`specverify (subjects|pairs)`", TEXT)):
        assert cli.main([name]) == 0


def test_the_pytest_example_runs(folder: Path) -> None:
    (example,) = [block for block in PYTHON if "parametrize" in block]
    (folder / "test_rules.py").write_text(example)
    (node,) = re.findall(r"`pytest (specverify::\S+)`", TEXT)
    for argv in (["-k", "joint.round"], [f"{node}::joint.round"]):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *argv]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout


def test_the_exact_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from specverify.verification.token import TOKEN

    def my_rule(*arguments: Any) -> Any:
        return TOKEN(*arguments).tokens

    (example,) = [block for block in PYTHON if "joint_distribution" in block]
    exec(compile(example, "README.md", "exec"), {"my_rule": my_rule})
    assert float(capsys.readouterr().out) < 1e-12


def test_the_declaration_of_a_decoder_is_understood() -> None:
    (example,) = [block for block in PYTHON if block.startswith("# mine.py")]
    namespace: dict[str, Any] = {"__name__": "mine"}
    exec(compile(example, "README.md", "exec"), namespace)
    made = as_subject(namespace["generate"])
    assert (made.kind, made.capabilities.batch) == ("decoder", False)
