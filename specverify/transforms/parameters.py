"""Checks of transform parameters, so that every refusal reads alike."""

from collections.abc import Iterable
from math import isfinite

from specverify.errors import SettingsError


def require(condition: bool, name: str, value: object, valid: str) -> None:  # noqa: FBT001
    """Raise `SettingsError` naming the parameter, the value given and the valid range."""
    if not condition:
        raise SettingsError(f"{name}={value!r} is not valid; give {valid}")


def finite(name: str, value: float) -> float:
    """`value` as a float; refuses NaN, infinities and what is not a number."""
    number = _number(name, value, "a finite number")
    require(isfinite(number), name, value, "a finite number")
    return number


def positive(name: str, value: float) -> float:
    """`value` as a float; refuses what is not finite and above 0."""
    number = _number(name, value, "a finite number above 0")
    require(isfinite(number) and number > 0, name, value, "a finite number above 0")
    return number


def probability(name: str, value: float, *, zero: bool, one: bool) -> float:
    """`value` as a float between 0 and 1, the ends included where `zero` and `one` say so."""
    valid = f"a number in {'[' if zero else '('}0, 1{']' if one else ')'}"
    number = _number(name, value, valid)
    inside = (0 < number < 1) or (zero and number == 0) or (one and number == 1)
    require(inside, name, value, valid)
    return number


def whole(name: str, value: int, *, least: int) -> int:
    """`value` as an int of at least `least`; refuses bools and floats."""
    fine = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(fine, name, value, f"a whole number of at least {least}")
    return value


def token_ids(name: str, ids: Iterable[int]) -> tuple[int, ...]:
    """`ids` as a tuple of token ids; refuses negative ones."""
    return tuple(whole(f"token id in {name}", token, least=0) for token in ids)


def inside_vocabulary(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raise `SettingsError` if an id does not exist in logits of width `vocab_size`."""
    outside = sorted({i for i in ids if not 0 <= i < vocab_size})
    if outside:
        raise SettingsError(
            f"{name} names token id {outside[0]}, but the logits have {vocab_size} entries "
            f"(0 to {vocab_size - 1}); remove the id"
        )


def _number(name: str, value: float, valid: str) -> float:
    require(isinstance(value, (int, float)) and not isinstance(value, bool), name, value, valid)
    return float(value)
