"""Vocabularies: which string stands behind which token id, and whether two of them agree.

Speculative decoding compares a draft's distribution with the target's id by id, so an id must mean
the same string to both. Two tokenizers that decode some text alike prove nothing: what is compared
here is every entry, byte for byte.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

from specverify.errors import UsageError, VocabularyMismatch

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""Roles that must agree. The padding token is left out: it is masked and never read."""

_SHOWN = 3
"""Differing entries quoted in an error message."""


@dataclass(frozen=True)
class Vocabulary:
    """The strings behind the token ids of one model.

    Attributes:
        tokens: one entry per column of the logits; None where no token stands behind the id (a
            logits layer padded to a round size).
        special_tokens: role (`eos_token`, `bos_token`, ...) to token id.

    Raises:
        UsageError: a string stands behind two ids, or a role names an id that has no string.
    """

    tokens: tuple[str | None, ...]
    special_tokens: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        seen: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            if token is None:
                continue
            if token in seen:
                raise UsageError(
                    f"token {token!r} stands behind both id {seen[token]} and id {index}; "
                    "every string of a vocabulary needs one id"
                )
            seen[token] = index
        for role, index in self.special_tokens.items():
            if not 0 <= index < self.size or self.tokens[index] is None:
                raise UsageError(
                    f"{role} is id {index}, which has no token in a vocabulary of {self.size} "
                    "ids; correct the special tokens"
                )

    @property
    def size(self) -> int:
        """Width of the logits, padding included."""
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token string to id."""
        return {token: index for index, token in enumerate(self.tokens) if token is not None}

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, size: int | None = None) -> Self:
        """Read the vocabulary of a Hugging Face tokenizer.

        Args:
            tokenizer: has `get_vocab()` and, optionally, `special_tokens_map`.
            size: width of the model's logits; up to the tokenizer's largest id when omitted.

        Raises:
            UsageError: the tokenizer has an id that the logits lack.
        """
        # Sorted, because the order of a fast tokenizer's dict differs between processes.
        entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
        largest = int(entries[-1][1]) if entries else -1
        width = largest + 1 if size is None else size
        if largest >= width:
            raise UsageError(
                f"the tokenizer has id {largest} ({entries[-1][0]!r}), but the model's logits end "
                f"at id {width - 1}; load the tokenizer that belongs to the model"
            )
        tokens: list[str | None] = [None] * width
        for token, index in entries:
            if tokens[index] is None:
                tokens[index] = token
        ids = dict(entries)
        roles = getattr(tokenizer, "special_tokens_map", {})
        special = {
            role: ids[str(token)]
            for role, token in roles.items()
            if not isinstance(token, list | tuple) and str(token) in ids
        }
        return cls(tuple(tokens), special)

    def describe(self, index: int) -> str:
        """How messages quote an id: its string, or why it has none."""
        if index >= self.size:
            return "beyond the end"
        token = self.tokens[index]
        return "padding" if token is None else repr(token)


@dataclass(frozen=True)
class Relation:
    """How the ids of a draft correspond to those of its target."""

    target: Vocabulary
    draft: Vocabulary
    draft_to_target: tuple[int, ...]
    """Target id of every draft id; -1 for draft ids that are padding."""

    @property
    def kind(self) -> Literal["identical", "mappable"]:
        """`identical` when both use the same ids, padding included; `mappable` otherwise."""
        return "identical" if self.target.tokens == self.draft.tokens else "mappable"

    @cached_property
    def target_to_draft(self) -> tuple[int, ...]:
        """Draft id of every target id; -1 for target ids that are padding."""
        inverse = [-1] * self.target.size
        for draft_id, target_id in enumerate(self.draft_to_target):
            if target_id >= 0:
                inverse[target_id] = draft_id
        return tuple(inverse)


def compare(target: Vocabulary, draft: Vocabulary) -> Relation:
    """Relate the ids of a draft to those of its target.

    Both must hold exactly the same strings. Their ids may be permuted, and either side may have
    padding the other lacks. A role (`eos_token`, ...) that both declare must fall on the same
    string.

    Raises:
        VocabularyMismatch: a string is missing on one side, or a role differs; the message quotes
            the first differing ids with their strings on both sides.
    """
    if target.ids.keys() != draft.ids.keys():
        raise VocabularyMismatch(_explain(target, draft))
    for role in _ROLES:
        ours, theirs = target.special_tokens.get(role), draft.special_tokens.get(role)
        if ours is None or theirs is None:
            continue
        if target.tokens[ours] != draft.tokens[theirs]:
            raise VocabularyMismatch(
                f"{role} is {target.describe(ours)} (id {ours}) in the target but "
                f"{draft.describe(theirs)} (id {theirs}) in the draft, although the strings of "
                f"both vocabularies agree; set draft_tokenizer.{role} = {target.tokens[ours]!r} "
                "if both models were trained with it, else choose another draft"
            )
    mapping = tuple(-1 if token is None else target.ids[token] for token in draft.tokens)
    return Relation(target, draft, mapping)


def _explain(target: Vocabulary, draft: Vocabulary) -> str:
    """Say where two vocabularies part, and what to do about it."""
    longest = max(target.size, draft.size)
    differing = [i for i in range(longest) if _token(target, i) != _token(draft, i)]
    quoted = "; ".join(
        f"id {i} is {target.describe(i)} in the target and {draft.describe(i)} in the draft"
        for i in differing[:_SHOWN]
    )
    missing = [
        f"{len(absent)} {'token' if len(absent) == 1 else 'tokens'} of the {owner} "
        f"(first {absent[0]!r}, id {ids[absent[0]]}) missing from the {other}"
        for owner, ids, other, others in (
            ("target", target.ids, "draft", draft.ids),
            ("draft", draft.ids, "target", target.ids),
        )
        if (absent := [token for token in ids if token not in others])
    ]
    return (
        f"target and draft have different vocabularies ({len(target.ids)} and {len(draft.ids)} "
        f"tokens, logits of {target.size} and {draft.size}): {quoted}; {'; '.join(missing)}. "
        "Use a draft trained with the target's tokenizer, or a drafter that needs no shared ids "
        "(n-gram, early exit, translated vocabulary)"
    )


def _token(vocabulary: Vocabulary, index: int) -> str | None:
    return vocabulary.tokens[index] if index < vocabulary.size else None
