"""What several commands share: how they were called, and options.

Only click is imported at load.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from specverify.subjects.watchdog import LONGEST


@dataclass
class Invocation:
    """How specverify was called; click hands it to every command as its object."""

    argv: tuple[str, ...]
    traceback: bool = False


time_limit_option = click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True, max=LONGEST),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="Longest a single call into the subject may take.",
)


class Folder(click.Path):
    """A folder's path. An empty one, as an unset variable of a script gives, is no current folder.

    Args:
        file_okay: whether a file of that name is left for the command to complain of.
    """

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(path_type=Path, file_okay=file_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        if not os.fspath(value).strip():
            self.fail("it is empty; name a folder, or leave the option out", param, ctx)
        return super().convert(value, param, ctx)
