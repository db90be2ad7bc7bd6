"""What a rule emits for some draft tokens at one position, summed over all of its paths."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from specverify.errors import CannotSteer, SubjectError
from specverify.exact.branching import Crash, Exploration, Leaf
from specverify.exact.distribution import MASS_TOLERANCE
from specverify.exact.forcing import Rule, emitted
from specverify.exact.large.position import DraftedPosition, normalised
from specverify.exact.large.tally import Tally
from specverify.exact.outcomes import check_padding


@dataclass
class Chunk:
    """Some draft tokens at a position, one a row; further rows repeat them with weight 0."""

    position: DraftedPosition
    tokens: Tensor
    """long [n], different ones."""
    rows: int
    """Rows handed over: at least n, and no other dimension's size if more than one."""

    def __post_init__(self) -> None:
        self.after = self.position.rows_after(self.tokens)

    def program(self, rule: Rule) -> "Program":
        """The rule as a function of row numbers."""
        return Program(rule, self)

    def add(self, exploration: Exploration, tally: Tally) -> None:
        """Explore, and add what is emitted.

        The tally changes only after everything was explored.

        Raises:
            CannotSteer: see `Exploration.paths`; or the masses do not sum to 1.
            SubjectError: the output has another form than a rule's.
        """
        masses = _Masses(self)
        for end in exploration.paths(torch.arange(self.rows)):
            masses.crash(end) if isinstance(end, Crash) else masses.add(end)
        masses.finish(tally)
        tally.findings |= dict.fromkeys(exploration.findings)
        tally.reuses |= dict.fromkeys(exploration.reuses)
        tally.runs += exploration.runs
        tally.done += len(self.tokens)


@dataclass(frozen=True)
class Program:
    """A rule as an `Exploration` runs it."""

    rule: Rule
    chunk: Chunk

    def __call__(self, rows: Tensor, generator: Generator) -> Tensor:
        chunk, position = self.chunk, self.chunk.position
        at = rows % len(chunk.tokens)
        whole = len(rows) == len(chunk.tokens) and torch.equal(at, rows)
        after = chunk.after if whole else chunk.after[at]
        arguments = position.inputs(chunk.tokens[at], after)
        value = self.rule(*arguments, generator)
        return emitted(value, len(rows), position.num_draft_tokens + 1)


@dataclass(frozen=True)
class _Column:
    """One column of a leaf's output, for some of its rows."""

    token: Tensor
    """long [R]; meaningless where a token was drawn last."""
    drawn: Tensor
    """bool [R]."""
    law: Tensor
    """float64 [D, V]: distributions of the drawn ones, in the order of their rows."""
    unfit: Tensor
    """float64 [D]: what they have outside the vocabulary."""


