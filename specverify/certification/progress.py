"""What a certification reports while it runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressEvent:
    """A case has got this far."""

    case: str
    """Id of the case being worked on."""
    done: int
    """Units of work of the case that are done, in [0, total]."""
    total: int
    """Units of work of the case, 0 if unknown."""
    message: str = ""
    """A few words for a reader, such as what the units are."""
