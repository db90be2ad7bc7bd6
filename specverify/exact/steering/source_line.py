"""Where in the subject's code something happens."""

import contextlib
import copy
import functools
import inspect
import linecache
import pickle
import sys
from pathlib import Path
from typing import NamedTuple

import numpy
import torch

_OWN = str(Path(__file__).parent)
_FOREIGN = (
    _OWN,
    str(Path(torch.__file__).parent),
    str(Path(numpy.__file__).parent),
    *(inspect.getfile(module) for module in (contextlib, copy, functools, pickle)),
)
"""Code that works for the subject: what it does is shown at the subject's line."""


class Line(NamedTuple):
    """A line of code."""

    path: str
    number: int

    def __str__(self) -> str:
        code = linecache.getline(self.path, self.number).strip()
        place = f"{'/'.join(Path(self.path).parts[-2:])}:{self.number}"
        return f"{place}: {code}" if code else place


def current_line() -> Line:
    """The innermost line that is neither a library's nor the steering's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_FOREIGN):
            break
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno)
