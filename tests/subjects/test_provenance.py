"""Where a subject comes from, and the digest of its source."""

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specverify.subjects.protocols import Subject
from specverify.subjects.provenance import distribution_of, source_sha256
from specverify.subjects.reference import TOKEN
from specverify.subjects.transformers_assisted import ASSISTED


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "users_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "rule.py").write_text("def decide(): ...\nclass Engine:\n    def __call__(self): ...")
    (folder / "helper.py").write_text("x = 1")
    (tmp_path / "users_module.py").write_text("def decide(): ...")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield folder
    for name in [name for name in sys.modules if name.startswith("users_")]:
        del sys.modules[name]


def imported(name: str) -> Any:
    return importlib.import_module(name)


def test_the_whole_package_counts(package: Path) -> None:
    decide = imported("users_package.rule").decide
    before = source_sha256(decide)
    assert before is not None
    assert len(before) == 64
    assert source_sha256(decide) == before
    (package / "helper.py").write_text("x = 2")
    changed = source_sha256(decide)
    assert changed != before
    (package / "helper.py").rename(package / "renamed.py")
    assert source_sha256(decide) not in {before, changed}


def test_a_module_outside_a_package_counts_alone(package: Path) -> None:
    decide = imported("users_module").decide
    before = source_sha256(decide)
    (package.parent / "neighbour.py").write_text("y = 1")
    assert source_sha256(decide) == before
    (package.parent / "users_module.py").write_text("def decide(): return 1")
    assert source_sha256(decide) != before


def test_the_digest_does_not_depend_on_where_the_package_lies(package: Path) -> None:
    before = source_sha256(imported("users_package.rule").decide)
    for name in [name for name in sys.modules if name.startswith("users_")]:
        del sys.modules[name]
    elsewhere = package.parent / "elsewhere"
    elsewhere.mkdir()
    package.rename(elsewhere / "users_package")
    sys.path.insert(0, str(elsewhere))
    importlib.invalidate_caches()
    try:
        assert source_sha256(imported("users_package.rule").decide) == before
    finally:
        sys.path.remove(str(elsewhere))


def test_partials_and_instances_have_the_source_of_what_they_call(package: Path) -> None:
    module = imported("users_package.rule")
    expected = source_sha256(module.decide)
    assert source_sha256(partial(module.decide)) == expected
    assert source_sha256(module.Engine()) == expected


def test_without_source_there_is_no_digest() -> None:
    assert source_sha256(max) is None
    scope: dict[str, Any] = {}
    exec("def typed_in(): ...", scope)
    assert source_sha256(scope["typed_in"]) is None


def test_distributions() -> None:
    assert distribution_of(TOKEN)[0] == "specverify"
    name, version = distribution_of(ASSISTED)
    assert name == "transformers"
    assert version is not None
    here = Subject("mine", "rule", test_distributions)
    assert distribution_of(here) == (None, None)
    assert distribution_of(Subject("m", "rule", max, distribution="not-there")) == (None, None)
