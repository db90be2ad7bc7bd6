"""The repository as a whole: imports, layers, packaging, documents that name commands."""

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from itertools import chain
from pathlib import Path

import pytest

import specverify

ROOT = Path(__file__).resolve().parent.parent
HOMES = {
    "specverify": "specverify",
    "properties": "specverify.properties",
    "fixtures": "specverify.fixtures",
}
HEAVY = {"numpy", "pydantic", "scipy", "torch", "transformers"}

BELOW_FIXTURES = {
    "categorical",
    "decoding",
    "drafting",
    "errors",
    "fixtures",
    "models",
    "settings",
    "stopping",
    "subjects",
    "transforms",
    "verification",
}
BELOW_PROPERTIES = BELOW_FIXTURES | {
    "certification",
    "exact",
    "properties",
    "sampling",
    "statistics",
}


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def module_name(path: Path) -> str:
    """The name a source file is imported by, its folder mapped into the package."""
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([HOMES[folder], *rest]).removesuffix(".__init__")


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module a tree may import, `from a import b` giving `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            yield from (f"{dots}{node.module or ''}.{alias.name}" for alias in node.names)


def wrong_imports(code: str, allowed: set[str]) -> list[str]:
    """Imports of this project that skip a mapped name, are relative, or point upwards."""
    wrong = []
    for name in imports(ast.parse(code)):
        top, _, rest = name.partition(".")
        layer = rest.partition(".")[0]
        public = layer in specverify.__all__
        if top in {"", "properties", "fixtures", "tests"} or (
            top == "specverify" and rest and not public and layer not in allowed
        ):
            wrong.append(name)
    return wrong


def modules_loaded_by(statement: str) -> set[str]:
    """Top-level names in `sys.modules` of a new interpreter after a statement."""
    report = "import sys, json; sys.stderr.write(json.dumps(sorted(sys.modules)))"
    code = f"{statement}\n{report}"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.partition(".")[0] for name in json.loads(run.stderr)}


@pytest.mark.parametrize("path", sources(*HOMES), ids=module_name)
def test_every_module_imports_by_its_mapped_name(path: Path) -> None:
    module = importlib.import_module(module_name(path))
    assert Path(str(module.__file__)).samefile(path)


def test_public_names_resolve_and_unknown_ones_are_attribute_errors() -> None:
    for name in specverify.__all__:
        assert getattr(specverify, name) is not None
        assert name in dir(specverify)
    with pytest.raises(AttributeError, match="no attribute 'certificate_of_nothing'"):
        _ = specverify.certificate_of_nothing


def test_version_is_the_distributions() -> None:
    assert specverify.__version__ == version("specverify")


@pytest.mark.parametrize(
    "statement",
    [
        "import specverify",
        "from specverify.cli import main\nassert main(['--help']) == 0",
    ],
    ids=["import", "help"],
)
def test_start_up_is_light(statement: str) -> None:
    assert modules_loaded_by(statement) & HEAVY == set()


def test_the_light_check_sees_a_heavy_import() -> None:
    assert "pydantic" in modules_loaded_by("import specverify; specverify.SamplingSettings")


@pytest.mark.parametrize(
    ("folder", "allowed"), [("fixtures", BELOW_FIXTURES), ("properties", BELOW_PROPERTIES)]
)
def test_mapped_folders_import_downwards_by_mapped_names(folder: str, allowed: set[str]) -> None:
    wrong = {
        module_name(path): found
        for path in sources(folder)
        if (found := wrong_imports(path.read_text(), allowed))
    }
    assert wrong == {}


def test_only_certification_knows_the_suite() -> None:
    free = ("certification", "reporting", "cli.py", "pytest_plugin.py")
    suite = re.compile(r"^specverify\.(properties|fixtures)\b")
    wrong = {
        module_name(path): found
        for path in sources("specverify")
        if path.relative_to(ROOT / "specverify").parts[0] not in free
        and (found := [name for name in imports(ast.parse(path.read_text())) if suite.match(name)])
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "code",
    [
        "from fixtures.pairs import toy",
        "import properties.law",
        "from . import toy",
        "from specverify.reporting.json import write",
        "from specverify import cli",
    ],
)
def test_the_import_check_sees_a_wrong_import(code: str) -> None:
    assert wrong_imports(code, BELOW_PROPERTIES)


def test_the_import_check_passes_right_imports() -> None:
    code = "import torch\nfrom specverify import subject\nfrom specverify.fixtures.pairs import toy"
    assert wrong_imports(code, BELOW_PROPERTIES) == []


def test_no_file_is_longer_than_500_lines() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in sources(*HOMES, "tests", "benchmarks")
    }
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def documents() -> list[Path]:
    """Every text file that ships or is read, this one (which spells the patterns) left out."""
    written = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("docs/**/*.md")]
    files = [*sources(*HOMES, "tests", "benchmarks"), *written, ROOT / "Makefile"]
    return [path for path in files if path != Path(__file__).resolve()]


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("unfinished work", r"\b(TODO|FIXME|XXX)\b"),
        ("banner comments", r"(?m)^\s*#\s*[-=#*]{4,}"),
        ("machine paths", r"(?<![\w.])/(work|home|root|Users|opt)/\w"),
    ],
)
def test_no_file_holds(what: str, pattern: str) -> None:
    found = {
        str(path.relative_to(ROOT)): match.group()
        for path in documents()
        if (match := re.search(pattern, path.read_text()))
    }
    assert found == {}, what


def make_targets() -> set[str]:
    return set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documented_make_commands_exist(document: str) -> None:
    named = set(re.findall(r"(?m)(?:^|`)make ([a-z-]+)", (ROOT / document).read_text()))
    assert named
    assert named <= make_targets()


