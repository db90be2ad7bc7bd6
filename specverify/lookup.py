"""Finding objects by entry-point name or by `package.module:object`."""

import importlib
import os
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import PurePath
from typing import Any

from specverify.errors import UsageError
from specverify.quoting import message_of


def entry_point_names(group: str) -> list[str]:
    """Names installed under an entry-point group, sorted; nothing is imported."""
    return sorted(_points(group))


def load_entry_point(group: str, name: str) -> Any:
    """Import the object behind an installed name.

    Raises:
        UsageError: the name is not installed, or importing it failed; the message has the cause.
    """
    point = _points(group)[name]
    return _resolve(point.module, point.attr, f"{name} ({point.value})")


def import_object(spec: str) -> Any:
    """Import `package.module:object`; the object may be dotted, the current folder is searched.

    Raises:
        UsageError: the spec has another form, the module cannot be imported, or it has no such
            attribute. The message shows the cause and the closest names.
    """
    module, _, attribute = spec.partition(":")
    if not module or not attribute or attribute.count(":"):
        raise UsageError(
            f"cannot read {spec!r} as package.module:object; write the module as Python imports "
            "it, one colon, then the name of the object in it, e.g. mylib.decoding:generate"
        )
    if is_file_name(module):
        raise UsageError(
            f"{spec!r} names a file, and a module is wanted, as Python imports it (did you mean "
            f"'{module_of(module)}:{attribute}'?); run from the folder that holds it"
        )
    _search_current_folder()
    return _resolve(module, attribute, spec)


def is_file_name(module: str) -> bool:
    """Whether a text can only be the path of a file, where a module's name is wanted."""
    return module.endswith(".py") or "/" in module or os.sep in module


def module_of(file: str) -> str:
    """The module that a file most likely is, seen from the current folder if it lies below it."""
    path = PurePath(os.path.normpath(file.removesuffix(".py")))
    if path.is_absolute() and path.is_relative_to(os.getcwd()):
        path = path.relative_to(os.getcwd())
    parts = path.parts
    whole = all(part.isidentifier() for part in parts)
    return ".".join(parts if whole else parts[-1:])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion to append to a message, empty if nothing known is close to the word."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _search_current_folder() -> None:
    """Console scripts do not search the current folder, `python -m` does; behave like the latter.

    The path stays, because the module found may import its neighbours only when it is called.
    """
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)


def _resolve(module: str, attribute: str, spec: str) -> Any:
    found: Any = _import(module, spec)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = [name for name in dir(found) if not name.startswith("_")]
            raise UsageError(
                f"{spec!r}: {module!r} has no attribute {attribute!r}"
                f"{did_you_mean(part, public)}; name an object the module defines"
            ) from None
    return found


def _import(module: str, spec: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise UsageError(
                f"{spec!r}: there is no module {error.name!r}; install it, or run from the folder "
                f"that holds it (now {os.path.basename(os.getcwd()) or os.sep!r})"
            ) from None
        raise _import_failed(spec, error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A module under test may do anything when it is imported, sys.exit() included.
        raise _import_failed(spec, error) from error


def _import_failed(spec: str, error: BaseException) -> UsageError:
    return UsageError(
        f"{spec!r}: importing it failed with {type(error).__name__}: {message_of(error)}; "
        "make the import work in Python first"
    )
