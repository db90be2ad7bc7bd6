"""The form all reference rules share: check, bring into float64, decide."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Generator, Tensor

from specverify.verification.checks import RoundInputs, prepare
from specverify.verification.protocol import Verified

Decide = Callable[[RoundInputs, Generator | None], Verified]


@dataclass(unsafe_hash=True)
class ReferenceVerification:
    """A verification rule by its name; satisfies the `Verification` protocol."""

    name: str
    """Algorithm name as subjects declare it."""

    decide: Decide
    """The rule itself, on input that has been checked."""

    checked: bool = True
    """Whether every call looks at the values it is given, see `checks.prepare`."""

    def unchecked(self) -> "ReferenceVerification":
        """The same rule for callers that vouch for their input, such as a loop over its own
        softmax: shapes are still checked, values are not, and out come the same tokens."""
        return replace(self, checked=False)

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        generator: Generator | None = None,
        num_draft_tokens: Tensor | None = None,
    ) -> Verified:
        """Verify one block per row; arguments and result as `Verification.__call__` has them.

        Raises:
            UsageError: a shape, token id or probability is impossible.
        """
        inputs = prepare(
            draft_tokens,
            draft_probs,
            target_probs,
            num_draft_tokens,
            check_values=self.checked,
        )
        return self.decide(inputs, generator)