class _Masses:
    """Sums over the paths of one chunk."""

    def __init__(self, chunk: Chunk) -> None:
        position = chunk.position
        self.chunk, self.size = chunk, position.vocab_size
        self.column = len(position.prefix)
        self.weight = normalised(position.draft[-1])[chunk.tokens]
        count = len(chunk.tokens)
        self.total = torch.zeros(count, dtype=torch.float64)
        self.emitted = torch.zeros(self.size, dtype=torch.float64)
        self.accepted = torch.zeros(count, dtype=torch.float64)
        self.continued = torch.zeros(count, dtype=torch.float64)
        self.unfit_after = torch.zeros(count, dtype=torch.float64)
        self.follower: Tensor | None = None
        """float64 [n, V]: mass of what follows each draft token where it is emitted."""
        self.unfit = self.missing = self.stray = self.unchecked = 0.0
        self.crashes: list[tuple[str, float]] = []

    def crash(self, end: Crash) -> None:
        """Add a path that raised."""
        if isinstance(end.error, SubjectError):
            raise end.error
        self.total += end.probability
        text = f"{type(end.error).__name__}: {end.error}"
        self.crashes.append((text, end.probability * float(self.weight[0])))

    def add(self, leaf: Leaf) -> None:
        """Add a path."""
        _check_output(leaf)
        counted = leaf.rows < len(self.chunk.tokens)
        self.total[leaf.rows[counted]] += leaf.probability[counted]
        there = self._is_there(leaf, self.column)
        if self.column == 0:
            gone = counted & ~there
            self.missing += float(leaf.probability[gone] @ self.weight[leaf.rows[gone]])
        index = (counted & there).nonzero()[:, 0]
        if len(index):
            mass = leaf.probability[index] * self._emits_prefix(leaf, index)
            self._add_rows(leaf, index, mass)

    def _is_there(self, leaf: Leaf, column: int) -> Tensor:
        """Whether rows have a token in a column, bool [R]."""
        there = leaf.tokens[:, column] != -1
        for slot in leaf.slots:
            there[slot.place[slot.place[:, 1] == column, 0]] = True
        return there

    def _emits_prefix(self, leaf: Leaf, index: Tensor) -> Tensor:
        """Probability that the columns before the position hold the prefix, float64 [N]."""
        chance = torch.ones(len(index), dtype=torch.float64)
        for place, token in enumerate(self.chunk.position.prefix):
            column = _column(leaf, place, index, self.size)
            match = (column.token == token).double()
            match[column.drawn] = column.law[:, token]
            chance *= match
        return chance

    def _add_rows(self, leaf: Leaf, index: Tensor, mass: Tensor) -> None:
        """Add the rows `index` of a leaf, which have a token at the position."""
        row = leaf.rows[index]
        weighted = mass * self.weight[row]
        goes_on = self._is_there(leaf, self.column + 1)[index]
        here = _column(leaf, self.column, index, self.size)
        if len(here.law):
            drawn = weighted[here.drawn]
            self.emitted += drawn @ here.law
            self.unfit += float(drawn @ here.unfit)
            self.unchecked += float(drawn @ goes_on[here.drawn].double())
        fixed = ~here.drawn
        fit = fixed & (here.token >= 0) & (here.token < self.size)
        self.unfit += float(weighted[fixed & ~fit].sum())
        self.emitted.index_add_(0, here.token[fit], weighted[fit])
        own = fit & (here.token == self.chunk.tokens[row])
        self.accepted[row[own]] += mass[own]
        if bool((own & goes_on).any()):
            kept = own & goes_on
            self._add_followers(leaf, index[kept], row[kept], mass[kept])
        stray = fit & ~own & goes_on
        if bool(stray.any()):
            self._add_strays(leaf, index[stray], here.token[stray], weighted[stray])

    def _add_followers(self, leaf: Leaf, index: Tensor, row: Tensor, mass: Tensor) -> None:
        """Tokens behind the drafted one."""
        if self.follower is None:
            shape = (len(self.chunk.tokens), self.size)
            self.follower = torch.zeros(shape, dtype=torch.float64)
        self.continued[row] += mass
        behind = _column(leaf, self.column + 1, index, self.size)
        if len(behind.law):
            drawn = behind.drawn
            self.follower[row[drawn]] += mass[drawn].unsqueeze(1) * behind.law
            self.unfit_after[row[drawn]] += mass[drawn] * behind.unfit
        fit = ~behind.drawn & (behind.token >= 0) & (behind.token < self.size)
        self.follower[row[fit], behind.token[fit]] += mass[fit]
        unfit = ~behind.drawn & ~fit
        self.unfit_after[row[unfit]] += mass[unfit]

    def _add_strays(self, leaf: Leaf, index: Tensor, token: Tensor, mass: Tensor) -> None:
        """Tokens behind one that is not the drafted one: each path by itself, an upper bound."""
        behind = _column(leaf, self.column + 1, index, self.size)
        law = torch.zeros(len(index), self.size, dtype=torch.float64)
        law[behind.drawn] = behind.law
        fit = ~behind.drawn & (behind.token >= 0) & (behind.token < self.size)
        law[fit.nonzero()[:, 0], behind.token[fit]] = 1.0
        target = normalised(self.chunk.position.rows_after(token)[:, 0])
        distance = ((law - target).abs().sum(1) + (1 - law.sum(1)).abs()) / 2
        self.stray += float(mass @ distance)

    def finish(self, tally: Tally) -> None:
        """Add everything to a tally."""
        if bool(((self.total - 1).abs() > MASS_TOLERANCE).any()):
            raise CannotSteer(
                f"the masses of all outcomes sum to {float(self.total.min())!r} for some draft "
                "token, not to 1; the subject's randomness was not followed rightly"
            )
        tokens = self.chunk.tokens
        if self.follower is not None:
            self._compare_followers(self.follower, tally)
        tally.emitted += self.emitted
        tally.continued[tokens] = self.continued * self.weight
        tally.accepted[tokens] = self.accepted * self.weight
        tally.unfit += self.unfit
        tally.missing += self.missing
        tally.stray += self.stray
        tally.unchecked += self.unchecked
        for text, mass in self.crashes:
            tally.crashes[text] += mass

    def _compare_followers(self, follower: Tensor, tally: Tally) -> None:
        tokens = self.chunk.tokens
        expected = normalised(self.chunk.after[:, 0])
        impossible = expected == 0
        outside = self.unfit_after.clone()
        if bool(impossible.any()):
            outside += follower.masked_fill(~impossible, 0.0).sum(1)
        expected *= self.continued.unsqueeze(1)
        ratio = torch.div(follower, expected).nan_to_num_(1.0, posinf=torch.inf).amax(1)
        differing = expected.sub_(follower).abs_().sum(1) + self.unfit_after
        tally.deviation[tokens] = differing / 2 * self.weight
        tally.outside[tokens] = outside * self.weight
        ratio = torch.where(outside > 0, torch.inf, ratio)
        tally.ratio[tokens] = torch.where(self.continued > 0, ratio, 1.0)


