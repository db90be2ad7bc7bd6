"""How many tokens a certification samples, by profile and by how fast the subject can be run."""

from dataclasses import dataclass
from typing import Literal

from specverify.errors import UsageError

Speed = Literal["table", "batch", "single"]
"""table: vectorised over table models; batch: rows of a real model; single: one row a call."""


@dataclass(frozen=True)
class Profile:
    """How much is sampled, and how tightly a large vocabulary must be bounded."""

    tokens: dict[Speed, int]
    """Tokens to emit over all settings of a run, at most, by speed: sampling ends earlier once the
    bounds that `preserved` asks for are reached."""
    leak_limit: float
    """Largest bound on the mass moved towards the draft, for vocabularies above 64 tokens."""


FUZZ = "fuzz"
"""Samples as `quick` does, and then searches random inputs, see `certification.fuzzing`."""

ROWS: dict[Speed, int] = {"table": 16_384, "batch": 256, "single": 1}
"""Rows handed to the subject in one call."""

PROFILES: dict[str, Profile] = {
    "quick": Profile({"table": 25_000_000, "batch": 250_000, "single": 5_000}, 2e-2),
    "standard": Profile({"table": 50_000_000, "batch": 1_000_000, "single": 20_000}, 8e-3),
    "thorough": Profile({"table": 250_000_000, "batch": 5_000_000, "single": 200_000}, 2.5e-3),
    FUZZ: Profile({"table": 25_000_000, "batch": 250_000, "single": 5_000}, 2e-2),
}


def profile_named(name: str) -> Profile:
    """Look a profile up; raise `UsageError` for an unknown one."""
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name!r}; choose one of {', '.join(PROFILES)}")
    return PROFILES[name]
