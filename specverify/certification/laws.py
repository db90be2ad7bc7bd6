"""What target and draft say along runs: computed anew, or looked up where few contexts occur."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.decoding.scoring import TeacherForced
from specverify.models.protocol import LanguageModel
from specverify.models.table import TableModel, context_index
from specverify.settings import SamplingSettings
from specverify.statistics.pit import pit_lower
from specverify.transforms.pipeline import Pipeline

MOST_ENTRIES = 1 << 21
"""Keys times V up to which distributions are kept in tables."""

ORDERS = ("ratio", "probability", "index")
"""Orders of the randomised PIT, see `statistics.pit`."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Laws:
    """Distributions of tokens, float64 [..., V] each, from fresh teacher-forced passes."""

    p: Tensor
    """Of the target under the settings."""
    q: Tensor
    """Of the draft under the settings."""
    p_raw: Tensor | None = None
    """Of the target without transforms; None where the settings have none."""
    q_raw: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> "Laws":
        """The same change made to each."""
        raw = (None if law is None else change(law) for law in (self.p_raw, self.q_raw))
        return Laws(change(self.p), change(self.q), *raw)

    def __getitem__(self, index: Any) -> "Laws":
        return self.map(lambda law: law[index])

    def numpy(self) -> tuple[Array, Array, Array | None, Array | None]:
        """p, q, p_raw and q_raw as arrays."""
        raw = [None if law is None else law.numpy() for law in (self.p_raw, self.q_raw)]
        return self.p.numpy(), self.q.numpy(), raw[0], raw[1]

    @staticmethod
    def join(parts: "Sequence[Laws]") -> "Laws":
        """Rows of several, one after the other."""
        p, q = (torch.cat([getattr(part, name) for part in parts]) for name in ("p", "q"))
        if parts[0].p_raw is None:
            return Laws(p, q)
        raw = (torch.cat([getattr(part, name) for part in parts]) for name in ("p_raw", "q_raw"))
        return Laws(p, q, *raw)


def law_rows(law: Tensor, present: Tensor) -> Tensor:
    """Rows [M, V] of a law [..., V] at the places [...] that are `present`; a view if all are."""
    return law.reshape(-1, law.shape[-1]) if bool(present.all()) else law[present]


class ForcedLaws:
    """Laws along runs of one prompt, from a pass of both models for every batch."""

    def __init__(self, target: TeacherForced, draft: TeacherForced, *, raw: bool) -> None:
        self.target, self.draft, self.raw = target, draft, raw

    def along(self, tokens: Tensor) -> Laws:
        """Laws at every position of runs, long [N, L], padded right with -1."""
        if not self.raw:
            return Laws(self.target.along(tokens), self.draft.along(tokens))
        p, p_raw = self.target.along_with_raw(tokens)
        q, q_raw = self.draft.along_with_raw(tokens)
        return Laws(p, q, p_raw, q_raw)

    def after(self, prefixes: Tensor) -> Laws:
        """Laws after prefixes, long [N, t]: [N, V] each."""
        p, p_raw = self.target.last_with_raw(prefixes)
        q, q_raw = self.draft.last_with_raw(prefixes)
        return Laws(p, q, p_raw, q_raw) if self.raw else Laws(p, q)


class Keys(Protocol):
    """Numbers for the contexts of tokens: equal numbers mean equal laws."""

    count: int

    def positions(self, keys: Tensor) -> Tensor:
        """Position in the run, counted from 0, that keys stand for; late ones may be merged."""
        ...

    def of(self, prompt: int, tokens: Tensor) -> Tensor:
        """Keys at every position of runs of one prompt, long [N, L] to long [N, L]."""
        ...

    def levels(self, keys: Tensor) -> Iterator[Tensor]:
        """Keys in groups, those of shorter prefixes first."""
        ...

    def parents(self, keys: Tensor) -> tuple[Tensor, Tensor] | None:
        """Keys of the prefixes that are one token shorter, and that token; None for empty ones."""
        ...

    def laws(self, keys: Tensor, possible: Tensor) -> Laws:
        """Laws of the keys of one level, [M, V] each.

        Args:
            keys: long [M].
            possible: bool [M], False for prefixes that hold an impossible token: a grammar has
                nothing to say about them.
        """
        ...


