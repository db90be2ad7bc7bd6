"""Tokens that were drawn but not looked at: they fork only when something depends on them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specverify.errors import CannotSteer
from specverify.exact.steering.path import Path
from specverify.exact.steering.shadows import Shadows
from specverify.exact.steering.source_line import Line

LARGEST_FORK = 1024
"""Outcomes one draw may fork into."""


@dataclass(frozen=True)
class Group:
    """Draws of one operation: G of them, with n possible outcomes each."""

    first: int
    """Id of the first one."""
    probabilities: Tensor
    """float64 [G, n]."""
    values: Tensor
    """long [n] or [G, n]: what the outcomes are."""
    row: Tensor
    """long [G]."""
    noise: Tensor | None
    """long [G, m]: ids of the race's noise; None where the operation draws by itself."""
    edges: Tensor | None
    """long [G, n + 1]: for a draw by thresholds, the grid integers between which each outcome
    lies; `noise` is then the one uniform, [G, 1]."""
    line: Line

    def value_of(self, member: Tensor, outcome: Tensor) -> Tensor:
        """What draws became, given the outcome of each."""
        return self.values[outcome] if self.values.dim() == 1 else self.values[member, outcome]


class Draws:
    """All draws of a run."""

    def __init__(self, path: Path, shadows: Shadows) -> None:
        self._path, self._shadows = path, shadows
        self.groups: list[Group] = []
        self._waiting: dict[int, int] = {}
        """Uniforms to the pending draw that depends on each."""
        self._known: dict[int, int] = {}
        self._count = 0

    def add(
        self,
        probabilities: Tensor,
        values: Tensor,
        row: Tensor,
        line: Line,
        noise: Tensor | None = None,
        edges: Tensor | None = None,
    ) -> Tensor:
        """Draw; see `Group` for the arguments.

        Returns:
            Ids of the draws, long [G].
        """
        size = len(probabilities)
        first = self._count
        self.groups.append(Group(first, probabilities, values, row, noise, edges, line))
        self._count += size
        if edges is not None and noise is not None:
            for member, element in enumerate(noise[:, 0].tolist()):
                self._waiting[element] = first + member
        return torch.arange(first, first + size)

    def find(self, draw: int) -> tuple[Group, int]:
        """The group of a draw and its place in it."""
        group = next(group for group in reversed(self.groups) if group.first <= draw)
        return group, draw - group.first

    def possible(self, draw: int) -> Tensor:
        """Values that a draw may still become, long [n]."""
        group, member = self.find(draw)
        outcomes = (group.probabilities[member] > 0).nonzero()[:, 0]
        return group.value_of(torch.full_like(outcomes, member), outcomes)

    @property
    def waiting(self) -> bool:
        """Whether a uniform has a draw that depends on it."""
        return bool(self._waiting)

    def settle(self, uniforms: Tensor) -> None:
        """Take the draws that depend on uniforms which are about to be used again."""
        if self._waiting:
            due = [self._waiting[e] for e in uniforms.reshape(-1).tolist() if e in self._waiting]
            if due:
                self.take(torch.tensor(due))

    def take(self, ids: Tensor) -> None:
        """Fork over draws, and put their values wherever they have been carried."""
        wanted = dict.fromkeys(ids[ids >= 0].reshape(-1).tolist())
        draws = torch.tensor([d for d in wanted if d not in self._known], dtype=torch.long)
        if len(draws):
            found = [self.find(draw) for draw in draws.tolist()]
            rows = torch.stack([group.row[member] for group, member in found])
            for index in self._path.columns(rows):
                self._take_one_a_row([found[i] for i in index.tolist()], draws[index])
        self._shadows.put({draw: self._known[draw] for draw in wanted})

    def _take_one_a_row(self, found: list[tuple[Group, int]], draws: Tensor) -> None:
        group = found[0][0]
        if any(other is not group for other, _ in found):
            raise CannotSteer("the rows of a batch draw their tokens in different places")
        member = torch.tensor([place for _, place in found])
        probabilities = group.probabilities[member]
        outcomes = probabilities.shape[1]
        possible = int((probabilities > 0).any(0).sum())
        if possible > LARGEST_FORK:
            raise CannotSteer(
                f"a draw among {possible} tokens is used before it is emitted ({group.line}); at "
                f"most {LARGEST_FORK} outcomes can be followed"
            )
        if group.noise is not None and group.edges is None:
            self._path.claim(group.noise[member], group.line)
        chosen = self._path.fork(probabilities.T)
        if group.edges is not None and group.noise is not None:
            low, high = (group.edges[member, chosen + side] for side in (0, 1))
            self._path.narrow(group.noise[member, 0], low, high, group.line)
        values = group.value_of(member, chosen.clamp(max=outcomes - 1))
        self._known.update(zip(draws.tolist(), values.tolist(), strict=True))
        for element in [] if group.noise is None else group.noise[member, 0].tolist():
            self._waiting.pop(element, None)

    def known(self, draws: Tensor) -> Tensor:
        """What draws that were taken became."""
        return torch.tensor([self._known[draw] for draw in draws.tolist()])

    def refresh(self, ids: Tensor) -> None:
        """Put in the values of draws that were taken before the tensor that holds them was made."""
        taken = {d: self._known[d] for d in ids.reshape(-1).tolist() if d in self._known}
        if taken:
            self._shadows.put(taken)
