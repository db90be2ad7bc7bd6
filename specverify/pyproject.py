"""The table `[tool.specverify]`: where it is found. `certification.configuration` reads it.

Nothing heavy is imported, for pytest looks on every start.
"""

import tomllib
from pathlib import Path
from typing import Any

from specverify.errors import UsageError

FILE = "pyproject.toml"
TABLE = "tool.specverify"


def find_table(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The table of the nearest pyproject.toml in a folder or above it; None if it has none.

    Raises:
        UsageError: the file cannot be read, or is no TOML.
    """
    for parent in (folder, *folder.parents):
        path = parent / FILE
        if not path.is_file():
            continue
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{str(path)!r} is not valid TOML: {error}") from None
        tool = content.get("tool", {})
        table = tool.get("specverify") if isinstance(tool, dict) else None
        if table is None:
            return None
        if not isinstance(table, dict):
            raise UsageError(
                f"{str(path)!r}: {TABLE} = {table!r} is no table; write [{TABLE}] and the keys "
                "below it"
            )
        return path, table
    return None
