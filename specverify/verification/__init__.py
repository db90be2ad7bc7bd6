"""Who decides: the rules that accept draft tokens and draw what follows them."""

from specverify.errors import UsageError
from specverify.verification.block import BLOCK
from specverify.verification.greedy import GREEDY
from specverify.verification.match import MATCH
from specverify.verification.protocol import Verification, Verified
from specverify.verification.reference import ReferenceVerification
from specverify.verification.residual import acceptance, residual
from specverify.verification.token import TOKEN

__all__ = [
    "BLOCK",
    "GREEDY",
    "MATCH",
    "TOKEN",
    "VERIFICATIONS",
    "ReferenceVerification",
    "Verification",
    "Verified",
    "acceptance",
    "get_verification",
    "residual",
]

VERIFICATIONS: dict[str, ReferenceVerification] = {
    rule.name: rule for rule in (GREEDY, TOKEN, BLOCK, MATCH)
}
"""The reference rules by algorithm name."""


def get_verification(name: str) -> ReferenceVerification:
    """Look up a reference rule.

    Raises:
        UsageError: no rule has this name; the message lists those there are.
    """
    try:
        return VERIFICATIONS[name]
    except KeyError:
        raise UsageError(
            f"unknown verification {name!r}; choose one of {', '.join(VERIFICATIONS)}"
        ) from None