def test_the_readme_shows_both_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make certify" in readme
    assert "make test" in readme


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_links_to_files_lead_somewhere(document: str) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / document).read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("group", ["specverify.subjects", "specverify.pairs"])
def test_entry_points_load(group: str) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = {point.name: point for point in entry_points(group=group)}
    for name, value in declared[group].items():
        assert installed[name].value == value, "run `make install` after a change of entry points"
        assert installed[name].load() is not None


def test_the_tested_set_satisfies_the_declared_dependencies() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[\[><=]", line)[0] for line in wanted}
    assert names - set(pins) == set()
    assert all(re.fullmatch(r"[\d.]+", pin) for pin in pins.values())


@pytest.mark.slow
def test_the_wheel_holds_both_mapped_folders(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += [
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(copy_of_sources(tmp_path)),
    ]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {module_name(path).replace(".", "/") for path in sources(*HOMES)}
    held = {name.removesuffix(".py").removesuffix("/__init__") for name in names}
    assert expected - held == set()
    assert "specverify/py.typed" in names
    assert "specverify/reporting/templates/certificate.html.j2" in names
    assert not any(name.startswith(("properties/", "fixtures/", "tests/")) for name in names)
    data = [path for path in (ROOT / "fixtures/pairs/trained").rglob("*") if path.is_file()]
    shipped = {f"specverify/{path.relative_to(ROOT)}" for path in data if path.suffix != ".pyc"}
    assert shipped - names == set()


def copy_of_sources(folder: Path) -> Path:
    """Only what a build reads, so that building leaves nothing in the checkout."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in HOMES:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    return checkout


@pytest.mark.parametrize("elsewhere", [True, False], ids=["foreign folder", "repository root"])
def test_mapped_names_import_from(tmp_path: Path, *, elsewhere: bool) -> None:
    code = "import specverify.fixtures.pairs, specverify.properties as p; print(p.__file__)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path if elsewhere else ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert Path(run.stdout.strip()).parent.samefile(ROOT / "properties")
