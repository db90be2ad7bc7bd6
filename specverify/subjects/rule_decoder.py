"""A rule under test as the verification of the reference loop."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot, pad

from specverify.categorical import draw
from specverify.errors import UsageError
from specverify.subjects.calling import call_rule
from specverify.subjects.guard import DEFAULT_TIME_LIMIT
from specverify.subjects.protocols import Subject
from specverify.verification.protocol import Verified


@dataclass
class RuleVerification:
    """Calls a rule subject where a `Verification` is wanted.

    Rows that offer a different number of draft tokens are handed over in groups of the same K, so
    the rule never sees padding among its draft tokens. A round without draft tokens has nothing to
    decide: its token is drawn from the target and the rule is not called. Deterministic drafts are
    handed over as one-hot distributions.
    """

    subject: Subject
    time_limit: float = DEFAULT_TIME_LIMIT
    on_finding: Callable[[str], None] | None = None
    """Told each new sentence of `Call.findings`."""
    name: str = field(init=False)
    silent_bonus: Tensor | None = field(default=None, init=False, repr=False)
    """bool [B], rows whose first round accepted every draft token and emitted no bonus token. Such
    a row looks like one that rejected its last draft token, but no lossless rule draws a
    correction that equals the token it rejected there."""
    _told: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.subject.kind != "rule":
            raise UsageError(
                f"{self.subject.name!r} is a {self.subject.kind}; only a rule can verify a round"
            )
        self.name = self.subject.capabilities.algorithm or self.subject.name

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
            UsageError: no generator is given; a rule under test must not draw unseeded.
            SubjectError: the rule raised, or returned tokens of a wrong shape or range.
            SubjectTimeout: it ran past the time limit.
        """
        if generator is None:
            raise UsageError(f"rule {self.subject.name!r} needs a torch.Generator to draw from")
        rows, width = draft_tokens.shape
        if num_draft_tokens is None:
            num_draft_tokens = torch.full((rows,), width, device=draft_tokens.device)
        if draft_probs is None:
            draft_probs = one_hot(draft_tokens.clamp(min=0), target_probs.shape[2])
            draft_probs = draft_probs.to(target_probs.dtype)
        tokens = draft_tokens.new_full((rows, width + 1), -1)
        for count in num_draft_tokens.unique().tolist():
            group = (num_draft_tokens == count).nonzero().squeeze(1)
            emitted = self._decide(
                draft_tokens[group, :count],
                draft_probs[group, :count],
                target_probs[group, : count + 1],
                generator,
            )
            tokens[group] = pad(emitted, (0, width - count), value=-1)
        if self.silent_bonus is None:
            emitted_counts = (tokens >= 0).sum(1)
            offered = torch.arange(width, device=tokens.device) < num_draft_tokens[:, None]
            agrees = ((tokens[:, :width] == draft_tokens) | ~offered).all(1)
            self.silent_bonus = agrees & (emitted_counts == num_draft_tokens)
        return Verified(tokens, (tokens >= 0).sum(1) - 1)

    def _decide(
        self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, generator: Generator
    ) -> Tensor:
        if draft_tokens.shape[1] == 0:
            return draw(target_probs, generator)
        call = call_rule(
            self.subject,
            draft_tokens,
            draft_probs,
            target_probs,
            generator,
            time_limit=self.time_limit,
        )
        for finding in call.findings:
            if finding not in self._told and self.on_finding is not None:
                self.on_finding(finding)
            self._told.add(finding)
        return call.value


def rule_as_verification(
    subject: Subject,
    *,
    time_limit: float = DEFAULT_TIME_LIMIT,
    on_finding: Callable[[str], None] | None = None,
) -> RuleVerification:
    """Wrap a rule subject so that the reference loop can run it.

    Args:
        subject: a subject of kind rule.
        time_limit: seconds for one call of the rule.
        on_finding: told each new oddity that is no error, such as a touched global generator.

    Raises:
        UsageError: the subject is of another kind.
    """
    return RuleVerification(subject, time_limit, on_finding)
