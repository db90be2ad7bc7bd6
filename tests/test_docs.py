"""The documentation: every example is run, and prints what the page says."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specverify import cli
from specverify.certification.registry import properties_of
from specverify.certification.verdict import VERDICTS, exit_code
from specverify.models.pairs import GROUP as PAIRS
from specverify.settings import SamplingSettings
from specverify.subjects import registry
from specverify.subjects.protocols import KINDS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
FENCE = re.compile(r"(?ms)^```(.*?)\n(.*?)^```$")
FILE_NAME = re.compile(r"# (\w+\.(?:py|toml))\n")
PRINTED = re.compile(r"(?m)# -> (.*)$")
EXIT_CODE = re.compile(r"# exit code (\d+)$")


@dataclass(frozen=True)
class Command:
    """One `$ specverify ...` or `$ pytest ...` of a console block."""

    argv: list[str]
    code: int
    """0 unless the line ends in `# exit code N`."""
    shown: str
    """What the page shows of its output; `...` stands for anything."""
    program: str = "specverify"


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def commands(block: str) -> list[Command]:
    """The commands of a console block, each with the output shown below it."""
    found = []
    for part in re.split(r"(?m)^\$ ", block)[1:]:
        line, _, shown = part.partition("\n")
        program, *argv = shlex.split(line, comments=True)
        assert program in ("specverify", "pytest"), f"only specverify and pytest are run: {line}"
        stated = EXIT_CODE.search(line)
        found.append(Command(argv, int(stated[1]) if stated else 0, shown, program))
    return found


def words(text: str) -> str:
    """The text with its line breaks and alignment taken out."""
    return " ".join(text.split())


def missing_segment(shown: str, output: str) -> str | None:
    """The first segment between two `...` that the output does not have in its place."""
    rest = words(output)
    for segment in map(words, shown.split("...")):
        at = rest.find(segment)
        if at < 0:
            return segment
        rest = rest[at + len(segment) :]
    return None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, whose modules and subjects are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_REGISTERED", {})
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]


def run_python(code: str, namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Save a block that names a file, execute any other and compare what it prints."""
    name = FILE_NAME.match(code)
    if name is not None:
        Path(name[1]).write_text(code, encoding="utf-8")
        return
    capsys.readouterr()
    exec(compile(code, "<documentation>", "exec"), namespace)
    assert capsys.readouterr().out.splitlines() == PRINTED.findall(code), code


def run_pytest(argv: list[str]) -> tuple[int, str]:
    """Exit code and output of a new process: a test session within one shares its modules."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def run_command(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command and compare exit code and output."""
    if command.program == "pytest":
        code, output = run_pytest(command.argv)
    else:
        capsys.readouterr()
        code = cli.main(command.argv)
        captured = capsys.readouterr()
        output = captured.out + captured.err
    assert code == command.code, f"{command.argv}\n{output}"
    missing = missing_segment(command.shown, output)
    assert missing is None, f"{command.argv} did not print {missing!r}, but\n{output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_do_what_the_page_says(
    page: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, Any] = {"__name__": "documentation"}
    for language, text in blocks(page):
        if language == "python":
            run_python(text, namespace, capsys)
        elif language == "console":
            found = commands(text)
            assert found, f"a console block without a command:\n{text}"
            for command in found:
                run_command(command, capsys)
        elif language == "toml" and FILE_NAME.match(text):
            run_python(text, namespace, capsys)
        elif language == "toml":
            groups = tomllib.loads(text)["project"]["entry-points"]
            assert set(groups) <= {registry.GROUP, PAIRS}
        else:
            pytest.fail(f"nothing checks blocks of {language or 'no language'}:\n{text}")


def test_shown_output_is_compared_in_order() -> None:
    output = "a table   of\n  numbers\nVERDICT  fine\n"
    assert missing_segment("a table of\n...\nVERDICT fine\n", output) is None
    assert missing_segment("...\nnumbers VERDICT ... fine\n", output) is None
    assert missing_segment("VERDICT\n...\na table\n", output) == "a table"
    assert missing_segment("VERDICT bad\n", output) == "VERDICT bad"


