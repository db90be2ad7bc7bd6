"""Commands whose options take their defaults from `[tool.specverify]` of pyproject.toml.

Only click is imported at load, and pydantic once there is such a table.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specverify.pyproject import find_table

if TYPE_CHECKING:
    from specverify.certification.configuration import Configuration

_KEY = "specverify.configuration"

_OPTIONS = {
    "pair": "pair_name",
    "settings_texts": "settings_texts",
    "profile": "profile",
    "seed": "seed",
    "alpha": "alpha",
    "tokens": "tokens",
    "num_draft_tokens": "num_draft_tokens",
    "run_length": "run_length",
    "jobs": "jobs",
    "isolate": "isolate",
    "time_limit": "time_limit",
    "out": "out",
    "report": "report_forms",
    "fuzz_time": "fuzz_time",
    "fuzz_inputs": "fuzz_inputs",
    "database": "database",
    "expected": "expected",
    "strict": "strict",
}
"""Parameter of the command by key of the configuration."""


class ConfiguredCommand(click.Command):
    """A command whose options, where they are not given, come from the nearest pyproject.toml."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> click.Context:
        """Read the configuration first; one that is wrong does not keep `--help` from helping."""
        wants_help = not {"-h", "--help"}.isdisjoint(args)
        found = None if wants_help else _configuration()
        if found is not None:
            extra["default_map"] = {
                option: value
                for key, option in _OPTIONS.items()
                if (value := getattr(found, key)) not in (None, ())
            }
        context = super().make_context(info_name, args, parent, **extra)
        context.meta[_KEY] = found
        return context


def configured() -> "Configuration | None":
    """The configuration of the command that runs."""
    return click.get_current_context().meta.get(_KEY)


def given(*parameters: str) -> list[str]:
    """Those of some parameters that stand on the command line."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    return [name for name in parameters if context.get_parameter_source(name) == source]


def _configuration() -> "Configuration | None":
    if find_table(Path.cwd()) is None:
        return None
    from specverify.certification.configuration import read_configuration

    found = read_configuration(Path.cwd())
    return None if found is None else found[1]
