"""What a decoder is handed in a probe: small models, prompts and settings."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.certification.presets import restrict
from specverify.decoding.row_settings import RowSettings
from specverify.decoding.scoring import TeacherForced
from specverify.exact.joint import Joint
from specverify.exact.prefix_tree import PrefixTree
from specverify.exact.programs import SEPARATOR
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.stopping import run_lengths
from specverify.subjects.protocols import Subject

VOCAB_SIZE, ORDER = 3, 2
_TARGET_SEED, _DRAFT_SEED, _NOISE = 5, 7, 0.8
_ROWS = 256

ONE_CONTRACT = "all rows of a call have the same settings"
"""Why rows with settings of their own are not asked for."""


@cache
def small_tables(vocab_size: int = VOCAB_SIZE) -> tuple[TableModel, TableModel]:
    """A target and a draft that differ from each other after every context."""
    target = TableModel.random(vocab_size, ORDER, _TARGET_SEED)
    return target, target.near(_DRAFT_SEED, _NOISE)


@dataclass(frozen=True)
class World:
    """Models, prompts and settings, small enough to follow every path of a run."""

    target: TableModel = field(default_factory=lambda: small_tables()[0])
    draft: TableModel = field(default_factory=lambda: small_tables()[1])
    settings: SamplingSettings = field(default_factory=lambda: SamplingSettings(max_new_tokens=3))
    prompts: tuple[tuple[int, ...], ...] = ((0, 1),)
    """One for each row of the batch."""
    num_draft_tokens: int = 2
    row_settings: tuple[SamplingSettings, ...] | None = None
    """Of each row in the place of `settings`, where rows have settings of their own."""

    def under(self, **settings: Any) -> Self:
        """The same world under other settings; the length limit stays unless it is given."""
        length = {"max_new_tokens": self.settings.max_new_tokens}
        return replace(self, settings=SamplingSettings(**length | settings))

    def refused_by(self, subject: Subject) -> str | None:
        """Why a subject cannot be asked to decode here, None if it can."""
        if self.row_settings is not None and not subject.capabilities.row_settings:
            return ONE_CONTRACT
        for settings in self.row_settings or (self.settings,):
            _, dropped = restrict(settings, subject.capabilities.settings)
            if dropped:
                return f"the subject does not honour {', '.join(dropped)}"
            if subject.capabilities.algorithm == "greedy" and not settings.greedy:
                return "the subject decodes greedily only"
        if len(self.prompts) > 1 and not subject.capabilities.batch:
            return "the subject takes one row a call"
        return None

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        """Prompts long [B, T], padded left, and their attention mask."""
        width = max(map(len, self.prompts))
        ids = torch.zeros((len(self.prompts), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(self.prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        return ids, mask

    @property
    def contract(self) -> RowSettings:
        """What a decoder is handed as its settings."""
        return self.settings if self.row_settings is None else list(self.row_settings)

    def of_row(self, row: int) -> SamplingSettings:
        """Settings of one row of the batch."""
        return self.settings if self.row_settings is None else self.row_settings[row]

    def tree(self, row: int = 0) -> PrefixTree:
        """The stopped joint distribution of the run from one prompt, every sequence of it."""
        settings = self.of_row(row)

        def ends(prefixes: NDArray[np.int64]) -> NDArray[np.bool_]:
            required, _ = run_lengths(torch.from_numpy(np.ascontiguousarray(prefixes)), settings)
            return required.numpy() == prefixes.shape[1]

        forced = TeacherForced(self.target, self.prompts[row], settings, _ROWS)
        return PrefixTree.grow(forced, self.target.vocab_size, settings.max_new_tokens, ends)

    def expected(self) -> Joint:
        """The joint distribution of all rows, with `SEPARATOR` between them."""
        joint: Joint = {(): 1.0}
        for row in range(len(self.prompts)):
            sequences = self.tree(row).sequences().items()
            between = (SEPARATOR,) * (row > 0)
            joint = {
                (*head, *between, *tokens): mass * probability
                for head, mass in joint.items()
                for tokens, probability in sequences
                if probability > 0
            }
        return joint
