"""What recomputing a certificate has compared, and where it came to something else."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

RELATIVE = 1e-7
"""Numbers closer than this are the same: other releases of scipy differ in the last digits."""
ABSOLUTE = 1e-10
_TINY = 1e-13
"""What sums of probabilities are off by."""

Value = float | int | str | bool | None


@dataclass(frozen=True)
class Disagreement:
    """A field that is not what the rest of the certificate makes it."""

    field: str
    """Where it stands, as `cases[plain].joint.every_token[e-process].p_value`."""
    stated: str
    recomputed: str
    """What it should be, or between what it should lie."""


@dataclass
class Ledger:
    """Comparisons by what was recomputed."""

    compared: Counter[str] = field(default_factory=Counter)
    """Number of comparisons, by their kind in words."""
    disagreements: list[Disagreement] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    """What cannot be recomputed, and why."""
    _where: list[str] = field(default_factory=list)

    @contextmanager
    def at(self, part: str) -> Iterator[None]:
        """Name the part of the certificate that the next fields are of."""
        self._where.append(part)
        try:
            yield
        finally:
            self._where.pop()

    @contextmanager
    def guarded(self, part: str) -> Iterator[None]:
        """Name a part, from whose numbers it may be impossible to compute anything."""
        with self.at(part):
            depth = len(self._where)
            try:
                yield
            except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
                del self._where[depth:]
                said = str(error) or type(error).__name__
                because = f"numbers that something can be computed from ({said})"
                self.holds(
                    "numbers that make sense", "*", "other ones", right=False, because=because
                )

    def same(self, kind: str, name: str, stated: Value, recomputed: Value) -> None:
        """Compare a field with what it should be; numbers up to rounding."""
        self._note(kind, name, stated, _text(recomputed), _equal(stated, recomputed))

    def within(
        self,
        kind: str,
        name: str,
        stated: float,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> None:
        """Compare a number with the interval it should lie in, up to rounding."""
        slack = _TINY + RELATIVE * abs(stated if math.isfinite(stated) else 0.0)
        right = least - slack <= stated <= most + slack
        if math.isinf(most):
            interval = f"at least {_text(least)}"
        elif math.isinf(least):
            interval = f"at most {_text(most)}"
        else:
            interval = f"{_text(least)} to {_text(most)}"
        self._note(kind, name, stated, interval, right)

    def holds(self, kind: str, name: str, stated: Value, *, right: bool, because: str) -> None:
        """Note whether a field fits the others; `because` says what it should be."""
        self._note(kind, name, stated, because, right)

    def cannot(self, what: str, why: str) -> None:
        """Note what the certificate does not hold the numbers for."""
        self.unknown.setdefault(what, why)

    def _note(self, kind: str, name: str, stated: Value, recomputed: str, right: bool) -> None:  # noqa: FBT001
        self.compared[kind] += 1
        if not right:
            path = ".".join([*self._where, name])
            self.disagreements.append(Disagreement(path, _text(stated), recomputed))


def _equal(stated: Value, recomputed: Value) -> bool:
    if isinstance(stated, bool | str | None) or isinstance(recomputed, bool | str | None):
        return stated == recomputed
    # p-values of e^-200 are no more the same as 0 than others.
    absolute = 0.0 if min(abs(stated), abs(recomputed)) < ABSOLUTE else ABSOLUTE
    return stated == recomputed or math.isclose(
        stated, recomputed, rel_tol=RELATIVE, abs_tol=absolute
    )


def _text(value: Value) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
