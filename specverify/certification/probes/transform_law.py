"""What may be true of a reference transform, and the parameters to try it on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Parameters = dict[str, Any]

Effect = Literal["truncates", "bans", "tempers", "moves"]
"""What a transform does to a row: make tokens impossible, judged by the row's own distribution or
by its history; change how far apart tokens are and not their order; or change any logit, and no
support."""


@dataclass(frozen=True)
class Laws:
    """What is true of one reference, with the parameters to try it on."""

    effect: Effect
    ladder: tuple[Parameters, ...]
    """From strict to permissive: a truncation or ban keeps more at every step, and of the others
    the tokens that `favoured` names gain."""
    neutral: tuple[Parameters, ...]
    """With these nothing changes."""
    large: Parameters
    """For a vocabulary of 50,000; token ids lie beyond what 15 bits hold where there are any."""
    from_the_top: bool = False
    """Whether no token survives while a likelier one does not."""
    idempotent: bool = False
    """Whether a second application changes nothing."""
    shift: bool = True
    """Whether a constant added to the logits changes nothing."""
    cooled: Callable[[Parameters, float], Parameters] | None = None
    """The parameters under which, on logits divided by a temperature, it does what it did before
    with the parameters given; None where there are none."""
    strictest: Parameters | None = None
    """As little as a truncation may be asked to keep."""
    more: tuple[Parameters, ...] = ()
    """Further parameters for rows of unusual size."""

    @property
    def masks(self) -> bool:
        """Whether it may make tokens impossible; then it changes nothing else."""
        return self.effect in ("truncates", "bans")


def each(name: str, *values: Any) -> tuple[Parameters, ...]:
    """Parameters of one name, by their values."""
    return tuple({name: value} for value in values)


def same(parameters: Parameters, temperature: float) -> Parameters:
    """Those that a temperature leaves as they are."""
    return parameters