class ContextKeys:
    """Position and the last tokens, where transforms look at logits alone."""

    def __init__(
        self,
        target: TableModel,
        draft: TableModel,
        settings: SamplingSettings,
        prompts: tuple[tuple[int, ...], ...],
        places: int,
        *,
        raw: bool,
    ) -> None:
        self.target, self.draft, self.prompts, self.raw = target, draft, prompts, raw
        self.places = places
        self.order = max(target.order, draft.order)
        self.contexts = (target.vocab_size + 1) ** self.order
        self.count = places * self.contexts
        self._pipeline = Pipeline.from_settings(settings, target.vocab_size, torch.Generator())

    def of(self, prompt: int, tokens: Tensor) -> Tensor:
        """See `Keys`."""
        vocab_size, order = self.target.vocab_size, self.order
        before = torch.full((order,), vocab_size)
        given = (
            torch.cat([before, torch.tensor(self.prompts[prompt])])[-order:] if order else before
        )
        rows, length = tokens.shape
        history = torch.cat([given.expand(rows, -1), tokens.clamp(min=0)], 1)[
            :, : order + length - 1
        ]
        windows = history.unfold(1, order, 1) if order else history.new_zeros(rows, length, 0)
        places = torch.arange(length).clamp(max=self.places - 1)
        return context_index(windows, vocab_size) + places * self.contexts

    def positions(self, keys: Tensor) -> Tensor:
        """See `Keys`."""
        return keys // self.contexts

    def levels(self, keys: Tensor) -> Iterator[Tensor]:
        """See `Keys`; contexts do not build on each other."""
        yield keys

    def parents(self, keys: Tensor) -> None:
        """See `Keys`."""
        return

    def laws(self, keys: Tensor, possible: Tensor) -> Laws:
        """See `Keys`."""
        contexts = keys % self.contexts
        base = self.target.vocab_size + 1
        logits = [model.logits[contexts % base**model.order] for model in (self.target, self.draft)]
        transformed = [self._transformed(rows) for rows in logits]
        raw = [rows.softmax(1) for rows in logits] if self.raw else (None, None)
        return Laws(*transformed, *raw)

    def _transformed(self, logits: Tensor) -> Tensor:
        nothing = torch.zeros((len(logits), 0), dtype=torch.long)
        lengths = torch.zeros(len(logits), dtype=torch.long)
        pipeline = self._pipeline
        return pipeline.expected_probabilities(logits[:, None], nothing, lengths, lengths)[:, 0]


class PrefixKeys:
    """Prompt and all emitted tokens, where transforms look at the history and runs are short."""

    def __init__(self, forced: tuple[ForcedLaws, ...], vocab_size: int, length: int) -> None:
        self.forced, self.vocab_size = forced, vocab_size
        sizes = [vocab_size**depth for depth in range(length)]
        self.offsets = [sum(sizes[:depth]) for depth in range(length + 1)]
        self.count = len(forced) * self.offsets[-1]

    def of(self, prompt: int, tokens: Tensor) -> Tensor:
        """See `Keys`."""
        code = torch.zeros(len(tokens), dtype=torch.long)
        columns = []
        for depth in range(tokens.shape[1]):
            columns.append(code + self.offsets[depth])
            code = code * self.vocab_size + tokens[:, depth].clamp(min=0)
        return torch.stack(columns, 1) + prompt * self.offsets[-1]

    def positions(self, keys: Tensor) -> Tensor:
        """See `Keys`."""
        starts = torch.tensor(self.offsets[1:-1])
        return torch.bucketize(keys % self.offsets[-1], starts, right=True)

    def levels(self, keys: Tensor) -> Iterator[Tensor]:
        """See `Keys`."""
        positions = self.positions(keys)
        for depth in range(len(self.offsets) - 1):
            level = keys[positions == depth]
            if len(level):
                yield level

    def parents(self, keys: Tensor) -> tuple[Tensor, Tensor] | None:
        """See `Keys`."""
        depth = int(self.positions(keys[:1]))
        if depth == 0:
            return None
        prompts, places = keys // self.offsets[-1], keys % self.offsets[-1]
        code = places - self.offsets[depth]
        shorter = code // self.vocab_size + self.offsets[depth - 1]
        return prompts * self.offsets[-1] + shorter, code % self.vocab_size

    def laws(self, keys: Tensor, possible: Tensor) -> Laws:
        """See `Keys`."""
        depth = int(self.positions(keys[:1]))
        prompts = keys // self.offsets[-1]
        code = keys % self.offsets[-1] - self.offsets[depth]
        # A token after the prefix, whichever, for passes along whole runs.
        runs = torch.zeros((len(keys), depth + 1), dtype=torch.long)
        for column in range(depth - 1, -1, -1):
            runs[:, column] = code % self.vocab_size
            code = code // self.vocab_size
        found: list[tuple[Tensor, Laws]] = []
        for prompt, forced in enumerate(self.forced):
            for reachable in (True, False):
                here = (prompts == prompt) & (possible == reachable)
                rows = here.nonzero().squeeze(1)
                if not len(rows):
                    continue
                # A pass along the run sees where it became impossible.
                some = (
                    forced.after(runs[rows, :-1]) if reachable else forced.along(runs[rows])[:, -1]
                )
                found.append((rows, some))
        order = torch.cat([rows for rows, _ in found]).argsort()
        return Laws.join([laws for _, laws in found])[order]