def test_commands_are_read_with_their_exit_code() -> None:
    block = "$ specverify certify a --settings '{}'  # exit code 2\n...\nDONE\n$ specverify b\n"
    assert commands(block) == [
        Command(["certify", "a", "--settings", "{}"], 2, "...\nDONE\n"),
        Command(["b"], 0, ""),
    ]


def test_a_wrong_example_is_seen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_python("print(1 + 1)  # -> 2\n", {}, capsys)
    with pytest.raises(AssertionError):
        run_python("print(1 + 1)  # -> 3\n", {}, capsys)
    run_command(Command(["pairs"], 0, "toy ..."), capsys)
    with pytest.raises(AssertionError, match="did not print 'nought'"):
        run_command(Command(["pairs"], 0, "nought"), capsys)
    with pytest.raises(AssertionError):
        run_command(Command(["pairs"], 1, "toy ..."), capsys)


def test_the_index_names_every_page() -> None:
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8"))
    assert sorted(linked) == [page.name for page in PAGES if page.name != "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (DOCS / target).exists()] == []


def rows(page: str) -> list[list[str]]:
    """Cells of every table row of a page."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line[:1] == "|"]


def test_every_property_is_listed_with_its_claim() -> None:
    # Probed ones are in the pages of their chapters, see test_property_pages.
    found = [p for kind in KINDS for p in properties_of(kind) if p.evidence != "probed"]
    claims = {p.id: p.claim for p in found}
    listed = {row[0].strip("`"): row[1] for row in rows("reading-a-certificate.md")}
    assert {id: listed.get(id) for id in claims} == claims


def test_every_verdict_is_listed_with_its_exit_code() -> None:
    page = (DOCS / "reading-a-certificate.md").read_text(encoding="utf-8")
    listed = {row[0].strip("`"): row[1] for row in rows("reading-a-certificate.md")}
    for verdict in VERDICTS:
        code = str(exit_code(verdict))
        assert listed.get(verdict) == code or f"`{verdict}` ({code})" in page


def test_every_field_of_the_settings_is_listed() -> None:
    listed = {name for row in rows("settings.md") for name in re.findall(r"`(\w+)`", row[0])}
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert set(SamplingSettings.model_fields) - listed == {"dialect"}
    assert "`dialect`" in page


def test_the_order_of_the_dialect_is_the_documented_one() -> None:
    from specverify.transforms.dialects import HUGGINGFACE

    fields = {
        "no_repeat_ngram": "no_repeat_ngram_size",
        "min_length": "min_new_tokens",
        "epsilon": "epsilon_cutoff",
        "eta": "eta_cutoff",
        "xtc": "xtc_probability",
    }
    order = [fields.get(name, name) for name in HUGGINGFACE.processors + HUGGINGFACE.warpers]
    first = [match[1] for row in rows("settings.md") if (match := re.match(r"`(\w+)`", row[0]))]
    start = first.index(order[0])
    assert first[start : start + len(order)] == order


def test_presets_are_the_documented_ones() -> None:
    from specverify.certification.presets import presets

    named = {row[0].strip("`") for row in rows("settings.md")}
    assert set(presets(8, 7, (1, 2))) <= named


def test_references_of_transforms_are_the_documented_ones() -> None:
    from specverify.certification.transform_case import PARAMETERS, RANDOM_PARAMETERS

    listed = [
        (set(re.findall(r"`(\w+)`", row[0])), set(re.findall(r"`(\w+)`", row[1])))
        for row in rows("certify-a-transform.md")
        if row[0].startswith("`")
    ]
    documented = {name: keywords for names, keywords in listed for name in names}
    known = PARAMETERS | RANDOM_PARAMETERS
    assert documented == {name: set(cases[0]) for name, cases in known.items()}


def test_capabilities_are_the_documented_ones() -> None:
    from dataclasses import fields

    from specverify.subjects.protocols import Capabilities

    listed = {
        match[1] for row in rows("certify-a-decoder.md") if (match := re.match(r"`(\w+)=", row[0]))
    }
    assert listed == {field.name for field in fields(Capabilities)}
