"""Which package an implementation comes from, and a digest of its source."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

from specverify.subjects.protocols import Subject


def distribution_of(subject: Subject) -> tuple[str | None, str | None]:
    """Name and version of the installed package under test, (None, None) if it is in none.

    A subject may name the package it adapts; else it is the one that defines its function.
    """
    names = [subject.distribution] if subject.distribution else _distributions(subject.call)
    for name in names:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return None, None


def source_sha256(call: Callable[..., Any]) -> str | None:
    """SHA-256 over the Python files of the top-level package that defines a function.

    A module outside any package counts alone. None where there is no source, as in an interactive
    session. Paths relative to the package and contents enter the digest, in sorted order.
    """
    try:
        file = inspect.getsourcefile(inspect.unwrap(_code_of(call)))
    except TypeError:
        return None
    if file is None or not Path(file).is_file():
        return None
    digest = hashlib.sha256()
    root, files = _package_files(Path(file), _module(call))
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _package_files(file: Path, module: str) -> tuple[Path, list[Path]]:
    package = sys.modules.get(module.partition(".")[0])
    locations = list(getattr(package, "__path__", ()))
    if len(locations) == 1 and Path(locations[0]) in file.parents:
        root = Path(locations[0])
        return root, sorted(root.rglob("*.py"))
    return file.parent, [file]


def _code_of(call: Callable[..., Any]) -> Any:
    """Instances and partials have no source of their own: their class and function do."""
    call = getattr(call, "func", call)
    return call if hasattr(call, "__qualname__") else type(call)


def _module(call: Callable[..., Any]) -> str:
    return getattr(_code_of(call), "__module__", None) or ""


def _distributions(call: Callable[..., Any]) -> list[str]:
    top = _module(call).partition(".")[0]
    return sorted(set(_installed().get(top, ())))


@cache
def _installed() -> Mapping[str, list[str]]:
    """Packages by the modules they bring; every one that is installed is looked at."""
    return packages_distributions()
