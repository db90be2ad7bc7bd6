"""Quoting what foreign code says, so that any terminal and any file can hold it."""

import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""Terminal control sequences: colours, cursor moves, window titles."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Text without terminal controls and without halves of surrogate pairs.

    Line breaks and tabs stay. What UTF-8 cannot encode becomes a question mark.
    """
    text = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return text.encode("utf-8", "replace").decode("utf-8")


def a_type(value: object) -> str:
    """The name of a value's type with its article: "an int", "a list", "an ndarray"."""
    name = type(value).__name__
    sounded = name.lower()
    vowel = sounded.startswith(("a", "e", "i", "o", "u", "nd", "x"))
    spelt = sounded.startswith(("uint", "union", "user", "eu", "one"))
    return f"{'an' if vowel and not spelt else 'a'} {name}"


def message_of(error: BaseException, *, longest: int = 500) -> str:
    """What an exception says, printable; a `__str__` that fails is named.

    Args:
        error: the exception.
        longest: characters quoted; some messages print whole tensors.
    """
    try:
        text = str(error)
    except Exception as failure:
        return f"(its message cannot be read: str() of it raises {type(failure).__name__})"
    return printable(text[:longest])
