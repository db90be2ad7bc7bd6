"""The same models under other token ids: permuted ones, or ones with unused ids between them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.certification.probes.world import World
from specverify.errors import UsageError
from specverify.exact.conditional import Conditional
from specverify.exact.joint import Tokens
from specverify.exact.round import Round
from specverify.models.table import TableModel


@dataclass(frozen=True)
class Relabelling:
    """Token i becomes `ids[i]`, in a vocabulary of `size`. Ids that no token has are impossible.

    Raises:
        UsageError: two tokens get one id, or an id lies outside the vocabulary.
    """

    ids: tuple[int, ...]
    size: int

    def __post_init__(self) -> None:
        if len(set(self.ids)) < len(self.ids) or not set(self.ids) <= set(range(self.size)):
            raise UsageError(
                f"ids={self.ids} do not fit a vocabulary of {self.size}; give each token an id of "
                f"its own from 0 to {self.size - 1}"
            )

    @property
    def _old(self) -> NDArray[np.int64]:
        """Old id of each new one; 0 for those that no token has, [size]."""
        old = np.zeros(self.size, np.int64)
        old[list(self.ids)] = np.arange(len(self.ids))
        return old

    def round(self, round: Round) -> Round:
        """The same round of verification."""
        target, draft = self._rows(round.target), self._rows(round.draft)
        return replace(round, target=target, draft=draft, vocab_size=self.size)

    def table(self, table: TableModel) -> TableModel:
        """The same table; after an id that no token has, what it says after token 0."""
        size, order = table.vocab_size, table.order
        places = torch.from_numpy(np.append(self._old, size))  # the start symbol stays itself
        cube = table.logits.reshape(*[size + 1] * order, size)
        for place in range(order):
            cube = cube.index_select(place, places)
        wide = cube.new_full((*cube.shape[:-1], self.size), -torch.inf)
        wide[..., list(self.ids)] = cube
        return TableModel(wide.reshape(-1, self.size), order)

    def world(self, world: World) -> World:
        """The same models and prompts; the settings must not name tokens."""
        return replace(
            world,
            target=self.table(world.target),
            draft=self.table(world.draft),
            prompts=tuple(tuple(self.ids[token] for token in prompt) for prompt in world.prompts),
        )

    def joint(self, joint: Mapping[Tokens, float]) -> dict[Tokens, float]:
        """The same distribution over sequences; negative numbers, which separate rows, stay."""
        return {
            tuple(self.ids[token] if token >= 0 else token for token in tokens): mass
            for tokens, mass in joint.items()
        }

    def _rows(self, conditional: Conditional) -> Conditional:
        old = self._old

        def rows(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
            found = np.asarray(conditional(old[prefixes]), np.float64)
            wide = np.zeros((len(found), self.size))
            wide[:, list(self.ids)] = found
            return wide

        return rows
