"""Work for processes, and that none of them outlives its test."""

import importlib
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of work, where workers find it too."""
    monkeypatch.syspath_prepend(str(HERE))
    # Workers import the main module, which here is all of pytest.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    return importlib.import_module("work_for_processes")


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []
