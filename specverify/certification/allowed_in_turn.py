"""A rule for allowed tokens that is plain numbers, so that a certificate can hold it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, repr=False)
class AllowedInTurn:
    """Sets of tokens that may come next, by turns; fits `SamplingSettings.allowed_tokens`.

    The first set holds at the beginning. Each token of `turning`, once emitted, brings up the next
    set, and after the last one comes the first again. So every emitted token counts, whatever their
    order, and after any history something is allowed.
    """

    sets: tuple[tuple[int, ...], ...]
    turning: tuple[int, ...]

    def __repr__(self) -> str:
        """In short, as it stands in the names of cases."""
        sets = " | ".join(" ".join(map(str, allowed)) for allowed in self.sets)
        return f"({sets} by {' '.join(map(str, self.turning)) or 'none'})"

    def __call__(self, emitted: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that may follow these ones, the prompt left out."""
        turns = sum(token in self.turning for token in emitted)
        return self.sets[turns % len(self.sets)]

    @property
    def tokens(self) -> set[int]:
        """All that the rule names."""
        return {*self.turning, *(token for allowed in self.sets for token in allowed)}

    def renamed(self, names: list[int]) -> Self:
        """The same rule where token `i` is called `names[i]`."""
        sets = tuple(tuple(names[token] for token in allowed) for allowed in self.sets)
        return type(self)(sets, tuple(names[token] for token in self.turning))

    @property
    def record(self) -> dict[str, Any]:
        """In JSON's types; `loaded` reads it."""
        return {"sets": [list(allowed) for allowed in self.sets], "turning": list(self.turning)}

    @classmethod
    def loaded(cls, record: Mapping[str, Any]) -> Self:
        """The rule of a record.

        Raises:
            KeyError: an entry is missing.
            TypeError: one has another type.
            ValueError: one is no number, or there is no set.
        """
        sets = tuple(tuple(map(int, allowed)) for allowed in record["sets"])
        if not sets:
            raise ValueError("a rule by turns has at least one set")
        return cls(sets, tuple(map(int, record["turning"])))
