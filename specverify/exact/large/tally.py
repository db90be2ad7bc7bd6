"""Masses summed chunk by chunk, in a file that an interrupted check continues from."""

import json
import os
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from specverify.errors import SpecverifyError, UsageError

Key = Mapping[str, str | int]
"""What decides a tally, by name."""


@dataclass
class Tally:
    """What the draft tokens looked at so far have given. Per-token tensors are float64 [V]."""

    emitted: Tensor
    """Mass of each token at the position."""
    continued: Tensor
    """Of each draft token, mass of rounds that emit it and another token behind it."""
    accepted: Tensor
    """Of each draft token, mass of rounds that emit it."""
    deviation: Tensor
    """Of each draft token, total variation of what follows it, times `continued`."""
    ratio: Tensor
    """Of each draft token, largest emitted / target of what follows it; 1 if nothing does."""
    outside: Tensor
    """Of each draft token, mass of followers that the target cannot produce."""
    unfit: float = 0.0
    """Mass of ids outside the vocabulary."""
    missing: float = 0.0
    """Mass of rounds without any token."""
    stray: float = 0.0
    unchecked: float = 0.0
    crashes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    findings: dict[str, None] = field(default_factory=dict)
    reuses: dict[str, None] = field(default_factory=dict)
    runs: int = 0
    done: int = 0
    """Draft tokens looked at, in the order of their ids."""

    @classmethod
    def empty(cls, vocab_size: int) -> Self:
        """Nothing seen yet."""
        a, b, c, d, e = torch.zeros(5, vocab_size, dtype=torch.float64)
        return cls(a, b, c, d, ratio=torch.ones(vocab_size, dtype=torch.float64), outside=e)

    def save(self, path: Path, key: Key) -> None:
        """Write the file in one step, so that there is always a whole one.

        Args:
            path: of the file.
            key: what is computed; `load` refuses any other.

        Raises:
            SpecverifyError: the file cannot be written.
        """
        arrays: dict[str, Any] = {}
        plain: dict[str, Any] = {"key": dict(key)}
        for name in (entry.name for entry in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                arrays[name] = value.numpy()
            else:
                plain[name] = list(value) if name in ("findings", "reuses") else value
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez(file, plain=np.array(json.dumps(plain)), **arrays)
            partial.replace(path)
        except OSError as error:
            raise SpecverifyError(
                f"progress cannot be kept in {path}: {error.strerror or error}; make room or keep "
                "it elsewhere"
            ) from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, key: Key) -> Self:
        """Read what `save` wrote.

        Raises:
            UsageError: the file belongs to another computation, or is none of these files.
        """
        remedy = "delete it to begin anew, or keep progress elsewhere"
        try:
            with np.load(path, allow_pickle=False) as stored:
                plain = json.loads(str(stored["plain"]))
                arrays = {
                    name: torch.from_numpy(stored[name]) for name in stored if name != "plain"
                }
            found = plain.pop("key")
            tally = cls(**arrays, **plain)
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise UsageError(f"{path} holds no progress of an exact check; {remedy}") from error
        if found != key:
            raise UsageError(
                f"{path} holds progress of another check{_differences(found, key)}; {remedy}"
            )
        tally.crashes = defaultdict(float, tally.crashes)
        tally.findings, tally.reuses = dict.fromkeys(tally.findings), dict.fromkeys(tally.reuses)
        return tally


def _differences(found: Any, key: Key) -> str:
    if not isinstance(found, dict):
        return ""
    return ": " + ", ".join(
        f"{name} is {found.get(name, 'absent')} there and {value} here"
        for name, value in key.items()
        if found.get(name) != value
    )
