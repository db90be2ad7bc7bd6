"""How many tokens a certification samples, by profile and by how fast the subject can be run."""

from dataclasses import dataclass
from typing import Literal

from specverify.errors import UsageError

Speed = Literal["table", "batch", "single"]
"""table: vectorised over table models; batch: rows of a real model; single: one row a call."""


@dataclass(frozen=True)
class Profile:
    """Tokens to emit over all settings of a run, and rows per call, by speed."""

    tokens: dict[Speed, int]


ROWS: dict[Speed, int] = {"table": 16_384, "batch": 256, "single": 1}
"""Rows handed to the subject in one call."""

PROFILES: dict[str, Profile] = {
    "quick": Profile({"table": 2_500_000, "batch": 250_000, "single": 5_000}),
    "standard": Profile({"table": 10_000_000, "batch": 1_000_000, "single": 20_000}),
    "thorough": Profile({"table": 50_000_000, "batch": 5_000_000, "single": 200_000}),
}


def profile_named(name: str) -> Profile:
    """Look a profile up; raise `UsageError` for an unknown one."""
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name!r}; choose one of {', '.join(PROFILES)}")
    return PROFILES[name]
