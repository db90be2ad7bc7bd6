"""A draft with permuted or padded ids, presented in the ids of its target."""

import torch
from torch import Tensor

from specverify.models.prompts import check_block, prompt_lengths
from specverify.models.protocol import LanguageModel, Session
from specverify.models.vocabulary import Relation, Vocabulary


class MappedModel:
    """A `LanguageModel` whose ids are translated, tokens one way and logits the other.

    What the draft says about its own padding is dropped before anything is sampled, and target ids
    that are padding get -inf. A target token without counterpart (padding that the target emitted
    all the same) is read as some other token: what a draft conditions on changes its acceptance,
    never the target's distribution.

    Args:
        model: the draft, in its own ids.
        relation: from `vocabulary.compare(target, draft)`.
    """

    def __init__(self, model: LanguageModel, relation: Relation) -> None:
        self.model = model
        self.relation = relation
        self.vocab_size = relation.target.size
        self.window = model.window
        self.vocabulary: Vocabulary | None = relation.target
        self.source = torch.tensor(relation.target_to_draft)
        """Draft id of every target id, -1 where there is none, long [V]."""
        unknown = relation.draft.special_tokens.get("unk_token")
        if unknown is None:
            unknown = next(iter(relation.draft.ids.values()), 0)
        self._readable = self.source.where(self.source >= 0, torch.tensor(unknown))

    def start(self, prompt_ids: Tensor, attention_mask: Tensor | None = None) -> "MappedSession":
        """Open a session that holds all but the last token of every prompt, in target ids."""
        prompt_lengths(prompt_ids, attention_mask, self.vocab_size, self.window)
        return MappedSession(self, self.model.start(self.to_draft(prompt_ids), attention_mask))

    def to_draft(self, tokens: Tensor) -> Tensor:
        """Draft ids of target ids; what lies outside the vocabulary (padding) becomes any id."""
        return self._readable.to(tokens.device)[tokens.clamp(0, self.vocab_size - 1)]

    def to_target(self, logits: Tensor) -> Tensor:
        """Logits [..., V of the target] from logits [..., V of the draft]."""
        source = self.source.to(logits.device)
        return logits[..., source.clamp(min=0)].masked_fill(source < 0, -torch.inf)


class MappedSession:
    """A session of the draft, spoken to in target ids."""

    def __init__(self, model: MappedModel, session: Session) -> None:
        self.model = model
        self.session = session

    @property
    def lengths(self) -> Tensor:
        """Tokens held per row, long [B]."""
        return self.session.lengths

    @property
    def passes(self) -> int:
        """Forward passes of the draft."""
        return self.session.passes

    def extend(self, tokens: Tensor, counts: Tensor | None = None) -> Tensor:
        """Read a block per row and return logits [B, n, V] (see `Session.extend`)."""
        model = self.model
        check_block(tokens, counts, self.lengths, model.vocab_size, model.window)
        return model.to_target(self.session.extend(model.to_draft(tokens), counts))

    def roll_back(self, lengths: Tensor) -> None:
        """Forget all but the first `lengths[b]` tokens of each row."""
        self.session.roll_back(lengths)