class LawTable:
    """Laws by key, filled as keys are met, with what else a token's score needs."""

    def __init__(self, keys: Keys, vocab_size: int) -> None:
        self._keys = keys
        shape = (keys.count, vocab_size)
        self.count, self.vocab_size = shape
        self._filled = torch.zeros(keys.count, dtype=torch.bool)
        self._possible = torch.zeros(keys.count, dtype=torch.bool)
        self._laws: Laws | None = None
        self.lower = np.zeros((len(ORDERS), *shape))
        """Where the interval of each token begins, by order of the randomised PIT."""
        self.raised = np.zeros(shape, np.bool_)
        """Whether p > q: such a token may be a correction."""

    def keys(self, prompt: int, tokens: Tensor) -> Tensor:
        """Keys at every position of runs, filled."""
        keys = self._keys.of(prompt, tokens)
        # Nothing is asked behind the end of a run.
        keys = torch.where(tokens >= 0, keys, keys[:, :1])
        missing = torch.zeros_like(self._filled)
        missing[keys.flatten()] = True
        new = (missing & ~self._filled).nonzero().squeeze(1)
        for level in self._keys.levels(new):
            self._fill(level)
        return keys

    def positions(self, keys: Tensor) -> Tensor:
        """Position in the run that keys stand for."""
        return self._keys.positions(keys)

    def laws(self, keys: Tensor) -> Laws:
        """Laws of filled keys, [..., V] each."""
        assert self._laws is not None
        return self._laws[keys]

    def _fill(self, new: Tensor) -> None:
        parents = self._keys.parents(new)
        if parents is None or self._laws is None:
            possible = torch.ones(len(new), dtype=torch.bool)
        else:
            shorter, tokens = parents
            possible = self._possible[shorter] & (self._laws.p[shorter, tokens] > 0)
        laws = self._keys.laws(new, possible)
        if self._laws is None:
            shape = (self.count, self.vocab_size)
            self._laws = laws.map(lambda law: law.new_zeros(shape))
        for name in ("p", "q", "p_raw", "q_raw"):
            table, rows = getattr(self._laws, name), getattr(laws, name)
            if table is not None:
                table[new] = rows
        p, q, _, _ = laws.numpy()
        index = new.numpy()
        for order, lower in zip(ORDERS, self.lower, strict=True):
            lower[index] = pit_lower(p, order, q)
        self.raised[index] = p > q
        self._possible[new] = possible
        self._filled[new] = True


def law_table(
    target: LanguageModel,
    draft: LanguageModel,
    settings: SamplingSettings,
    prompts: tuple[tuple[int, ...], ...],
    places: int,
    forced: Callable[[], tuple[ForcedLaws, ...]],
    *,
    raw: bool,
) -> LawTable | None:
    """A table of laws, if the models are tables and few enough contexts can occur."""
    if not (isinstance(target, TableModel) and isinstance(draft, TableModel)):
        return None
    vocab_size = target.vocab_size
    pipeline = Pipeline.from_settings(settings, vocab_size)
    keys: ContextKeys | PrefixKeys
    if pipeline.history_free:
        keys = ContextKeys(target, draft, settings, prompts, places, raw=raw)
    elif vocab_size**settings.max_new_tokens * len(prompts) <= MOST_ENTRIES:
        keys = PrefixKeys(forced(), vocab_size, settings.max_new_tokens)
    else:
        return None
    return LawTable(keys, vocab_size) if keys.count * vocab_size <= MOST_ENTRIES else None