def _column(leaf: Leaf, column: int, index: Tensor, size: int) -> _Column:
    """One column of the output for the rows `index`, long [N], of a leaf."""
    place = torch.full((len(leaf.rows),), -1)
    place[index] = torch.arange(len(index))
    drawn = torch.zeros(len(index), dtype=torch.bool)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for slot in leaf.slots:
        chosen = (slot.place[:, 1] == column) & (place[slot.place[:, 0]] >= 0)
        if not bool(chosen.any()):
            continue
        rows = place[slot.place[chosen, 0]]
        drawn[rows] = True
        values, group = slot.group.values, slot.member[chosen]
        values = values if values.dim() == 1 else values[group]
        parts.append((rows, *_dense(slot.group.probabilities[group], values, size)))
    if not parts:
        empty = torch.zeros(0, size, dtype=torch.float64)
        return _Column(leaf.tokens[index, column], drawn, empty, empty[:, 0])
    if len(parts) == 1:
        rows, law, unfit = parts[0]
    else:
        rows, law, unfit = (torch.cat(part) for part in zip(*parts, strict=True))
    if bool((rows.diff() < 0).any()):
        order = rows.argsort()
        law, unfit = law[order], unfit[order]
    return _Column(leaf.tokens[index, column], drawn, law, unfit)


def _dense(probabilities: Tensor, values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Distributions over the vocabulary [D, V], and what lies outside it [D]."""
    count = probabilities.shape[1]
    nothing = torch.zeros(len(probabilities), dtype=torch.float64)
    if bool((values == torch.arange(count)).all()):
        if count == size:
            return probabilities, nothing
        if count > size:
            return probabilities[:, :size], probabilities[:, size:].sum(1)
    values = values.expand(probabilities.shape)
    fit = (values >= 0) & (values < size)
    law = torch.zeros(len(probabilities), size, dtype=torch.float64)
    law.scatter_add_(1, values.where(fit, 0), probabilities.where(fit, 0.0))
    return law, probabilities.where(~fit, 0.0).sum(1)


def _check_output(leaf: Leaf) -> None:
    """Raise for padding before a token, and for one draw that is emitted twice."""
    tokens = leaf.tokens.clone()
    for slot in leaf.slots:
        tokens[slot.place[:, 0], slot.place[:, 1]] = 0
        if len(slot.member.unique()) < len(slot.member):
            raise CannotSteer("the rule emits one draw twice, which is not followed at this size")
    check_padding(tokens.numpy())
